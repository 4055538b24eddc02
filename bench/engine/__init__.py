"""Engines: a model built ahead for one runtime, in a directory with its manifest and a probe that says what is correct."""

"""A reference inference server: one engine, served cold-load, lazy, warm-pool or elastic, every wait accounted for."""

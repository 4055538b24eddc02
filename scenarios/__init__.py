"""Locustfiles, and under `openloop` what they share. Locust is imported first: it patches the sockets that later imports use."""

"""Open-loop load inside Locust: a precomputed schedule, sent at its times whatever the answers do, one row for each arrival."""

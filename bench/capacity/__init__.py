"""From measured runs to a decision: how a service slows down, what a pool does with arrivals, and how many slots hold an objective."""

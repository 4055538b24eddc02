"""From measured runs to a decision: how a service slows down, what a pool does with arrivals, and how many slots hold an objective.

measure     a service curve, on fresh servers in closed loop
service     a saved service curve, read back
simulation  what a server of known times does with given arrivals (events and state are its inside)
starts      what starting takes, from a cold-start run; measured: the samples of both, as a plan keeps them
plan        the question answered: search over candidates, predict, limits, sensitivity, cost, rules_of_thumb; saved_plan
validation  predicted against measured; served: how a run's server was set; sizes: was it the right one; saved_validation
"""

"""Capacity: how long a slot is occupied when others are busy too, and what that means for a load.

measure     a service curve, on fresh servers in closed loop
service     a saved service curve, read back
simulation  what a server of known times does with given arrivals (events and state are its inside)
"""

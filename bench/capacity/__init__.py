"""Capacity: how long a slot is occupied when others are busy too, and what that means for a load.

measure   a service curve, on fresh servers in closed loop
service   a saved service curve, read back
"""

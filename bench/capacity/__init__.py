"""Capacity: how long a slot is occupied when others are busy too, and what that means for a load.

service   a saved service curve, read back
"""

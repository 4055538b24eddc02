"""Burst experiments: the same spikes against several arms, each a fresh server, in random interleaved blocks.

arms          what is compared, and the server flags of each
calibration   how many requests a second an arm can do
plan          blocks, schedules and their order, fixed before the first run
loads         one more engine, loaded while requests run
server_means  what a server without Server-Timing says of its parts
conduct       run one block of one arm, keep it, go on; resumable
"""

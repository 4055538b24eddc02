"""Burst-traffic benchmarking and cold-start analysis for inference services.

The words of this project, used with one meaning everywhere:

arrival        one request the schedule asks for; it is sent, or recorded as not sent; never lost
intended time  when the schedule wants it sent
send lag       sent - intended: the generator's lateness
round trip     done - sent: what most tools call latency
response time  done - intended: the headline, free of coordinated omission
queue wait     in the server, accepted, before it is handed to the pool (or a batch)
pool wait      waiting for a free slot
cold start     (of a request) the part of its wait spent loading an engine or a slot
service time   input copy + inference + output copy
engine         the built artefact of one model for one runtime, with its manifest
slot           one execution context with its buffers and stream: what a request borrows
pool           the slots of one model in one process; sharing = engine (one engine, N slots) or copy (N engines)
mode           cold-load (loaded for each request), lazy (at the first request), warm-pool (before ready), elastic
spike          one excursion of the offered rate above its base; the unit of replication in statistics
offered, completed, goodput   scheduled; answered; answered correctly within the SLO, over the scheduled duration
recovery time  from the end of a spike until the windowed P99 is back at the base and the queue is empty
time to ready  from the start of a process until the first correct answer
valid run      one whose checks passed; an invalid run prints why before any number
"""

__version__ = "0.1.0"

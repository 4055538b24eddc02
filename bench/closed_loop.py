"""Closed-loop load: so many senders, each sending its next request when the last one is answered.

It asks what a server can do, and keeps it busy without a queue that grows. What users wait for in a burst is another
question, which only open-loop load (scenarios/) answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.clock import now_ns
from bench.errors import BenchError
from bench.inference_client import InferenceClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What every sender sends, again and again."""

    model: str
    body: bytes
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of status 200. Times are CLOCK_MONOTONIC, in ns: before the request was sent, after the answer was read."""

    sender: int
    sent_ns: int
    done_ns: int
    headers: Mapping[str, str]
    body: bytes


def ask(client: InferenceClient, request: Request, sender: int = 0) -> Answer:
    """Send one request. Raises BenchError where the answer is not 200."""
    sent_ns = now_ns()
    status, headers, body = client.infer(request.model, request.body, request.headers)
    done_ns = now_ns()
    if status != 200:
        raise BenchError(f"the server answered {status}: {body[:200].decode(errors='replace')}")
    return Answer(sender=sender, sent_ns=sent_ns, done_ns=done_ns, headers=headers, body=body)


def closed_loop(url: str, request: Request, *, senders: int, take: Callable[[Answer], None], goes_on: Callable[[], bool]) -> None:
    """Load the server until `goes_on`, asked before each send, says no. Both functions are called from the senders' threads.

    Raises BenchError where an answer is not 200. On Ctrl-C the senders stop after the answers they wait for.
    """
    failures: list[BenchError] = []
    stopped = threading.Event()

    def send(sender: int) -> None:
        try:
            with InferenceClient(url) as client:
                while not stopped.is_set() and goes_on():
                    take(ask(client, request, sender))
        except BenchError as error:
            failures.append(error)
            stopped.set()

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(senders)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stopped.set()
    if failures:
        raise failures[0]

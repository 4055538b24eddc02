"""What one connection and one request may take."""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one request may take on its way in: time in ns, size in bytes."""

    header_timeout_ns: int = 10 * 10**9
    body_timeout_ns: int = 60 * 10**9
    max_body_bytes: int = 64 * 2**20


def tune_listener(listener: socket.socket) -> None:
    """Accepted connections inherit these (tcp(7)): a peer that vanished is noticed within a minute, also while its request waits."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000)):
        if hasattr(socket, option):  # Linux has all of them
            listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

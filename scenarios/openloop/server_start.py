"""Is the server the same process as before? Its Prometheus metrics may tell, and must not be able to hold up a run."""

from __future__ import annotations

import re
import socket

from bench.clock import now_ns
from scenarios.openloop.target import address_of

_METRICS_NS = 2_000_000_000
_METRICS_BYTES = 1 << 20
_STARTED = re.compile(rb"^process_start_time_seconds ([0-9.eE+-]{1,40})\r?\n", re.MULTILINE)


def server_process_start(host: str) -> float | None:
    """When the server's process started, as its Prometheus metrics tell; None where they do not.

    Whatever a server does on that path, this takes at most 2 s and 1 MiB in all: the run goes on without it.
    """
    address, prefix = address_of(host)
    give_up = now_ns() + _METRICS_NS
    data = bytearray()
    try:
        with socket.create_connection(address, timeout=_METRICS_NS / 1e9) as client:
            # HTTP/1.0, so that the answer comes neither in chunks nor on a connection that stays open.
            client.sendall(f"GET {prefix}/metrics HTTP/1.0\r\nHost: {address[0]}:{address[1]}\r\n\r\n".encode())
            while len(data) < _METRICS_BYTES and (left := give_up - now_ns()) > 0:
                client.settimeout(left / 1e9)
                piece = client.recv(65_536)
                data += piece
                if not piece or _STARTED.search(data):
                    break
    except OSError:
        pass
    found = _STARTED.search(data)
    if found is None or not re.match(rb"HTTP/1\.[01] 200\b", data):
        return None
    try:
        return float(found.group(1))
    except ValueError:
        return None

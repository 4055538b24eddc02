"""What a server may say of itself and its model: a request can be made of it, or one sentence says why not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.errors import BenchError
from scenarios.openloop.target import Target, find_target

TENSOR = b'{"name":"x","datatype":"FP32","shape":[%s]}'


@contextmanager
def describing(server: bytes, tensor: bytes, count: int) -> Iterator[str]:
    """The address of a server that answers with these documents whatever it is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tensors = b",".join(tensor.replace(b'"x"', b'"x%d"' % number) for number in range(count))
            body = server if self.path == "/v2" else b'{"inputs":[%s],"outputs":[]}' % tensors
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{served.server_address[1]}"
        finally:
            served.shutdown()
            thread.join()


def target_of(server: bytes, tensor: bytes, count: int) -> Target:
    with describing(server, tensor, count) as url:
        return find_target(url, model="m", shape=None, encoding=None, probe=None, seed=1)


def test_a_plain_description_gives_a_request() -> None:
    assert b'"name":"x1","shape":[2],"datatype":"FP32"' in target_of(b'{"name":"s"}', TENSOR % b"2", 2).request


@pytest.mark.parametrize(
    ("server", "tensor", "count", "says"),
    [
        (b'{"name":"s"}', TENSOR % b"1e999", 1, "has no model|without names, datatypes and shapes"),
        (b'{"name":"s"}', TENSOR % b"Infinity", 1, "has no model"),
        (b'{"name":"s"}', TENSOR % b",".join([b"1"] * 100), 1, "without names, datatypes and shapes"),
        (b'{"name":"s"}', TENSOR.replace(b"x", b"x\\ud800") % b"1", 1, "has no model"),
        (b'{"name":"s"}', TENSOR % b"400000000", 9, "14,400,000,000 bytes together"),
        (b'{"name":"s","parameters":{"a":NaN}}', TENSOR % b"1", 1, "not as a V2 inference server"),
    ],
)
def test_what_no_request_can_be_made_of_is_one_sentence(server: bytes, tensor: bytes, count: int, says: str) -> None:
    with pytest.raises(BenchError, match=says):
        target_of(server, tensor, count)

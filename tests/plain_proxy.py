"""A proxy in front of a real server that takes Server-Timing away, and refuses paths: a V2 server that tells less."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class PlainProxy:
    """`with PlainProxy(url) as proxy:` listens at proxy.url. `hidden`: ends of paths that are answered with 404."""

    def __init__(self, url: str, hidden: Collection[str] = ()) -> None:
        address = urlsplit(url).netloc
        local = threading.local()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path.endswith(tuple(hidden)) and hidden:
                    self.answer(404, {}, b'{"error": "nothing here"}')
                    return
                if not hasattr(local, "connection"):  # one thread a client's connection
                    local.connection = http.client.HTTPConnection(address, timeout=30)
                given = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                local.connection.request(self.command, self.path, body, given)
                reply = local.connection.getresponse()
                self.answer(reply.status, dict(reply.getheaders()), reply.read())

            def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("server-timing", "content-length", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = pass_on

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> PlainProxy:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

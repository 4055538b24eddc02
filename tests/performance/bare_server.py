"""The measure of a Python HTTP server: a Starlette handler that reads the body and answers 4 KB. Prints its port."""

from __future__ import annotations

import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ANSWER = bytes(4096)


async def infer(request: Request) -> Response:
    await request.body()
    return Response(ANSWER, media_type="application/octet-stream")


app = Starlette(routes=[Route("/v2/models/{name}/infer", infer, methods=["POST"])])

if __name__ == "__main__":
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    config = uvicorn.Config(app, http="httptools", loop="uvloop", ws="none", lifespan="off", log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[listener])

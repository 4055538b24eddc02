"""The HTTP face of the server, as a plain ASGI application: one table of paths, one handler for inference.

There is no framework between uvicorn and the handlers: every path that exists is known before the first request comes,
so a route is one look-up, and the infer route makes no objects that it does not need.
"""

from __future__ import annotations

import ipaddress
import traceback
from collections.abc import Awaitable, Callable

from reference_server.documents import model_metadata, openapi_document, repository_index, server_metadata
from reference_server.infer import Inference
from reference_server.jobs import LoadFailed, Overloaded
from reference_server.log import Log
from reference_server.registry import Registry, ServedModel
from reference_server.responses import Handler, Receive, Scope, Send, fixed, reply, reply_error
from reference_server.statistics import statistics_document
from reference_server.tensors import shorten


class App:
    """An ASGI 3 application over the models of a registry."""

    def __init__(self, registry: Registry, log: Log, *, max_body_bytes: int) -> None:
        self._registry = registry
        self._log = log
        self._draining = False
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v2": ("GET", fixed(server_metadata(registry.settings.described(), loads=any(m.on_demand for m in registry.models.values())))),
            "/v2/health/live": ("GET", fixed(b'{"live":true}')),
            "/v2/health/ready": ("GET", self._ready),
            "/v2/models/stats": ("GET", self._statistics),  # a model of this name has its own path there
            "/v2/repository/index": ("POST", self._index),
            "/openapi.json": ("GET", self._openapi),
            "/metrics": ("GET", self._metrics),
        }
        self._inferences: list[Inference] = []
        for name, model in registry.models.items():
            self._add_model(f"/v2/models/{name}", model, max_body_bytes)
            if model.on_demand:
                self._routes[f"/v2/repository/models/{name}/load"] = ("POST", self._changes(model, model.load))
                self._routes[f"/v2/repository/models/{name}/unload"] = ("POST", self._changes(model, model.unload))

    def _add_model(self, base: str, model: ServedModel, max_body_bytes: int) -> None:
        inference = Inference(model, self._log, max_body_bytes=max_body_bytes)
        self._inferences.append(inference)

        async def ready(scope: Scope, receive: Receive, send: Send) -> None:
            await _reply_ready(send, model.ready and not self._draining, f"model {model.manifest.name}")

        async def statistics(scope: Scope, receive: Receive, send: Send) -> None:
            await reply(send, 200, statistics_document([model]))

        metadata = fixed(model_metadata(model.manifest))
        for path in (base, f"{base}/versions/{model.manifest.version}"):
            self._routes[path] = ("GET", metadata)
            self._routes[f"{path}/ready"] = ("GET", ready)
            self._routes[f"{path}/stats"] = ("GET", statistics)
            self._routes[f"{path}/infer"] = ("POST", inference)

    def _changes(self, model: ServedModel, change: Callable[[], Awaitable[None]]) -> Handler:
        """The writing part of the model repository extension, for clients of this host: who may reach the server to ask
        for an inference need not be one who may fill its memory."""

        async def handler(scope: Scope, receive: Receive, send: Send) -> None:
            changes = f"model {model.manifest.name} is loaded and unloaded"
            if not _of_this_host(scope["client"]):
                await reply_error(send, 403, f"{changes} from this host only")
                return
            if any(name == b"origin" for name, _ in scope["headers"]):  # a browser here may show a page from anywhere
                await reply_error(send, 403, f"{changes} by programs, not by a page in a browser")
                return
            try:
                await change()
            except Overloaded as overloaded:
                await reply_error(send, 503, str(overloaded), (b"retry-after", b"%d" % overloaded.retry_after_s))
            except LoadFailed as failed:
                await reply_error(send, 500, str(failed))
            else:
                await reply(send, 200, b"{}")

        return handler

    @property
    def in_flight(self) -> int:
        """Inference requests that were accepted and not answered yet."""
        return sum(inference.in_flight for inference in self._inferences)

    def drain(self) -> None:
        """Not ready from now on: new inference requests are refused."""
        self._draining = True
        for inference in self._inferences:
            inference.draining = True
        for model in self._registry.models.values():
            model.draining = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"])
        try:
            if route is None:
                await reply_error(send, 404, self._not_found(scope["path"]))
                return
            method, handler = route
            if scope["method"] != method and not (method == "GET" and scope["method"] == "HEAD"):
                allowed = b"GET, HEAD" if method == "GET" else b"POST"
                message = f"{scope['path']} takes {allowed.decode()}, not {scope['method']}"
                await reply_error(send, 405, message, (b"allow", allowed))
                return
            await handler(scope, receive, send)
        except Exception as error:
            connection = scope["state"]["connection"]
            gone = connection.client_gone
            if not (gone and isinstance(error, RuntimeError)):  # which uvloop raises for writing to who went away
                # A defect of ours: stated as such, and the server goes on.
                self._log.event("error", f"a defect of the server on {scope['path']}", traceback=traceback.format_exc())
            if gone:
                connection.forget_client()
            else:
                await reply_error(send, 500, "a defect of the server; its log says more")

    def _not_found(self, path: str) -> str:
        parts = path.split("/")
        if path.startswith("/v2/models/") and parts[3]:
            model = self._registry.models.get(parts[3])
            if model is None:
                return f"unknown model {shorten(parts[3])}; served here: {', '.join(self._registry.models)}"
            if len(parts) > 5 and parts[4] == "versions" and parts[5] != model.manifest.version:
                return f"model {parts[3]} has no version {shorten(parts[5])}, it has {model.manifest.version}"
        kept = self._registry.models.get(parts[4]) if path.startswith("/v2/repository/models/") else None
        if kept is not None and not kept.on_demand:
            return f"model {parts[4]} is there from start to end; only models of --on-demand can be loaded and unloaded"
        return f"there is nothing at {shorten(path)}"

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _reply_ready(send, self._registry.ready and not self._draining, "the server")

    async def _index(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Which models there are: the reading part of the model repository extension."""
        models = self._registry.models.values()
        await reply(send, 200, repository_index([(model.manifest, model.ready and not self._draining) for model in models]))

    async def _statistics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, statistics_document(list(self._registry.models.values())))

    async def _openapi(self, scope: Scope, receive: Receive, send: Send) -> None:
        models = self._registry.models
        on_demand = [name for name, model in models.items() if model.on_demand]
        await reply(send, 200, openapi_document([model.manifest for model in models.values()], on_demand))

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        from reference_server.metrics import expose

        accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
        body, content_type = await expose(list(self._registry.models.values()), accept)
        await reply(send, 200, body, content_type=content_type.encode())


def _of_this_host(client: tuple[str, int] | None) -> bool:
    if client is None:
        return False
    address = ipaddress.ip_address(client[0])
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback  # an IPv6 socket sees IPv4 clients as ::ffff:127.0.0.1


async def _reply_ready(send: Send, ready: bool, what: str) -> None:
    if ready:
        await reply(send, 200, b'{"ready":true}')
    else:
        await reply_error(send, 503, f"{what} is not ready")

"""Replies as ASGI messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from reference_server.documents import error_document

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"


async def reply(send: Send, status: int, body: bytes, *headers: Header, content_type: bytes = JSON) -> None:
    """A whole reply in one piece."""
    start = [(b"content-type", content_type), (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})


async def reply_error(send: Send, status: int, message: str, *headers: Header) -> None:
    """`{"error": message}`"""
    await reply(send, status, error_document(message), *headers)


def fixed(body: bytes) -> Handler:
    """A handler that always answers with this JSON."""

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        await reply(send, 200, body)

    return handler


def refusal(status: int, message: str) -> Handler:
    """A handler that answers with this error, and closes the connection."""

    async def handler(scope: Scope, receive: Receive, send: Send) -> None:
        await reply_error(send, status, message, (b"connection", b"close"))

    return handler

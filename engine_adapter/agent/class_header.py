"""Middleware of vLLM's server that reads a request's traffic class from the header `X-Traffic-Class`.

For engines behind another gateway than SpecPilot's. That gateway only has to pass this header on, or set it. The class
is written into the body as `vllm_xargs.traffic_class`, as SpecPilot's gateway does. It replaces a class in the body:
the operator of the gateway decides, not its clients. If the gateway passes its clients' headers on, clients choose.

With a header that is no class name, or a body that is no JSON object, the request is passed on unchanged: vLLM serves
it as `default`, or refuses it. A body without `vllm_xargs`, which is nearly every one, is not parsed: the field is
inserted at its start.
"""

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from specpilot.engine_adapter.agent.route_path import route_path
from specpilot.policy.names import is_class_name

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = b"x-traffic-class"
PATHS = frozenset(("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/invocations"))
"""The routes on which vLLM accepts `vllm_xargs` in the body."""

_OPENING = re.compile(rb"\s*\{\s*")
_ESCAPED = re.compile(rb"\\u00[4-7]")  # an escaped letter: the field's name may contain it


class ClassHeaderMiddleware:
    """`--middleware specpilot.engine_adapter.agent.class_header.ClassHeaderMiddleware`."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        name = _class_of(scope)
        if name is None:
            await self._app(scope, receive, send)
            return
        body, last = await _read(receive)
        if last["type"] == "http.request":  # otherwise the client has disconnected
            body = marked(body, name)
        headers = [
            (key, value) for key, value in scope["headers"] if key not in (b"content-length", b"transfer-encoding")
        ]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._app({**scope, "headers": headers}, _replay(body, last, receive), send)


def marked(body: bytes, name: str) -> bytes:
    """Return the JSON object `body` with the traffic class `name`; any other body unchanged."""
    opening = _OPENING.match(body)
    if opening is None:
        return body
    if b'"vllm_xargs"' not in body and _ESCAPED.search(body) is None:
        rest = body[opening.end() :]
        comma = b"" if rest[:1] == b"}" else b","
        return b'{"vllm_xargs":{"traffic_class":"' + name.encode() + b'"}' + comma + rest
    try:
        document = json.loads(body)
    except ValueError:
        return body
    arguments = document.get("vllm_xargs")
    document["vllm_xargs"] = {**(arguments if isinstance(arguments, dict) else {}), "traffic_class": name}
    return json.dumps(document).encode()


def _class_of(scope: Scope) -> str | None:
    """Return the class in a request's header; `None` without one, and for routes without classes."""
    if scope["type"] != "http" or scope["method"] != "POST" or route_path(scope) not in PATHS:
        return None
    for key, value in scope["headers"]:
        if key == HEADER:
            name: str = value.decode("latin-1").strip()
            return name if is_class_name(name) else None
    return None


async def _read(receive: Receive) -> tuple[bytes, Message]:
    """Return the whole body, and the last message: the end of the body, or that the client disconnected."""
    chunks: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b"".join(chunks), message
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks), message


def _replay(body: bytes, last: Message, receive: Receive) -> Receive:
    """Return a `receive` that yields `body` as one message, or that the client disconnected, then later messages."""
    pending: list[Message] = [
        {"type": "http.request", "body": body, "more_body": False} if last["type"] == "http.request" else last
    ]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed

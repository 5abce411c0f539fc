"""Adds the adapter's page of metrics to the answer of vLLM's server at `/metrics`.

A controller asks for the adapter's metrics alone (`name[]`, as Prometheus client libraries do) and gets the page
without vLLM's part. Any other client gets both parts, in the text format, which Prometheus always reads.

Each data-parallel rank writes a page, with its number in the label `engine` of every series. `/metrics` has all of
them, and with `engine=1` in the query that of rank 1.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from specpilot.engine_adapter.agent.export import ENDING, FOLDER
from specpilot.engine_adapter.agent.page import part_of, together
from specpilot.policy import engine_metrics as names

PATH = "/metrics"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class MetricsMiddleware:
    """ASGI middleware of vLLM's server."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request for metrics; pass every other request on."""
        if scope["type"] != "http" or route_path(scope).rstrip("/") != PATH:
            await self._app(scope, receive, send)
            return
        query = parse_qs(scope["query_string"].decode("latin-1"))
        selection, page = query.get("name[]", []), read_page(query.get(names.LABEL_ENGINE))
        if selection:
            page = part_of(page, selection)
            if all(name.startswith(names.PREFIX) for name in selection):
                await _answer(send, 200, [(b"content-type", CONTENT_TYPE)], page.encode())
                return
        reply = _Reply()
        plain = [pair for pair in scope["headers"] if pair[0] not in (b"accept", b"accept-encoding")]
        await self._app({**scope, "headers": plain}, receive, reply.add)
        body = reply.body + page.encode() if reply.status == 200 else reply.body  # noqa: PLR2004 - HTTP's own
        await _answer(send, reply.status, reply.headers, body)


def read_page(ranks: Collection[str] | None) -> str:
    """Return the metrics of these `ranks`, of all if it is `None`; an empty text before the first are written."""
    folder = os.environ.get(FOLDER)
    pages = sorted(Path(folder).glob(f"*{ENDING}")) if folder else []
    return together(page.read_text("utf-8") for page in pages if ranks is None or page.stem in ranks)


def route_path(scope: Mapping[str, Any]) -> str:
    """Return the path of an ASGI request without `--root-path`, as the application's routes state it.

    A proxy may keep that prefix or remove it; vLLM serves both.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


class _Reply:
    """The whole response of the wrapped application."""

    def __init__(self) -> None:
        self.status = 500
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    async def add(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [pair for pair in message.get("headers", []) if pair[0] != b"content-length"]
        else:
            self.body += message.get("body", b"")


async def _answer(send: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

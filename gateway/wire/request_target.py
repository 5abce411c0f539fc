"""The target of a request: its path, and the relayed route of the path. Pure."""

import re
from typing import Final

from specpilot.gateway.wire.heads import RequestHead
from specpilot.gateway.wire.routes import PROXIED, STORED, stored_route

ROUTES: Final = {path.encode(): path for path in PROXIED - STORED}
"""The relayed routes by their target, except those to a stored response."""

_STORED: Final = b"/v1/responses/"
_AUTHORITY: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")


def origin_form(target: bytes) -> bytes:
    """Return path and query of a target in absolute form, which clients send to proxies."""
    authority = _AUTHORITY.match(target)
    rest = target if authority is None else target[authority.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def read_route(target: bytes, head: RequestHead) -> str | None:
    """Return the relayed route of a tidied `target` that is not in `ROUTES` itself; `None` when it is not relayed.

    For a stored response the target for the engine is put into `head`.
    """
    path = ROUTES.get(target.partition(b"?")[0])
    if path is None and target.startswith(_STORED):
        path = stored_route(target)
        head.target = "" if path is None else target.decode()
    return path

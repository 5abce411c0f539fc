"""Limits the paths that other machines may request, for a port that faces a platform which expects two paths.

Callers on this machine may request every path: health checks, metrics, operators. Behind a proxy on the same machine
every caller is on this machine, so the proxy must limit the paths.
"""

import asyncio
import ipaddress
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from specpilot.gateway.relay.client_connection import ClientConnection
from specpilot.gateway.relay.context import GatewayContext

_ELSEWHERE: Final = b"/not-served-to-other-machines"


class LimitedProtocol(ClientConnection):
    """One client connection. Other machines get 404 for every path except `public_paths`."""

    def __init__(
        self,
        context: GatewayContext,
        public_paths: tuple[str, ...],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(context, config, server_state, app_state, _loop)
        self._public = frozenset(path.encode() for path in public_paths)

    def on_headers_complete(self) -> None:
        """Rewrite a path that this client may not request to one that does not exist."""
        if self._target.partition(b"?")[0] not in self._public and not _is_here(self.client):
            self._target = _ELSEWHERE + self._target
        super().on_headers_complete()


def _is_here(client: tuple[str, int] | None) -> bool:
    """Whether the client is on this machine. A client without an address uses a Unix socket."""
    return client is None or ipaddress.ip_address(client[0].partition("%")[0]).is_loopback

"""A separate listener for operators: `/metrics` names engines and API keys, which clients must not read."""

import asyncio
import logging
import socket
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from specpilot.gateway.process.certificates import Certificates
from specpilot.gateway.process.listening import url_of
from specpilot.gateway.process.tls_listener import TlsListener

HANDSHAKES_ADMIN_MAX: Final = 128
"""TLS handshakes under way on the operators' port. A few Prometheus servers and health checks need no more."""

_log = logging.getLogger(__name__)


class AdminListener:
    """Serves `app` on `listener`, on the gateway's own event loop."""

    def __init__(self, app: Any, listener: socket.socket, certificates: Certificates | None) -> None:
        """With `certificates` the listener speaks TLS."""
        self._certificates = certificates
        self._task: asyncio.Task[None] | None = None
        self._config = Config(app, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False)
        self._listener = listener
        self._state = ServerState()
        self._server: asyncio.Server | TlsListener | None = None

    async def start(self) -> None:
        """Start to serve. Call on the running loop."""
        self._config.load()
        loop, certificates = asyncio.get_running_loop(), self._certificates
        place = url_of(self._listener, is_tls=certificates is not None)
        if certificates is None:
            self._server = await loop.create_server(self._connection, sock=self._listener)
        else:
            self._server = TlsListener(
                self._listener, self._connection, certificates, lambda handshakes: handshakes < HANDSHAKES_ADMIN_MAX
            )
            self._task = loop.create_task(certificates.follow())
        _log.info("pages for operators on %s", place)

    def close(self) -> None:
        """Stop to serve."""
        if self._task is not None:
            self._task.cancel()
        if self._server is not None:
            self._server.close()
        for connection in [*self._state.connections]:
            connection.shutdown()

    def _connection(self) -> asyncio.Protocol:
        return HttpToolsProtocol(config=self._config, server_state=self._state, app_state={})

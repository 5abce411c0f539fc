"""A listener of its own for the operator's pages: `/metrics` names engines, which no tenant should read."""

import asyncio
import logging
import socket
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from specpilot.gateway.process.listening import url_of

_log = logging.getLogger(__name__)


class AdminListener:
    """Serves `app` on `listener`, on the gateway's own loop and with it."""

    def __init__(self, app: Any, listener: socket.socket) -> None:
        self._config = Config(app, ws="none", lifespan="off", log_config=None, access_log=False, server_header=False)
        self._listener = listener
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to serve. On the running loop."""
        self._config.load()
        self._server = await asyncio.get_running_loop().create_server(self._connection, sock=self._listener)
        _log.info("pages for operators on %s", url_of(self._listener))

    def close(self) -> None:
        """Serve no longer."""
        if self._server is not None:
            self._server.close()
        for connection in [*self._state.connections]:
            connection.shutdown()

    def _connection(self) -> asyncio.Protocol:
        return HttpToolsProtocol(config=self._config, server_state=self._state, app_state={})

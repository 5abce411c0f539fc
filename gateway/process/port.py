"""A port that the gateway serves: its listening socket, and the certificates of its connections."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import cast

from specpilot.gateway.process.certificates import Certificates
from specpilot.gateway.process.listening import BACKLOG, url_of
from specpilot.gateway.process.tls_listener import TlsListener
from specpilot.gateway.relay.client_connection import ClientConnection


class Port:
    """Serves `listener` once it is open. With `certificates` it speaks TLS.

    `connect` makes the protocol of a new connection. `has_room` returns whether one more TLS handshake may begin beside
    the given number.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[asyncio.AbstractEventLoop], ClientConnection],
        certificates: Certificates | None,
        has_room: Callable[[int], bool],
    ) -> None:
        self.listener = listener
        self.certificates = certificates
        self._connect = connect
        self._has_room = has_room
        self._server: asyncio.Server | TlsListener | None = None

    @property
    def url(self) -> str:
        """The address."""
        return url_of(self.listener, is_tls=self.certificates is not None)

    async def open(self) -> None:
        """Accept connections. Call on the running loop."""
        loop = asyncio.get_running_loop()
        connect = cast("Callable[[], asyncio.Protocol]", partial(self._connect, loop))
        if self.certificates is None:
            self._server = await loop.create_server(connect, sock=self.listener, backlog=BACKLOG)
        else:
            self._server = TlsListener(self.listener, connect, self.certificates, self._has_room)

    def close(self) -> None:
        """Accept no more. Open connections continue."""
        if self._server is not None:
            self._server.close()

"""A port that the gateway serves, plain or with TLS.

With TLS the handshakes under way are bounded. A client counts as connected after its handshake. Before that it holds a
file descriptor and some 50 KB, and many clients can do so at once. asyncio's own server does not report the number of
handshakes, so connections are accepted here. One without room is closed on arrival, because a local reply would need
the handshake first. A handshake that takes longer than `HANDSHAKE_S` is closed too.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, cast

from specpilot.gateway.process.certificates import Certificates
from specpilot.gateway.process.listening import BACKLOG, url_of
from specpilot.gateway.relay.client_connection import ClientConnection

HANDSHAKE_S: Final = 10.0
"""Longest time of a handshake, in seconds. A larger value admits slow networks; a smaller one frees the places of idle
connections sooner."""

ACCEPTS_A_TURN: Final = 64
"""Connections that are accepted in one pass of the event loop. Each then takes a handshake of some 0.5 ms."""

ACCEPT_PAUSE_S: Final = 1.0
"""Seconds before accepting is tried again when the system has no free descriptor."""

_log = logging.getLogger(__name__)


class Port:
    """Serves `listener` from `open` to `close`; accepted connections stay. With `certificates` it speaks TLS.

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
        self._handshakes: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None  # without TLS
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        """The address."""
        return url_of(self.listener, is_tls=self.certificates is not None)

    async def open(self) -> None:
        """Accept connections. Call on the running loop."""
        self._loop = asyncio.get_running_loop()
        if self.certificates is None:
            self._server = await self._loop.create_server(self._protocol(), sock=self.listener, backlog=BACKLOG)
        else:
            self.listener.setblocking(False)
            self.listener.listen(BACKLOG)
            self._start_accepting()

    def close(self) -> None:
        """Accept no more. Handshakes and connections continue."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        else:
            self._loop.remove_reader(self.listener)
            self.listener.close()

    def _protocol(self) -> Callable[[], asyncio.Protocol]:
        return cast("Callable[[], asyncio.Protocol]", partial(self._connect, self._loop))

    def _start_accepting(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self.listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, _ = self.listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or memory is free: the socket stays readable, so pause
                _log.error("no connection can be accepted, trying again in %g s: %s", ACCEPT_PAUSE_S, error)
                self._loop.remove_reader(self.listener)
                self._loop.call_later(ACCEPT_PAUSE_S, self._start_accepting)
                return
            if not self._has_room(len(self._handshakes)):
                accepted.close()
                continue
            task = self._loop.create_task(self._agree(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _agree(self, accepted: socket.socket) -> None:
        """Do the handshake. Afterwards the connection belongs to its protocol."""
        assert self.certificates is not None
        accepted.setblocking(False)
        with suppress(OSError):  # no TLS, no valid certificate, too slow, gone: there is no request to count
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._protocol(), accepted, ssl=self.certificates.context, ssl_handshake_timeout=HANDSHAKE_S
            )

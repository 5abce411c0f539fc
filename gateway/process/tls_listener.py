"""Accepts connections of clients that speak TLS, and bounds the handshakes under way.

A client counts as connected once it has agreed on TLS. Before that it holds a file descriptor and some 50 KB, and many
can: so who accepts them must know how many there are, which asyncio's own server does not say. Beyond what there is
room for, a connection is closed as it comes: a local reply would need the handshake first. One that does not end
within `HANDSHAKE_S` is closed too.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

HANDSHAKE_S: Final = 10.0
"""Seconds that a client may take to agree on TLS: slow networks against places that nobody uses."""

ACCEPTS_A_TURN: Final = 64
"""Connections that are accepted in one turn of the loop: each begins a handshake of some 0.5 ms in a later one."""

ACCEPT_PAUSE_S: Final = 1.0
"""Seconds before accepting is tried again when the system has no descriptor left."""


_log = logging.getLogger(__name__)


class TlsListener:
    """Accepts on a socket until it is closed; what stands goes on. `context` is what new connections are made with."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        has_room: Callable[[int], bool],
    ) -> None:
        """`has_room` says whether one more handshake may begin beside so many. On the running loop."""
        self.context = context
        self._listener = listener
        self._protocol = protocol
        self._has_room = has_room
        self._handshakes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._is_closed = False
        self._begin()

    @classmethod
    def in_place_of(
        cls,
        server: asyncio.Server,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        has_room: Callable[[int], bool],
    ) -> "TlsListener":
        """Return one that accepts on the socket of `server` instead of it; no connection is refused meanwhile.

        The sockets are two descriptors of one queue of connections, so it does not matter which of the two is closed.
        """
        (listener,) = server.sockets
        again = socket.fromfd(listener.fileno(), listener.family, listener.type)
        again.setblocking(False)
        found = cls(again, protocol, context, has_room)
        server.close()
        return found

    def close(self) -> None:
        """Accept no more. Handshakes under way go on, as connections do."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._listener)
            self._listener.close()

    async def wait_closed(self) -> None:
        """Do nothing: whose connections they are waits for them. As `asyncio.Server` has it."""

    def _begin(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_TURN):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors or memory: the kernel would say so over and over
                _log.error("no connection can be accepted, trying again in %g s: %s", ACCEPT_PAUSE_S, error)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(ACCEPT_PAUSE_S, self._begin)
                return
            if not self._has_room(len(self._handshakes)):
                accepted.close()
                continue
            task = self._loop.create_task(self._agree(accepted))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _agree(self, accepted: socket.socket) -> None:
        """Do the handshake; from its end on the connection is its protocol's."""
        accepted.setblocking(False)
        with suppress(OSError):  # no TLS, no certificate that is needed, too slow, gone: no request and in no count
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._protocol, accepted, ssl=self.context, ssl_handshake_timeout=HANDSHAKE_S
            )

"""uvicorn's server with a graceful end.

| state | entered by | behaviour | next state |
|---|---|---|---|
| serving | start | serves | draining or retiring |
| draining | SIGTERM or SIGINT | `/ready` is 503; each connection closes with its next answer or when idle | refusing |
| refusing | `drain_grace_s` after the signal | new requests get 503; requests under way go on | ended |
| retiring | a newer worker | accepts no connection; each one closes with its next answer | ended or draining |
| ended | see below | the listener closes, exit status 0 |  |

Draining closes connections because a balancer of connections never moves open ones. It ends when nothing is under way,
or `drain_timeout_s` after the signal: then the remaining requests get an error. Retiring ends when nothing has been
under way for `LINGER_S`, or after the same time-out. The retiring worker's socket belongs to the newer worker too, so
no connection is lost.

A second signal ends the process at once.
"""

import asyncio
import logging
import socket
from types import FrameType
from typing import Final, cast

from uvicorn.config import Config
from uvicorn.server import Server

from specpilot.gateway.process.certificates import Certificates
from specpilot.gateway.process.listening import url_of
from specpilot.gateway.process.tls_listener import TlsListener
from specpilot.gateway.process.worker import Worker
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.wire.errors import DrainingError

LINGER_S: Final = 2.0
"""Seconds without a request after which a replaced worker ends. A larger value keeps connections through clients'
pauses; a smaller one frees memory sooner."""

ANOTHER_SIGNAL_S: Final = 0.5
"""Seconds within which a second signal to a worker counts as the first one: the supervisor may pass the same signal
on."""

_log = logging.getLogger(__name__)


class GatewayServer(Server):
    """Serves until a signal, then drains. `worker` is set when it is one of several."""

    def __init__(  # noqa: PLR0913, PLR0917 - the collaborators of a server
        self,
        config: Config,
        context: GatewayContext,
        drain_grace_s: float,
        drain_timeout_s: float,
        worker: Worker | None,
        certificates: Certificates | None = None,
    ) -> None:
        """With `certificates` the server speaks TLS."""
        super().__init__(config)
        self._context = context
        self._drain_grace_s = drain_grace_s
        self._drain_timeout_s = drain_timeout_s
        self._worker = worker
        self._certificates = certificates
        self._listeners: list[TlsListener] = []
        self._asked_at: float | None = None
        self._busy_at = 0.0
        self._is_retiring = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and log the address once signals are handled and requests are accepted."""
        certificates = self._certificates
        places = [url_of(listener, is_tls=certificates is not None) for listener in sockets or ()]
        await super().startup(sockets if certificates is None else [])
        if certificates is not None:
            self._listeners = [
                TlsListener(listener, self._connection, certificates, self._has_room) for listener in sockets or ()
            ]
            self.servers = cast("list[asyncio.Server]", self._listeners)  # uvicorn only closes them
            self._context.spawn(asyncio.get_running_loop().create_task(certificates.follow()))
        if self._worker is not None:
            self._context.spawn(asyncio.get_running_loop().create_task(self._worker.follow(self.retire, self.drain)))
            return
        for place in places:
            _log.info("listening on %s", place)

    def _has_room(self, handshakes: int) -> bool:
        """Whether the limit on connections allows one more TLS handshake in addition to `handshakes` others."""
        context = self._context
        has_room = len(context.connections) + handshakes < context.bounds.max_connections
        if not has_room:
            context.metrics.count_refusal("connections")
        return has_room

    def _connection(self) -> asyncio.Protocol:
        config = self.config
        return config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; on a second signal stop at once.

        A worker may get one stop twice, from a service manager and from its supervisor. A signal soon after the first
        counts as the same one.
        """
        del sig, frame
        if self._asked_at is None or self._is_retiring:
            self.drain()
        elif self._worker is None or self._context.monotonic() - self._asked_at >= ANOTHER_SIGNAL_S:
            self.should_exit = self.force_exit = True

    def drain(self) -> None:
        """Start to drain, if that has not begun."""
        if self._asked_at is None or self._is_retiring:
            self._is_retiring = False
            self._asked_at = self._context.monotonic()
            self._context.is_draining = self._context.is_leaving = True

    def retire(self) -> None:
        """Leave the port to a newer worker, and end when the requests under way are served."""
        if self._asked_at is not None:
            return
        self._is_retiring = self._context.is_leaving = True
        self._asked_at = self._busy_at = self._context.monotonic()
        for server in self.servers:
            server.close()

    async def on_tick(self, counter: int) -> bool:
        """Advance the drain and return whether to exit. uvicorn calls this ten times a second."""
        if self._asked_at is not None:
            now = self._context.monotonic()
            elapsed_s = now - self._asked_at
            if not self._is_retiring and elapsed_s >= self._drain_grace_s:
                self._context.is_refusing = True
            under_way = len(self._context.exchanges)
            if under_way:
                self._busy_at = now
            if elapsed_s >= self._drain_timeout_s and under_way:
                _log.warning("%d requests did not finish within the drain time-out", under_way)
                self._context.end_with(DrainingError("this gateway is shutting down", retry_after_s=RETRY_AFTER_S))
            has_ended = now - self._busy_at >= LINGER_S if self._is_retiring else self._context.is_refusing
            is_idle = not under_way and has_ended
            if elapsed_s >= self._drain_timeout_s or is_idle:
                self.should_exit = True
        return await super().on_tick(counter)

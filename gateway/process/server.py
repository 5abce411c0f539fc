"""The server, from its start to a graceful end.

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
import signal
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from types import FrameType
from typing import Final

import uvloop

from specpilot.gateway.process.port import Port
from specpilot.gateway.process.worker import Worker
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.wire.errors import DrainingError

LINGER_S: Final = 2.0
"""Seconds without a request after which a replaced worker ends. A larger value keeps connections through clients'
pauses; a smaller one frees memory sooner."""

ANOTHER_SIGNAL_S: Final = 0.5
"""Seconds within which a second signal to a worker counts as the first one: the supervisor may pass the same signal
on."""

TICK_S: Final = 0.1
"""Seconds between two looks at whether the server is to end."""

CLOSING_S: Final = 1.0
"""Seconds at the end in which clients may read the rest of their last answers."""

_log = logging.getLogger(__name__)


class GatewayServer:
    """Serves until a signal, then drains. `worker` is set when it is one of several.

    `ports` are the clients' port and, if there is one, the operators'. `background` are the tasks beside them.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the collaborators of a server
        self,
        context: GatewayContext,
        ports: Sequence[Port],
        background: AbstractAsyncContextManager[None],
        drain_grace_s: float,
        drain_timeout_s: float,
        worker: Worker | None,
    ) -> None:
        self.context = context
        self.ports = ports
        self._background = background
        self._drain_grace_s = drain_grace_s
        self._drain_timeout_s = drain_timeout_s
        self._worker = worker
        self._asked_at: float | None = None
        self._busy_at = 0.0
        self._is_retiring = False
        self.is_serving = False
        self.must_end = False

    def run(self) -> None:
        """Serve until a signal. On the main thread, since it handles the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        uvloop.run(self.serve())

    async def serve(self) -> None:
        """Serve until the end. Log the addresses once requests are accepted."""
        async with self._background:
            for port in reversed(self.ports):
                await port.open()
            if self._worker is not None:
                follow = self._worker.follow(self.retire, self.drain)
                self.context.spawn(asyncio.get_running_loop().create_task(follow))
            else:
                _log.info("listening on %s", self.ports[0].url)
            for port in self.ports[1:]:
                _log.info("pages for operators on %s", port.url)
            self.is_serving = True
            while not self._is_over():  # noqa: ASYNC110 - a drain has no one event that ends it
                await asyncio.sleep(TICK_S)
            await self._close()

    async def _close(self) -> None:
        """Close the ports and the connections."""
        context = self.context
        for port in self.ports:
            port.close()
        for connection in (*context.connections, *context.operators):
            connection.shutdown()
        await asyncio.sleep(TICK_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                while (context.connections or context.operators) and not self.must_end:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(TICK_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain; on a second signal stop at once.

        A worker may get one stop twice, from a service manager and from its supervisor. A signal soon after the first
        counts as the same one.
        """
        del sig, frame
        if self._asked_at is None or self._is_retiring:
            self.drain()
        elif self._worker is None or self.context.monotonic() - self._asked_at >= ANOTHER_SIGNAL_S:
            self.must_end = True

    def drain(self) -> None:
        """Start to drain, if that has not begun."""
        if self._asked_at is None or self._is_retiring:
            self._is_retiring = False
            self._asked_at = self.context.monotonic()
            self.context.is_draining = self.context.is_leaving = True

    def retire(self) -> None:
        """Leave the port to a newer worker, and end when the requests under way are served."""
        if self._asked_at is not None:
            return
        self._is_retiring = self.context.is_leaving = True
        self._asked_at = self._busy_at = self.context.monotonic()
        self.ports[0].close()

    def _is_over(self) -> bool:
        """Advance the drain and return whether to end."""
        if self._asked_at is None or self.must_end:
            return self.must_end
        context, now = self.context, self.context.monotonic()
        elapsed_s = now - self._asked_at
        if not self._is_retiring and elapsed_s >= self._drain_grace_s:
            context.is_refusing = True
        under_way = len(context.exchanges)
        if under_way:
            self._busy_at = now
        if elapsed_s >= self._drain_timeout_s and under_way:
            _log.warning("%d requests did not finish within the drain time-out", under_way)
            context.end_with(DrainingError("this gateway is shutting down", retry_after_s=RETRY_AFTER_S))
        has_ended = now - self._busy_at >= LINGER_S if self._is_retiring else context.is_refusing
        return elapsed_s >= self._drain_timeout_s or (not under_way and has_ended)

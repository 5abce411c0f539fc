"""uvicorn's server with a graceful end.

On the first SIGTERM or SIGINT `/ready` turns 503 while requests are still served for `drain_grace_s`, so that load
balancers can look elsewhere. Then new requests are refused with 503, and those in flight have until `drain_timeout_s`
after the signal. Only then does the listener close; the exit status is 0. A second signal ends it at once.
"""

import logging
import socket
from types import FrameType

from uvicorn.config import Config
from uvicorn.server import Server

from gateway.errors import DrainingError
from gateway.plane import Plane

_log = logging.getLogger(__name__)


class GatewayServer(Server):
    """Serves until told to stop, then drains."""

    def __init__(self, config: Config, plane: Plane, drain_grace_s: float, drain_timeout_s: float) -> None:
        super().__init__(config)
        self._plane = plane
        self._drain_grace_s = drain_grace_s
        self._drain_timeout_s = drain_timeout_s
        self._asked_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `Server`; says where it listens, once signals are heeded and requests are taken."""
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            _log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain, or with a second signal stop at once."""
        del sig, frame
        if self._asked_at is None:
            self._asked_at = self._plane.monotonic()
            self._plane.is_draining = True
        else:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """See `Server`; called ten times a second."""
        if self._asked_at is not None:
            elapsed_s = self._plane.monotonic() - self._asked_at
            if elapsed_s >= self._drain_grace_s:
                self._plane.is_refusing = True
            left = len(self._plane.exchanges)
            if elapsed_s >= self._drain_timeout_s and left:
                _log.warning("%d requests did not finish within the drain time-out", left)
                self._plane.give_up(DrainingError("this gateway is shutting down", retry_after_s=1.0))
            if elapsed_s >= self._drain_timeout_s or (self._plane.is_refusing and not left):
                self.should_exit = True
        return await super().on_tick(counter)

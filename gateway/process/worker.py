"""One of several gateway processes, and its channel to the supervisor.

| message on the channel | direction               | meaning                                        |
|------------------------|-------------------------|------------------------------------------------|
| `READY`                | to the supervisor, once | the worker accepts requests                    |
| `SKIP_REDIS`           | to a starting worker    | no other worker serves in its slot             |
| `RETIRE`               | to a serving worker     | a newer worker takes over                      |
| end of the channel     | to the worker           | the supervisor is gone: drain as after SIGTERM |

A worker without `SKIP_REDIS` replaces a worker that may have read the API keys from Redis, so it reads Redis before it
is ready. If this fails for `REDIS_WAIT_S`, the new worker ends, and the old one stays.
"""

import asyncio
import logging
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.worker_rules import START_LIMIT_S
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.telemetry.metrics import exposition_of
from specpilot.gateway.telemetry.worker_files import publish, read_total
from specpilot.policy.errors import StoreUnavailableError

RETRY_S: Final = 0.5
"""Seconds between two attempts to read Redis before the start."""

PUBLISH_S: Final = 1.0
"""Seconds between two tallies of a worker's counts, and so the largest loss if it dies."""

READY = b"r"
RETIRE = b"q"
SKIP_REDIS = b"h"
REDIS_WAIT_S = START_LIMIT_S / 2
"""Well below the supervisor's limit, so that the worker itself reports why it ends."""


_log = logging.getLogger(__name__)


class Worker:
    """One of several workers. `listener` is its socket on the shared port; it listens once the worker is ready."""

    def __init__(self, number: int, listener: socket.socket, channel: socket.socket, folder: Path) -> None:
        """`folder` holds the workers' tallies."""
        self.number = number
        self.listener = listener
        self._channel = channel
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tally")  # one: tallies are written in order
        self._is_failing = False

    def read_redis_first(self, read: Callable[[], None], monotonic: Callable[[], float]) -> None:
        """Call `read`, which reads Redis, until it succeeds or no other worker serves in the slot. Blocks.

        Raises the `StoreUnavailableError` of `read` when no other worker serves, `StartError` after `REDIS_WAIT_S`.
        """
        give_up_at = monotonic() + REDIS_WAIT_S
        is_waiting = False
        while True:
            try:
                read()
            except StoreUnavailableError as error:
                if self._is_alone(RETRY_S):
                    raise
                if monotonic() >= give_up_at:
                    reason = "the old worker stays, as a new one would not know the API keys in Redis"
                    raise StartError(f"--redis-url: {error}; {reason}; reload again when Redis answers") from error
                if not is_waiting:
                    is_waiting = True
                    _log.warning("the old worker serves on until Redis was read, for %.0f s: %s", REDIS_WAIT_S, error)
            else:
                return

    def _is_alone(self, wait_s: float) -> bool:
        """Wait for `SKIP_REDIS` or the end of the supervisor; return whether one of them came."""
        if not select.select([self._channel], [], [], wait_s)[0]:
            return False
        self._channel.recv(16)
        return True

    def serve(self, retire: Callable[[], None], orphaned: Callable[[], None]) -> None:
        """Report `READY`, and follow the supervisor's messages from now on. Call on the running loop."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)

        def on_order() -> None:
            try:
                message = self._channel.recv(16)
            except ConnectionError:  # it ended without reading `READY`
                message = b""
            if RETIRE in message:
                retire()
            elif not message:
                loop.remove_reader(self._channel)
                _log.warning("the supervisor is gone; draining")
                orphaned()

        loop.add_reader(self._channel, on_order)
        with suppress(BrokenPipeError):  # the supervisor is gone, and `on_order` will notice
            self._channel.send(READY)

    async def run(self, context: GatewayContext) -> None:
        """Publish until cancelled."""
        while True:
            await self.publish(context)
            await asyncio.sleep(PUBLISH_S)

    async def publish(self, context: GatewayContext) -> None:
        """Write this worker's tally for the other workers."""
        context.refresh_metrics()
        tally = context.metrics.tally()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, publish, self.folder, self.number, tally)
        except OSError as error:
            if not self._is_failing:
                _log.error("counts cannot be written to %s: %s", self.folder, error)
            self._is_failing = True
        else:
            self._is_failing = False

    async def exposition(self, context: GatewayContext) -> bytes:
        """Return the metrics of all workers, after publishing this worker's counts. Raises `OSError`.

        Because of this order, a count in a reply is not lost if this worker dies.
        """
        context.refresh_metrics()
        tally = context.metrics.tally()

        def show() -> bytes:
            publish(self.folder, self.number, tally)
            return exposition_of(read_total(self.folder), is_named=context.has_named_series)

        return await asyncio.get_running_loop().run_in_executor(self._thread, show)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

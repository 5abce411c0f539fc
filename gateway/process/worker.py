"""What makes a gateway process one of several: its place among them and its tie to the supervisor.

The channel is a socket to the supervisor. The worker says `READY` on it once; the supervisor may say `RETIRE`; its end
means that the supervisor is gone, and the worker drains as after SIGTERM: no worker outlives its supervisor for long.

Before that the supervisor sends `SKIP_REDIS` when no other worker serves in the slot. A worker without it replaces one
that may know the API keys in Redis, so it does not get ready before it has read Redis too. When it has not within
`REDIS_WAIT_S` it ends, and the old worker stays.
"""

import asyncio
import logging
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.supervision import START_LIMIT_S
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.telemetry.metrics import exposition_of
from specpilot.gateway.telemetry.worker_files import publish, read_total
from specpilot.policy.errors import StoreUnavailableError

RETRY_S: Final = 0.5
"""Seconds between two tries to read Redis before the start."""

PUBLISH_S: Final = 1.0
"""Seconds between two snapshots of a worker's counts: how much its sudden death can lose."""

READY = b"r"
RETIRE = b"q"
SKIP_REDIS = b"h"
REDIS_WAIT_S = START_LIMIT_S / 2
"""Well within what the supervisor allows, so that the worker itself says why it ends."""


_log = logging.getLogger(__name__)


class Worker:
    """One of several workers. `listener` is its socket on the shared port, which begins to listen when it is ready."""

    def __init__(self, number: int, listener: socket.socket, channel: socket.socket, folder: Path) -> None:
        """`folder` is where the workers leave their snapshots."""
        self.number = number
        self.listener = listener
        self._channel = channel
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="snapshot")  # one: snapshots are written in order
        self._is_failing = False

    def read_redis_first(self, read: Callable[[], None], monotonic: Callable[[], float]) -> None:
        """Call `read`, which reads Redis, until it does or no other worker serves in the slot. Before the loop runs.

        Raises `StoreUnavailableError` as `read` does when no other serves, `StartError` after `REDIS_WAIT_S`.
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
                    said = "the old worker stays, as a new one would not know the API keys in Redis"
                    raise StartError(f"--redis-url: {error}; {said}; reload again when Redis answers") from error
                if not is_waiting:
                    is_waiting = True
                    _log.warning("the old worker serves on until Redis was read, for %.0f s: %s", REDIS_WAIT_S, error)
            else:
                return

    def _is_alone(self, wait_s: float) -> bool:
        """Wait until the supervisor says that no other worker serves in the slot, or is gone itself."""
        if not select.select([self._channel], [], [], wait_s)[0]:
            return False
        self._channel.recv(16)
        return True

    def serve(self, retire: Callable[[], None], orphaned: Callable[[], None]) -> None:
        """Tell the supervisor that requests are taken, and on_order it from now on. On the running loop."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)

        def on_order() -> None:
            said = self._channel.recv(16)
            if RETIRE in said:
                retire()
            elif not said:
                loop.remove_reader(self._channel)
                _log.warning("the supervisor is gone; draining")
                orphaned()

        loop.add_reader(self._channel, on_order)
        self._channel.send(READY)

    async def run(self, context: GatewayContext) -> None:
        """Publish for ever."""
        while True:
            await self.publish(context)
            await asyncio.sleep(PUBLISH_S)

    async def publish(self, context: GatewayContext) -> None:
        """Leave this worker's snapshot where the others find it."""
        context.refresh_metrics()
        snapshot = context.metrics.snapshot()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, publish, self.folder, self.number, snapshot)
        except OSError as error:
            if not self._is_failing:
                _log.error("counts cannot be written to %s: %s", self.folder, error)
            self._is_failing = True
        else:
            self._is_failing = False

    async def exposition(self, context: GatewayContext) -> bytes:
        """Return the metrics of all workers. What this one has counted is published first.

        So no number is ever shown that its worker's sudden death could take back. Raises `OSError`.
        """
        context.refresh_metrics()
        snapshot = context.metrics.snapshot()

        def show() -> bytes:
            publish(self.folder, self.number, snapshot)
            return exposition_of(read_total(self.folder), is_named=context.has_named_series)

        return await asyncio.get_running_loop().run_in_executor(self._thread, show)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

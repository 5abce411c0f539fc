"""What makes a gateway process one of several: its place among them and its tie to the supervisor.

The channel is a socket to the supervisor. The worker says `READY` on it once; the supervisor may say `RETIRE`; its end
means that the supervisor is gone, and the worker drains as after SIGTERM: no worker outlives its supervisor for long.

Before that the supervisor says `HURRY` when no other worker serves in the slot.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gateway.metrics import GatewayMetrics, exposition
from gateway.plane import Plane
from gateway.tally_files import publish, read_total

READY = b"r"
RETIRE = b"q"
HURRY = b"h"
PUBLISH_S = 1.0

_log = logging.getLogger(__name__)


class Worker:
    """One of several workers. `listener` is its socket on the shared port, which begins to listen when it is ready."""

    def __init__(self, number: int, listener: socket.socket, channel: socket.socket, folder: Path) -> None:
        """`folder` is where the workers leave their tallies."""
        self.number = number
        self.listener = listener
        self._channel = channel
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tally")  # one: tallies are written in order
        self._is_failing = False

    def serve(self, retire: Callable[[], None], orphaned: Callable[[], None]) -> None:
        """Tell the supervisor that requests are taken, and heed it from now on. On the running loop."""
        loop = asyncio.get_running_loop()
        self._channel.setblocking(False)

        def heed() -> None:
            said = self._channel.recv(16)
            if RETIRE in said:
                retire()
            elif not said:
                loop.remove_reader(self._channel)
                _log.warning("the supervisor is gone; draining")
                orphaned()

        loop.add_reader(self._channel, heed)
        self._channel.send(READY)

    async def run(self, plane: Plane) -> None:
        """Publish for ever."""
        while True:
            await self.publish(plane)
            await asyncio.sleep(PUBLISH_S)

    async def publish(self, plane: Plane) -> None:
        """Leave this worker's tally where the others find it."""
        plane.refresh_metrics()
        tally = plane.metrics.tally()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, publish, self._folder, self.number, tally)
        except OSError as error:
            if not self._is_failing:
                _log.error("counts cannot be written to %s: %s", self._folder, error)
            self._is_failing = True
        else:
            self._is_failing = False

    async def exposition(self, plane: Plane) -> bytes:
        """Return the metrics of all workers. What this one has counted is published first.

        So no number is ever shown that its worker's sudden death could take back. Raises `OSError`.
        """
        plane.refresh_metrics()
        tally = plane.metrics.tally()

        def show() -> bytes:
            publish(self._folder, self.number, tally)
            return exposition(GatewayMetrics.of(read_total(self._folder)))

        return await asyncio.get_running_loop().run_in_executor(self._thread, show)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False)

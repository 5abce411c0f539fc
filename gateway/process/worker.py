"""One of several gateway processes, and its channel to the supervisor.

Each message on the channel is a line:

| message      | direction              | meaning                                                                |
|--------------|------------------------|------------------------------------------------------------------------|
| `READY`      | to the supervisor      | the worker accepts requests                                            |
| a tally      | to the supervisor      | the worker's numbers as they are now (`gateway.telemetry.families`)    |
| `READ`       | to the supervisor      | it is to send the tallies of all workers                               |
| `SKIP_REDIS` | to a starting worker   | no other worker serves in its slot (`worker_rules.Order`)              |
| `RETIRE`     | to a serving worker    | a newer worker takes over (the same)                                   |
| tallies      | to the worker          | an array of all workers' tallies, and the sum of the ended ones'       |
| the end      | to the worker          | the supervisor is gone: drain as after SIGTERM                         |

A worker without `SKIP_REDIS` replaces a worker that may have read the API keys from Redis, so it reads Redis before it
is ready. If this fails for `REDIS_WAIT_S`, the new worker ends, and the old one stays.
"""

import asyncio
import logging
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.worker_rules import START_LIMIT_S, Order
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.telemetry.metrics import exposition_of
from specpilot.policy.errors import StoreUnavailableError

RETRY_S: Final = 0.5
"""Seconds between two attempts to read Redis before the start."""

PUBLISH_S: Final = 1.0
"""Seconds between two tallies of a worker, and so the largest loss if it dies."""

ANSWER_S: Final = 5.0
"""Longest wait for the supervisor, in seconds. It answers in milliseconds, unless it is stopped."""

LINE_BYTES: Final = 1 << 30
"""Limit of a message, far above any tally: the other end is a program of our own."""

READY = b"ready\n"
READ = b"read\n"
REDIS_WAIT_S = START_LIMIT_S / 2
"""Well below the supervisor's limit, so that the worker itself reports why it ends."""


_log = logging.getLogger(__name__)


class Worker:
    """One of several workers. `listener` is its socket on the shared port; it listens once the worker is ready."""

    def __init__(self, number: int, listener: socket.socket, channel: socket.socket) -> None:
        self.number = number
        self.listener = listener
        self._channel = channel
        self._tallies: asyncio.Future[bytes] | None = None  # the answer to `READ`
        self._is_ending = False

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

    async def connect(self) -> None:
        """Use the channel on the running loop from now on."""
        self._channel.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._channel, limit=LINE_BYTES)

    async def follow(self, retire: Callable[[], None], orphaned: Callable[[], None]) -> None:
        """Report `READY`, and follow the supervisor's messages until it is gone."""
        self._writer.write(READY)
        with suppress(ConnectionError):  # it ended without reading everything
            async for line in self._reader:
                if line == Order.RETIRE.value:
                    retire()
                elif line.startswith(b"[") and self._tallies is not None and not self._tallies.done():
                    self._tallies.set_result(line)
        if self._tallies is not None and not self._tallies.done():
            self._tallies.set_exception(ConnectionResetError("the supervisor is gone"))
        if not self._is_ending:
            self._writer.close()
            _log.warning("the supervisor is gone; draining")
            orphaned()

    async def run(self, context: GatewayContext) -> None:
        """Publish this worker's tally until cancelled."""
        with suppress(ConnectionError):  # the supervisor is gone, and `follow` will notice
            while True:
                self._writer.write(context.tally() + b"\n")
                await self._writer.drain()
                await asyncio.sleep(PUBLISH_S)

    async def exposition(self, context: GatewayContext) -> bytes:
        """Return the metrics of all workers, after publishing this worker's tally.

        Because of this order, a count in a reply is not lost if this worker dies. Raises `ConnectionError`, and
        `TimeoutError` when the supervisor does not answer for `ANSWER_S`.
        """
        async with asyncio.timeout(ANSWER_S):
            await self._writer.drain()  # first, so that nothing piles up before a supervisor that does not read
            self._tallies = asyncio.get_running_loop().create_future()
            self._writer.writelines((context.tally(), b"\n", READ))
            tallies = await self._tallies
        return await asyncio.to_thread(exposition_of, tallies, is_named=context.has_named_series)

    async def close(self, context: GatewayContext) -> None:
        """Publish the last tally, and close the channel."""
        self._is_ending = True
        self._writer.write(context.tally() + b"\n")
        self._writer.close()
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                await self._writer.wait_closed()

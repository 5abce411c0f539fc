"""One attempt of one request at one engine.

| state              | `_task` | `_connection` | next state                                                     |
|--------------------|---------|---------------|----------------------------------------------------------------|
| connecting         | set     | `None`        | connected; failed (the relay's `unconnected` or `fail`)        |
| connected          | `None`  | set           | detached, when the response is whole or the connection is gone |
| detached or failed | `None`  | `None`        |                                                                |

`drop` is possible in every state. It closes an open connection and cancels connecting, so that an engine never works
for a client that has disconnected. The engine's outstanding work includes the attempt from `start` to `drop`.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.engines.out_of_files import OutOfFilesError
from specpilot.gateway.engines.probe import STOOD_STILL_S
from specpilot.gateway.engines.upstream import EngineConnection, Reader
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.wire.errors import ConnectionsFullError


class AttemptReader(Reader, Protocol):
    """The relay of the attempt."""

    def connecting(self) -> None:
        """There is no kept connection, so a new one is made."""

    def connected(self) -> None:
        """There is a connection: call `send` now."""

    def unconnected(self, reason: str) -> None:
        """There is no connection: `connect` (refused or unreachable) or `connect_timeout`."""

    def fail(self, error: Exception) -> None:
        """The gateway itself is at fault."""


class Attempt:
    """An attempt at `engine`, worth `work_tokens`. `_relay`, the request's, is set from start to end.

    `has_failed`: its failure is counted, and counts once, whatever becomes of the engine's answer.
    """

    __slots__ = ("_connection", "_context", "_relay", "_task", "_work_tokens", "engine", "has_failed")

    def __init__(self, context: GatewayContext, engine: Engine, work_tokens: int) -> None:
        self._context = context
        self._relay: AttemptReader | None = None
        self._work_tokens = work_tokens
        self._connection: EngineConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self.engine = engine
        self.has_failed = False

    def start(self, relay: AttemptReader, *, is_fresh: bool) -> None:
        """Acquire a connection: a kept one at once, unless `is_fresh`; else a new one. `relay` gets what happens."""
        engine = self.engine
        self._relay = relay
        engine.outstanding_requests += 1
        engine.outstanding_tokens += self._work_tokens
        if not is_fresh:
            self._connection = engine.pool.acquire(self._context.monotonic())
            if self._connection is not None:
                relay.connected()
                return
        relay.connecting()
        self._task = self._context.spawn(asyncio.get_running_loop().create_task(self._connect()))

    def send(self, request: Iterable[bytes | memoryview]) -> None:
        """Send the whole request."""
        assert self._connection is not None
        assert self._relay is not None
        self._connection.send(self._relay, request)

    def pause(self) -> None:
        """Stop reading: the client is slower than the engine."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read again: the client has read enough."""
        if self._connection is not None:
            self._connection.resume()

    def detach(self) -> None:
        """Give up the connection: its response is complete, or it is closed."""
        self._connection = None

    def drop(self) -> None:
        """End the attempt, and close its open connection."""
        relay, self._relay = self._relay, None
        if relay is None:
            return
        self.engine.outstanding_requests -= 1
        self.engine.outstanding_tokens -= self._work_tokens
        if self._connection is not None:
            self._connection.release(relay)
            self._connection = None
        if self._task is not None:
            self._task.cancel()
        if self._context.admission is not None:
            self._context.serve_queue()

    async def _connect(self) -> None:
        try:
            await self._open()
        except Exception as error:  # noqa: BLE001 - no caller awaits this task, and the client must get an answer
            self._task = None
            if self._relay is not None:
                self._relay.fail(error)

    async def _open(self) -> None:
        limit_s = self._context.bounds.connect_timeout_s
        due = self._context.monotonic() + limit_s
        try:
            async with asyncio.timeout(limit_s):
                connection = await self.engine.pool.connect()
        except OutOfFilesError as error:
            message = "the gateway has no file descriptor left for a connection to an engine (ulimit -n); try again"
            raise ConnectionsFullError(message, retry_after_s=RETRY_AFTER_S) from error
        except OSError as error:  # TimeoutError is one
            if isinstance(error, TimeoutError) and self._context.monotonic() - due > STOOD_STILL_S:
                await self._open()  # this process was blocked, so the engine may have answered in time
                return
            self._task = None
            reason = "connect_timeout" if isinstance(error, TimeoutError) else "connect"
            self._context.metrics.count_upstream_error(reason)
            self.engine.outlier_detection.fail(self._context.monotonic(), is_connect=True)
            if self._relay is not None:
                self._relay.unconnected(reason)
            return
        self._task = None
        if self._relay is None:
            connection.abort()
            return
        self._connection = connection
        self._relay.connected()

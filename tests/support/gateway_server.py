"""A real gateway for a test: in a thread of this process on its own uvloop, or as the program that users start."""

import asyncio
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import orjson
import uvloop

from specpilot.gateway.app import create_server
from specpilot.gateway.engines.dns import Lookup, lookup
from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.clock import Clock, SystemClock
from tests.support.patience import PATIENCE_S


class GatewayThread:
    """A gateway on a free port; stops at once when asked to.

    With a clock that a test moves by hand no time-out expires, no bucket fills and no probe is due until it is moved.
    """

    def __init__(self, look_up: Lookup = lookup, clock: Clock | None = None, **settings: Any) -> None:
        self.log = io.BytesIO()
        self.server = create_server(GatewaySettings(port=0, **settings), clock or SystemClock(), self.log, look_up)
        self.port: int = self.server.ports[0].listener.getsockname()[1]
        self._thread = threading.Thread(target=lambda: uvloop.run(self.server.serve()))

    @property
    def context(self) -> Any:
        return self.server.context

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> "GatewayThread":
        self._thread.start()
        async with asyncio.timeout(PATIENCE_S):
            while not self.server.is_serving:  # noqa: ASYNC110 - another thread's flag
                await asyncio.sleep(0.005)
        return self

    async def on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the gateway's own loop."""

        async def run() -> None:
            function(*arguments)

        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), self.context._loop))

    async def adopt(self, snapshot: Snapshot) -> None:
        """Go on with this snapshot, as if it were read from Redis."""
        await self.on_loop(self.context.adopt, snapshot)

    def leave(self) -> None:
        """Begin to stop; `join` waits for the end."""
        self.server.must_end = True

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def log_lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.log.getvalue().splitlines()]


class LoopWatch:
    """What is seen between passes of a gateway's loop, within a `with`.

    `longest_s` is how long one pass kept all others waiting, in CPU seconds of the loop's own thread, which other
    processes on its cores do not lengthen. `body_bytes` are the sizes that the bodies had, together.
    """

    def __init__(self, gateway: GatewayThread) -> None:
        self.longest_s = 0.0
        self.body_bytes: set[int] = set()
        self._context = gateway.context
        self._loop = gateway.context._loop
        self._at: float | None = None
        self._is_over = False

    def _look(self) -> None:
        now = time.thread_time()
        if self._at is not None:
            self.longest_s = max(self.longest_s, now - self._at)
        self._at = now
        self.body_bytes.add(self._context.body_bytes)
        if not self._is_over:
            self._loop.call_later(0.001, self._look)

    def __enter__(self) -> Self:
        self._loop.call_soon_threadsafe(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True


class GatewayProgram:
    """`python -m gateway` with `arguments`, on a port that it picks."""

    def __init__(self, arguments: Sequence[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "REDIS_URL"}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "specpilot.gateway", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self.errors: list[str] = []
        self.port = 0
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.errors.append(line)
                found = re.search(r"listening on https?://[^ ]*:(\d+)", line)
                if found:
                    self.port = int(found[1])

    async def started(self) -> "GatewayProgram":
        async with asyncio.timeout(PATIENCE_S):
            while not self.port:
                assert self.process.poll() is None, self.errors
                await asyncio.sleep(0.02)
        return self

    async def end(self, timeout_s: float = PATIENCE_S) -> int:
        status = await asyncio.to_thread(self.process.wait, timeout_s)
        self._reader.join()
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()


@asynccontextmanager
async def running_gateway(*arguments: str) -> AsyncIterator[GatewayProgram]:
    """A program that listens, until the end of the context."""
    program = GatewayProgram(arguments)
    try:
        yield await program.started()
    finally:
        program.close()


async def eventually(check: Any, timeout_s: float = PATIENCE_S) -> Any:
    """Wait until `check()` is true; return what it said."""
    end = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"never came true: {check}"
        await asyncio.sleep(0.01)

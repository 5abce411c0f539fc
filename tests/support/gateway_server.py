"""A real gateway for a test: in a thread of this process on its own uvloop, or as the program that users start."""

import asyncio
import io
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import orjson
import uvloop

from specpilot.gateway.app import create_server
from specpilot.gateway.engines.dns import Lookup, lookup
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.clock import SystemClock


class GatewayThread:
    """A gateway on a free port; stops at once when asked to."""

    def __init__(self, look_up: Lookup = lookup, **settings: Any) -> None:
        self.log = io.BytesIO()
        self.server, listener = create_server(GatewaySettings(port=0, **settings), SystemClock(), self.log, look_up)
        self.port: int = listener.getsockname()[1]
        self._thread = threading.Thread(target=lambda: uvloop.run(self.server.serve([listener])))

    @property
    def context(self) -> Any:
        return self.server._context

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> "GatewayThread":
        self._thread.start()
        async with asyncio.timeout(10):
            while not self.server.started:  # noqa: ASYNC110 - another thread's flag
                await asyncio.sleep(0.005)
        return self

    def leave(self) -> None:
        """Begin to stop; `join` waits for the end."""
        self.server.should_exit = True

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()

    def log_lines(self) -> list[dict[str, Any]]:
        return [orjson.loads(line) for line in self.log.getvalue().splitlines()]


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
        async with asyncio.timeout(20):
            while not self.port:
                assert self.process.poll() is None, self.errors
                await asyncio.sleep(0.02)
        return self

    async def end(self, timeout_s: float = 10.0) -> int:
        status = await asyncio.to_thread(self.process.wait, timeout_s)
        self._reader.join()
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()


async def eventually(check: Any, timeout_s: float = 5.0) -> Any:
    """Wait until `check()` is true; return what it said."""
    end = time.monotonic() + timeout_s
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end, f"never came true: {check}"
        await asyncio.sleep(0.01)

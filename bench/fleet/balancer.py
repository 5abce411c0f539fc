"""A load balancer of connections (layer 4), like kube-proxy or a network load balancer, on a thread of its own.

A new connection goes to a backend whose `/ready` is 200, round robin, and to another when one refuses it. An open
connection is never moved: it ends when either side closes it. The balancer does not parse requests.
"""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress

from specpilot.bench.load.asker import is_ready

LOOK_EVERY_S = 0.5
"""Seconds between two requests for `/ready`: a drain's grace must be longer."""

CLOSING_S = 0.1
_CHUNK = 65_536


class Balancer:
    """Listens on `port` of the loopback."""

    def __init__(self, port: int, backends: Iterable[int]) -> None:
        """`backends` are ports of the loopback; `add` and `remove` change them."""
        self._port = port
        self._backends = list(backends)
        self._ready: list[int] = []
        self._turn = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop
        self._stopped: asyncio.Event
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        """Begin; returns when it listens and has checked its backends once."""
        self._thread.start()
        self._started.wait()

    def close(self) -> None:
        """Stop, and close every connection."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    def add(self, port: int) -> None:
        """Add a backend; it gets connections when it is ready."""
        self._backends.append(port)

    def remove(self, port: int) -> None:
        """Remove a backend."""
        self._backends.remove(port)

    async def _run(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        looking = asyncio.create_task(self._look())
        await self._stopped.wait()
        looking.cancel()
        server.close()
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(CLOSING_S)

    async def _look(self) -> None:
        while True:
            backends = list(self._backends)
            found = await asyncio.gather(*(is_ready(port) for port in backends))
            self._ready = [port for port, is_ready in zip(backends, found, strict=True) if is_ready]
            self._started.set()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = await self._connected()
        if backend is None:
            writer.close()
            return
        ends = {writer, backend[1]}
        self._open |= ends
        try:
            await asyncio.gather(_copy(reader, backend[1]), _copy(backend[0], writer))
        finally:
            self._open -= ends

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Return a connection to a backend; `None` when all refuse."""
        for _ in range(len(self._backends)):
            candidates = self._ready or self._backends
            self._turn += 1
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", candidates[self._turn % len(candidates)])
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until one side closes; then close the other."""
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()

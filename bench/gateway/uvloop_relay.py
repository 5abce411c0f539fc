"""A relay of bytes on uvloop: the lower bound of a gateway on this stack.

`python -m specpilot.bench.gateway.uvloop_relay PORT ENGINE_PORT`

It passes bytes both ways, with one connection to the engine for each of a client. httptools parses both directions,
which a gateway needs to know where a message ends; the relay reads no header and counts, chooses and logs nothing. Its
cost is the stack's; a gateway's cost above it is its own. Compiled by mypyc it would take 0.2 µs a request less, of
about 14: not worth a build.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Any, cast

import httptools
import uvloop
from typing_extensions import override


class Side(asyncio.Protocol):
    """One side of a pair. `parser_of` makes the httptools parser of its bytes."""

    def __init__(self, parser_of: Callable[["Side"], Any]) -> None:
        self._feed = parser_of(self).feed_data
        self._early: list[bytes] = []
        self.messages = 0
        self.other: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's own is one in all but name

    def join(self, other: asyncio.Transport) -> None:
        """Write to `other` from now on, beginning with the bytes that have arrived."""
        self.other = other
        other.writelines(self._early)

    @override
    def data_received(self, data: bytes) -> None:
        self._feed(data)
        if self.other is None:
            self._early.append(data)
        else:
            self.other.write(data)

    def on_message_complete(self) -> None:
        """A message has ended."""
        self.messages += 1

    @override
    def connection_lost(self, _error: Exception | None) -> None:
        if self.other is not None:
            self.other.close()


class Client(Side):
    """The side that asks."""

    def __init__(self, engine_port: int) -> None:
        super().__init__(httptools.HttpRequestParser)
        self._engine_port = engine_port

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._joining = asyncio.get_running_loop().create_task(self._join())

    async def _join(self) -> None:
        engine = Side(httptools.HttpResponseParser)
        await asyncio.get_running_loop().create_connection(lambda: engine, "127.0.0.1", self._engine_port)
        engine.join(self.transport)
        self.join(engine.transport)


async def _serve(port: int, engine_port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Client(engine_port), "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), int(sys.argv[2])))

"""TCP servers in a test's event loop that end with all their connections."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_PASSES_TO_ACCEPT = 5
"""Passes of the event loop within which a connection that it has accepted is open, ended and closed."""


@asynccontextmanager
async def serving(protocol: Callable[[], asyncio.BaseProtocol]) -> AsyncIterator[int]:
    """Serve each connection by a `protocol` of its own, and yield the port."""
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await end(server)


async def end(server: asyncio.Server) -> None:
    """Stop serving, and end every connection, also one that is accepted but has no transport yet.

    `asyncio.Server.close` would leave such a connection's socket open.
    """
    loop = asyncio.get_running_loop()
    addresses = [listener.getsockname() for listener in server.sockets]
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())  # accept no further connections
    for _ in range(_PASSES_TO_ACCEPT):
        for transport in [*loop._transports.values()]:  # type: ignore[attr-defined]
            if transport.get_extra_info("sockname") in addresses:
                transport.abort()
        await asyncio.sleep(0)
    server.close()
    await server.wait_closed()

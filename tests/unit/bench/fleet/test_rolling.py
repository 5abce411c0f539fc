"""Violated expectations of a rolling update, and its balancer."""

import asyncio
from collections.abc import Iterator

import pytest

from specpilot.bench.fleet.balancer import Balancer
from specpilot.bench.fleet.rolling import broken_promises, markdown
from tests.support.stack import free_port


class Backend:
    """Answers `/ready`, and everything else with its own name; its connections stay open."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.port = free_port()
        self.is_ready = True

    async def start(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()) and line.strip():
            if line.startswith(b"GET /ready"):
                writer.write(b"HTTP/1.1 %b\r\n\r\n" % (b"200 OK" if self.is_ready else b"503 No"))
                break
            writer.write(self.name + b"\n")
        writer.close()


@pytest.fixture
def balancer() -> Iterator[Balancer]:
    found = Balancer(free_port(), ())
    yield found
    found.close()


async def who(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    writer.write(b"who\n")
    return (await reader.readline()).strip()


async def test_connections_go_to_who_is_ready_and_stay_where_they_are(balancer: Balancer) -> None:
    backends = [Backend(b"a"), Backend(b"b")]
    servers = [await backend.start() for backend in backends]
    for backend in backends:
        balancer.add(backend.port)
    await asyncio.to_thread(balancer.start)
    port = balancer._port
    kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
    assert sorted([await who(*item) for item in kept]) == [b"a", b"a", b"b", b"b"]
    backends[0].is_ready = False
    await asyncio.sleep(1.2)
    assert sorted([await who(*item) for item in kept]) == [b"a", b"a", b"b", b"b"]
    fresh = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
    assert {await who(*item) for item in fresh} == {b"b"}
    backends[0].is_ready = True
    servers[1].close()  # refused before the next check: another backend is tried
    await asyncio.sleep(1.2)
    again = await asyncio.open_connection("127.0.0.1", port)
    assert await who(*again) == b"a"
    for _, writer in (*kept, *fresh, again):
        writer.close()
    await asyncio.to_thread(balancer.close)
    for server in servers:
        server.close()
    await asyncio.sleep(0.1)  # the closed connections end before the loop


@pytest.mark.parametrize(
    ("changes", "faults", "said"),
    [
        ({}, [], []),
        ({"failed": 2}, [], ["engine: 2 failed of 9"]),
        ({"lost": 1}, [], ["engine: 1 lost of 9"]),
        ({"sent": 0}, [], ["engine: nothing was sent"]),
        ({}, ["not one controller leads"], ["not one controller leads"]),
    ],
)
def test_promises(changes: dict[str, int], faults: list[str], said: list[str]) -> None:
    row = {"seconds": 20.0, "sent": 9, "failed": 0, "lost": 0, **changes}
    assert broken_promises({"engine": row}, faults) == said
    assert f"| engine | 20 | {row['sent']} | {row['failed']} | {row['lost']} |" in markdown({"engine": row})

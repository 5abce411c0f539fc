"""A client with a large body, or much to do in one read, lets others have the loop and goes on with the next turn."""

import asyncio

import pytest

from specpilot.gateway.app import create_context
from specpilot.gateway.pages import Pages
from specpilot.gateway.relay.client_connection import ClientConnection
from specpilot.gateway.relay.client_reader import GIVE_WAY_BYTES, LINES_A_TURN, PIECE_BYTES
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.clock import SystemClock

READ = 256_000


class Transport(asyncio.Transport):
    """Notes whether it may read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = self._is_closing = False
        self.pauses = 0
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    def pause_reading(self) -> None:
        assert not self._is_closing
        self.is_paused = True
        self.pauses += 1

    def resume_reading(self) -> None:
        assert not self._is_closing
        self.is_paused = False


def connected() -> tuple[ClientConnection, Transport]:
    context = create_context(GatewaySettings(engine="http://127.0.0.1:1"), SystemClock(), None)  # type: ignore[arg-type]
    pages = Pages(context, None, {}, context.exposition)
    client, transport = ClientConnection(context, pages, asyncio.get_running_loop()), Transport()
    client.connection_made(transport)
    return client, transport


async def test_a_large_body_gives_way_after_two_reads() -> None:
    client, transport = connected()
    client.data_received(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 16000000\r\n\r\n")
    read = 0
    while read < 15_000_000:
        since = 0
        while not transport.is_paused:
            client.data_received(b"x" * READ)
            since += READ
        assert since <= GIVE_WAY_BYTES + READ
        read += since
        await asyncio.sleep(0)
        assert not transport.is_paused
    assert transport.pauses >= 25
    transport.close()
    client.connection_lost(None)


async def test_small_reads_and_a_client_that_has_gone_are_left_alone() -> None:
    client, transport = connected()
    for _ in range(2000):
        client.data_received(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 1000\r\n\r\n" + b"x" * 1000)
    assert not transport.pauses
    client, transport = connected()
    client.data_received(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: 16000000\r\n\r\n")
    while not transport.is_paused:
        client.data_received(b"x" * READ)
    transport.close()
    client.connection_lost(None)
    await asyncio.sleep(0)  # nobody resumes what is closed


PLAIN = b"GET /score HTTP/1.1\r\nhost: g\r\n\r\n"
UPGRADE = b"GET /score HTTP/1.1\r\nhost: g\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
WITHOUT_LINES = b"GET /score?%s HTTP/1.1\r\nhost: g\r\n\r\n" % (b"x" * 3000)


async def turns(client: ClientConnection, transport: Transport, read: bytes) -> list[int]:
    """Let `client` have `read` at once; return how many answers each turn of the loop wrote."""
    written = transport.written
    found = []
    client.data_received(read)
    while True:
        found.append(len(written))
        written.clear()
        if not transport.is_paused:
            return found
        await asyncio.sleep(0)


@pytest.mark.parametrize("asked", [PLAIN, UPGRADE, WITHOUT_LINES], ids=["plain", "upgrade", "long"])
async def test_many_requests_in_one_read_are_answered_in_turns_and_in_order(asked: bytes) -> None:
    client, transport = connected()
    count = READ // len(asked)
    found = await turns(client, transport, asked * count)
    assert sum(found) == count
    assert max(found) <= LINES_A_TURN // 2
    assert (await turns(client, transport, PLAIN)) == [1]
    transport.close()
    client.connection_lost(None)


@pytest.mark.parametrize("size", [1, PIECE_BYTES + 1])
async def test_what_comes_while_a_read_waits_for_its_turn_is_read_after_it(size: int) -> None:
    client, transport = connected()
    whole = PLAIN * (READ // len(PLAIN))
    client.data_received(whole[:-size])
    client.data_received(whole[-size:])
    found = await turns(client, transport, b"")
    assert sum(found) == READ // len(PLAIN)
    assert max(found) <= LINES_A_TURN // 2


async def test_a_body_in_chunks_of_one_byte_is_read_in_turns() -> None:
    client, transport = connected()
    context = client._context
    client.data_received(b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ntransfer-encoding: chunked\r\n\r\n")
    read, count = b"1\r\nx\r\n" * (READ // 6), 0
    client.data_received(read)
    while transport.is_paused:
        assert context.body_bytes - count <= LINES_A_TURN
        count = context.body_bytes
        await asyncio.sleep(0)
    assert count > 0
    assert context.body_bytes == READ // 6
    transport.close()
    client.connection_lost(None)
    assert context.body_bytes == 0


async def test_what_waits_is_let_go_of_with_its_client() -> None:
    client, transport = connected()
    client.data_received(PLAIN * (READ // len(PLAIN)))
    answered = len(transport.written)
    transport.close()
    client.connection_lost(None)
    await asyncio.sleep(0)
    assert len(transport.written) == answered
    assert client._unread == b""


async def test_nothing_that_comes_after_what_cannot_be_read_is_looked_at() -> None:
    client, transport = connected()
    found = await turns(client, transport, PLAIN * 100 + b"no request at all\r\n\r\n" + PLAIN * 1000)
    assert sum(found) == 101
    assert await turns(client, transport, PLAIN) == [0]

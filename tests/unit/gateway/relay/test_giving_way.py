"""A client with a large body lets others have the loop, and goes on with the next turn."""

import asyncio
from typing import Any, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from specpilot.gateway.app import create_app
from specpilot.gateway.relay.client_connection import ClientConnection
from specpilot.gateway.relay.tuning import GIVE_WAY_BYTES
from specpilot.gateway.settings import GatewaySettings
from specpilot.policy.clock import SystemClock

READ = 256_000


class Transport(asyncio.Transport):
    """Notes whether it may read."""

    def __init__(self) -> None:
        super().__init__()
        self.is_paused = self._is_closing = False
        self.pauses = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

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
    _, context = create_app(GatewaySettings(engine="http://127.0.0.1:1"), SystemClock(), None)  # type: ignore[arg-type]
    config = Config(cast("Any", lambda: None), ws="none", lifespan="off", log_config=None)
    config.load()
    client, transport = ClientConnection(context, config, ServerState(), {}, asyncio.get_running_loop()), Transport()
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

"""The canned engine's failures are those that the fault bench expects."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from specpilot.bench.gateway.canned_engine import CannedConnection, CannedEngine
from tests.support.gateway_client import call, request

CANNED = 'x-request-id: r1\r\nx-canned: {"events": 3}\r\n'


@pytest.fixture
async def canned() -> AsyncIterator[tuple[CannedEngine, int]]:
    engine = CannedEngine()
    server = await asyncio.get_running_loop().create_server(lambda: CannedConnection(engine), "127.0.0.1", 0)
    yield engine, server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize(
    ("mode", "status", "begins"),
    [
        ({"error_event": True}, 200, b'data: {"error"'),
        ({"status": 401}, 401, b'{"error"'),
        ({}, 200, b'data: {"id": "r1"'),
    ],
)
async def test_a_mode_is_how_every_request_fares(
    canned: tuple[CannedEngine, int], mode: dict[str, Any], status: int, begins: bytes
) -> None:
    engine, port = canned
    engine.mode = mode
    answer = await call(port, request(headers=CANNED))
    assert (answer.status, answer.body[: len(begins)]) == (status, begins)
    assert not engine.held


async def test_a_mute_engine_accepts_and_says_nothing_but_what_it_holds(canned: tuple[CannedEngine, int]) -> None:
    engine, port = canned
    engine.mode = {"mute": True}
    for sent in (request(headers=CANNED), request(path="/v1/models", method="GET")):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(port, sent), 0.2)
    assert (await call(port, request(path="/slots", method="GET"))).json["requests"] == 0

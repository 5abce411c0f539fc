"""Connecting to an engine that takes no connection while this process is blocked, and one after that."""

import asyncio
import socket

import pytest

from specpilot.gateway.engines.probe import STOOD_STILL_S
from specpilot.gateway.process import background
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, request
from tests.support.gateway_server import eventually
from tests.support.hand_clock import Clock

TIMEOUT_S = 0.8
"""Less than the second after which the system itself would ask the listener again."""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
    writer.close()


async def test_a_process_that_stood_still_while_it_connected_tries_again_and_blames_nobody(
    start_gateway: StartGateway, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "FIRST_PROBE_S", 0.1)  # the first probe finds out nothing
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),  # it fills the line
    ):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        gateway = await start_gateway(engine=(url,), clock=clock, connect_timeout_s=TIMEOUT_S)
        context = gateway.context
        [engine] = context.fleet.engines.values()
        engine.cards = ({"id": "tiny"},)
        context.fleet.index()
        async with await Client.connect(gateway.port, request()) as client:
            await eventually(lambda: engine.outstanding_requests == 1)
            clock.at += TIMEOUT_S + 2 * STOOD_STILL_S  # so late it is when the time-out fires
            listener.setblocking(False)
            async with await asyncio.start_server(answer, sock=listener):
                assert (await client.answer()).status == 200
    assert not context.metrics.upstream_errors

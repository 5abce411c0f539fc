"""Clients that leave or do not read, in every phase: the engine is free again, and nothing is held."""

import asyncio
import gc

import pytest

from specpilot.gateway.relay.client_connection import ClientConnection
from specpilot.gateway.relay.exchange import Exchange
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, Client, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.scripted_engine import HANG, SSE_HEAD, Script, ScriptedEngine, chunk, event, reply

SWEEPS = 25
"""Passes of the gateway's timer, ten a second, within which an engine is free: ten times the 250 ms that are promised.

A machine that stands still makes none. And as its clock stands still in these tests, no time-out frees the engine.
"""


@pytest.fixture
async def gateway(engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock) -> GatewayThread:
    return await start_gateway(engine, clock=clock)


async def assert_freed(engine: ScriptedEngine, gateway: GatewayThread, leave: int) -> None:
    await engine.seen[0].until_closed()
    assert gateway.context._sweeps - leave <= SWEEPS


@pytest.mark.parametrize(
    ("script", "body"),
    [
        ([HANG], None),
        ([HANG], STREAM),
        ([SSE_HEAD, HANG], STREAM),
        ([SSE_HEAD, chunk(event("a")), HANG], STREAM),
        ([SSE_HEAD, chunk(event("a"))[:-9], HANG], STREAM),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", HANG], None),
        ([b"HTTP/1.1 400 Bad Request\r\ncontent-length: 99\r\n\r\n{", HANG], None),
    ],
    ids=["wait", "wait stream", "head", "stream", "mid chunk", "mid json", "mid error"],
)
@pytest.mark.parametrize("is_reset", [False, True], ids=["closes", "resets"])
async def test_a_client_that_leaves_frees_the_engine(
    engine: ScriptedEngine,
    gateway: GatewayThread,
    clock: Clock,
    script: Script,
    body: dict[str, object] | None,
    is_reset: bool,
) -> None:
    says = asyncio.Event()
    engine.script = [says, *script]
    async with await Client.connect(gateway.port, request(body)) as client:
        await engine.wait_seen(1)
        [exchange] = gateway.context.exchanges
        clock.at += 1.0  # what the gateway hears from now on is what the engine says
        says.set()
        await eventually(lambda: script == [HANG] or exchange._relay.last_at == clock.at)
        leave = gateway.context._sweeps
        if is_reset:
            client.abort()
        else:
            client.close()
    await assert_freed(engine, gateway, leave)
    await eventually(lambda: not gateway.context.exchanges)
    [one] = gateway.context.fleet.engines.values()
    assert (one.outstanding_requests, one.outstanding_tokens) == (0, 0)
    assert sum(gateway.context.metrics.disconnects.values()) == 1
    assert gateway.context.metrics.cells["tiny", "default"].requests == {499: 1}


async def test_a_client_that_leaves_while_it_sends_reaches_no_engine(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    async with await Client.connect(gateway.port, request()[:-5]):
        await eventually(lambda: gateway.context.exchanges)
    await eventually(lambda: gateway.context.metrics.disconnects == {"request": 1})
    assert engine.seen == []


@pytest.mark.usefixtures("empty_heap")
@pytest.mark.parametrize(
    "sent",
    [
        request()[:20],
        request()[:-5],
        request(),
        request() * 2,
        request(path="/health", method="GET"),
        b"nonsense\r\n\r\n",
    ],
    ids=["head", "body", "answered", "pipelined", "local", "refused"],
)
async def test_what_a_client_sent_is_freed_when_it_has_left(gateway: GatewayThread, sent: bytes) -> None:
    """At once: what points at itself waits until garbage is next collected, which is many requests later."""
    kinds = (ClientConnection, Exchange)
    gc.disable()
    try:
        async with await Client.connect(gateway.port, sent):
            await eventually(lambda: gateway.context.connections)
            await asyncio.sleep(0.05)
        await eventually(lambda: not gateway.context.connections)
        await eventually(lambda: not [item for item in gc.get_objects() if type(item) in kinds])
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "behind", [request() * 2, request(path="/health", method="GET")], ids=["more", "another route"]
)
async def test_a_client_that_leaves_while_pipelined_requests_wait_frees_the_engine(
    engine: ScriptedEngine, gateway: GatewayThread, behind: bytes
) -> None:
    engine.script = [HANG]
    async with await Client.connect(gateway.port, request() + behind):
        await engine.wait_seen(1)
        leave = gateway.context._sweeps
    await assert_freed(engine, gateway, leave)
    assert len(engine.seen) == 1


async def test_a_client_that_sends_and_never_reads_holds_no_memory(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    size = 4_000_000
    engine.script = [reply(b'"' + b"x" * size + b'"')]
    async with await Client.connect(gateway.port) as client:
        client.writer.transport.pause_reading()
        client.send(request() * 12)
        await engine.wait_seen(1)
        [connection] = await eventually(lambda: [item for item in [*gateway.context.connections] if item.is_stalled])
        assert connection.transport.get_write_buffer_size() < 2 * size
        assert len(engine.seen) < 6  # the kernel's buffers took the first ones
        client.writer.transport.resume_reading()
        for _ in range(12):
            answer = await client.answer()
            assert len(answer.body) == size + 2


async def test_the_end_of_an_answer_that_nobody_reads_is_given_up(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [reply(b'"' + b"x" * 20_000_000 + b'"')]
    gateway = await start_gateway(engine, idle_timeout_s=1.0)
    async with await Client.connect(gateway.port) as client:
        client.writer.transport.pause_reading()
        client.send(request(headers="connection: close\r\n"))
        await engine.wait_seen(1)
        await eventually(lambda: not gateway.context.connections)


async def test_a_client_that_leaves_during_connect_leaves_nothing_behind(
    start_gateway: StartGateway, full_port: int
) -> None:
    gateway = await start_gateway(engine=(f"http://127.0.0.1:{full_port}",))
    context = gateway.context
    [one] = context.fleet.engines.values()
    one.cards = ({"id": "tiny"},)
    context.fleet.index()
    async with await Client.connect(gateway.port, request()):
        await eventually(lambda: one.outstanding_requests == 1)
    await eventually(lambda: one.outstanding_requests == 0)
    assert context.metrics.disconnects == {"connect": 1}


@pytest.mark.usefixtures("empty_heap")
@pytest.mark.parametrize("headers", ["", "authorization: Bearer wrong\r\n"], ids=["405", "401"])
async def test_a_refused_request_is_freed_at_once(
    engine: ScriptedEngine, start_gateway: StartGateway, headers: str
) -> None:
    """Not with the next garbage: thousands in one read would have that collected while everybody waits."""
    gateway = await start_gateway(engine, keys=[{"key_id": "k", "key": "sk-1"}])
    asked = request(headers=headers) if headers else b"GET /score HTTP/1.1\r\nhost: g\r\n\r\n"
    gc.disable()
    try:
        async with await Client.connect(gateway.port, asked * 200) as client:
            for _ in range(200):
                assert (await client.answer()).status in {401, 405}
            alive = [item for item in gc.get_objects() if type(item) is Exchange]
            assert len(alive) <= 3
    finally:
        gc.enable()


async def test_a_client_that_closes_its_sending_half_has_left(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.script = [HANG]
    async with await Client.connect(gateway.port, request()) as client:
        await engine.wait_seen(1)
        client.writer.write_eof()
        await engine.seen[0].until_closed()
    assert gateway.context.metrics.disconnects == {"wait": 1}

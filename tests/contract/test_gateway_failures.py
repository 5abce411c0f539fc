"""What goes wrong with an engine while it answers: time-outs and answers that break, and what the client sees."""

import asyncio

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, STREAM, Answer, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    RESET,
    SSE_HEAD,
    Act,
    Script,
    ScriptedEngine,
    Step,
    chunk,
    completion,
    event,
    reply,
    stream,
)


def error_event(answer: Answer) -> str:
    """The code of the error event that ends the answer."""
    frames = answer.body.decode().strip().split("\n\n")
    assert frames[-1].startswith('data: {"error":{"message":')
    return frames[-1].split('"code":"')[1].split('"')[0]


# Time-outs


async def test_when_every_engine_hangs_the_first_byte_time_out_is_the_answer(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [SSE_HEAD, HANG]  # a head is no byte of body
    gateway = await start_gateway(engine, other_engine, first_byte_timeout_s=0.3)
    answer = await call(gateway.port, request(STREAM))
    assert (answer.status, answer.code) == (504, "engine_timeout")
    assert "--first-byte-timeout-s" in answer.json["error"]["message"]
    for one in (engine, other_engine):
        [seen] = one.seen
        await seen.until_closed()


async def test_the_idle_time_out(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), HANG]
    gateway = await start_gateway(engine, idle_timeout_s=0.3)
    answer = await call(gateway.port, request(STREAM))
    assert answer.status == 200
    assert answer.body.startswith(event("a"))
    assert error_event(answer) == "engine_timeout"
    assert answer.is_whole
    await engine.seen[0].until_closed()


async def test_the_total_time_out(engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock) -> None:
    """However often something comes: the engine never pauses for as long as the idle time-out."""
    gates = [asyncio.Event() for _ in range(6)]
    pauses: list[Step] = [step for gate in gates for step in (chunk(event("a")), gate)]
    engine.script = [SSE_HEAD, *pauses]
    gateway = await start_gateway(engine, clock=clock, idle_timeout_s=0.2, total_timeout_s=0.55)
    [one] = gateway.context.fleet.engines.values()
    answered = asyncio.create_task(call(gateway.port, request(STREAM)))
    await engine.wait_seen(1)
    for gate in gates:
        clock.at += 0.1
        gate.set()
        await eventually(lambda: one.heard_at == clock.at or answered.done())
    answer = await answered
    assert error_event(answer) == "engine_timeout"
    assert b"--total-timeout-s" in answer.body


async def test_the_connect_time_out(start_gateway: StartGateway, full_port: int) -> None:
    gateway = await start_gateway(engine=(f"http://127.0.0.1:{full_port}",), connect_timeout_s=0.2)
    [one] = gateway.context.fleet.engines.values()
    one.cards = ({"id": "tiny"},)
    gateway.context.fleet.index()
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (503, "engine_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert gateway.context.metrics.upstream_errors["connect_timeout"] >= 1


async def test_a_request_that_does_not_arrive_times_out(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, request_timeout_s=0.3)
    answer = await call(gateway.port, request()[:-5])
    assert (answer.status, answer.code) == (408, "request_timeout")
    answer = await call(gateway.port, request()[:30])
    assert (answer.status, answer.code) == (408, "request_timeout")


async def test_a_client_that_stops_reading_loses_its_stream(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    engine.script = [SSE_HEAD, *[chunk(event("x" * 60_000))] * 400, HANG]
    gateway = await start_gateway(engine, clock=clock, idle_timeout_s=0.4)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**10)
    writer.write(request(STREAM))
    await reader.readuntil(b"\r\n\r\n")
    await eventually(lambda: any(connection.is_stalled for connection in [*gateway.context.connections]))
    clock.at += 0.5
    await engine.seen[0].until_closed()
    assert gateway.context.metrics.disconnects == {"stalled": 1}
    writer.close()


# Broken answers


BROKEN: dict[str, Script] = {
    "closes": [CLOSE],
    "resets": [RESET],
    "half a head": [b"HTTP/1.1 200 OK\r\ncontent-", CLOSE],
    "no HTTP": [b"hello\r\n\r\n", CLOSE],
    "both lengths": [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}"],
    "two lengths": [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{} "],
    "signed length": [b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}"],
    "unknown coding": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}"],
    "bad chunk": [SSE_HEAD + b"zz\r\n"],
    "switching": [b"HTTP/1.1 101 Switching Protocols\r\n\r\n"],
    "endless head": [b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000],
    "head only": [SSE_HEAD, CLOSE],
    "head only, without a length": [b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n", CLOSE],
    "stream of nothing": [SSE_HEAD, LAST_CHUNK],
    "stream of no bytes": [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n"],
    "interim only": [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", CLOSE],
    "longer length": [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2, 2\r\n\r\n{}"],
    "chunks of nothing": [SSE_HEAD + b"\r\n\r\n"],
    "folded header": [b"HTTP/1.1 200 OK\r\nx: y\r\n z\r\ncontent-length: 2\r\n\r\n{}"],
    "bare LF": [b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}", CLOSE],
    "error cut off": [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 99\r\n\r\n{", CLOSE],
}


@pytest.mark.parametrize("name", BROKEN)
async def test_an_engine_that_gives_no_answer_is_one_clear_error(
    engine: ScriptedEngine, gateway: GatewayThread, name: str
) -> None:
    engine.script = BROKEN[name]
    answer = await call(gateway.port, request(STREAM))
    assert (answer.status, answer.code) == (502, "bad_engine_response")
    assert answer.headers["retry-after"] == "1"
    assert sum(gateway.context.metrics.upstream_errors.values()) >= 1


@pytest.mark.parametrize("name", BROKEN)
async def test_and_with_another_engine_none_at_all(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, name: str
) -> None:
    engine.script = BROKEN[name]
    other_engine.script = stream("ok")
    gateway = await start_gateway(engine, other_engine)
    for _ in range(4):
        answer = await call(gateway.port, request(STREAM))
        assert answer.status == 200
        assert answer.body.endswith(DONE)
    assert engine.seen
    assert gateway.context.metrics.retries == len(engine.seen)


@pytest.mark.parametrize(
    "script",
    [
        [SSE_HEAD, chunk(event("a")), 0.02, CLOSE],
        [SSE_HEAD, chunk(event("a")), 0.02, RESET],
        [SSE_HEAD, chunk(event("a")), 0.02, b"zz\r\n"],
        [SSE_HEAD, chunk(event("a")), chunk(event("b")[:20]), 0.02, CLOSE],
        [SSE_HEAD, chunk(event("a")), chunk(event("b"))[:20], 0.02, CLOSE],
        [SSE_HEAD, chunk(event("a")), b"1", 0.02, CLOSE],
        [SSE_HEAD.replace(b"transfer-encoding: chunked", b"x: y"), event("a"), 0.02, CLOSE],
    ],
    ids=["close", "reset", "bad chunk", "mid event", "mid chunk", "mid size", "unframed"],
)
@pytest.mark.parametrize("asks", [True, False], ids=["with usage", "without"])
async def test_a_stream_that_breaks_says_so(
    engine: ScriptedEngine, gateway: GatewayThread, script: Script, asks: bool
) -> None:
    engine.script = script
    async with await Client.connect(gateway.port, request(ASKING if asks else STREAM)) as client:
        answer = await client.answer()
        assert answer.body.startswith(event("a"))
        assert b"[DONE]" not in answer.body
        assert answer.is_whole
        assert error_event(answer) == "stream_broken"
        # The client was not told of a close, and may have sent its next request already.
        engine.script = [reply(completion())]
        client.send(request())
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("end", [CLOSE, RESET, HANG])
async def test_a_json_body_that_breaks_or_stops_is_cut_off(
    engine: ScriptedEngine, start_gateway: StartGateway, end: Act
) -> None:
    engine.script = [reply(completion())[:-9], 0.02, end]
    gateway = await start_gateway(engine, idle_timeout_s=0.3)
    assert not (await call(gateway.port)).is_whole


async def test_bytes_beyond_the_end_reach_nobody(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    evil = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    engine.scripts = [[reply(completion()) + evil], [*stream("a")[:-1], LAST_CHUNK + evil], [reply(completion())]]
    async with await Client.connect(gateway.port, request()) as client:
        assert (await client.answer()).body == completion()
        client.send(request(STREAM))
        assert (await client.answer()).body.endswith(DONE)
        client.send(request())
        assert (await client.answer()).body == completion()

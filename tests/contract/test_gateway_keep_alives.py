"""What keeps a stream's connection alive before its first content reaches the client at once, and costs no retry."""

import asyncio
from collections.abc import Sequence
from itertools import product

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    Step,
    chunk,
    completion,
    event,
    reply,
    requests_of,
    stream,
    usage_event,
)
from tests.support.stream_events import CREATED, ENGINE_ERROR, MESSAGE_START, OPEN_HEAD, PING

ALIVE = {
    "comment": b": keep-alive\n\n",
    "comment of one line": b":\n",
    "comment with CRLF": b": ping - 2026\r\n\r\n",
    "comment with CR": b": ping - 2026\r\r",
    "ping": PING,
    "ping with CRLF": PING.replace(b"\n", b"\r\n"),
    "ping with CR": PING.replace(b"\n", b"\r"),
    "keepalive": b'event: keepalive\ndata: {"type":"keepalive","sequence_number":3}\n\n',
    "ping without a name": b'data: {"type":"ping"}\n\n',
    "blank lines": b"\n\n",
    "no data": b"retry: 3000\n\n",
    "empty data": b"data: \n\n",
}
DELTA = b'event: content_block_delta\ndata: {"delta":"a"}\n\n'
OPENING = {"/v1/chat/completions": b"", "/v1/responses": CREATED, "/v1/messages": MESSAGE_START}
REFUSAL = b'{"error": {\n "message": "dead", "type": "x", "param": null, "code": 500}}'


async def body_until(client: Client, wanted: bytes) -> bytes:
    """Return a chunked body's payload up to `wanted`; its head must have come."""
    payload = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in payload:
            size = int(await client.reader.readuntil(b"\r\n"), 16)
            payload += (await client.reader.readexactly(size + 2))[:-2]
    return payload


@pytest.mark.parametrize("is_chunked", [True, False], ids=["chunked", "open"])
async def test_what_keeps_alive_goes_out_at_once_and_overtakes_what_opens(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests, is_chunked: bool
) -> None:
    frame = chunk if is_chunked else bytes
    end: Script = [frame(DONE), LAST_CHUNK] if is_chunked else [DONE, CLOSE]
    begin = SSE_HEAD if is_chunked else OPEN_HEAD
    gaps = 0
    for path, alive in product(OPENING, ALIVE):
        with subtests.test(path=path, alive=alive):
            gate, kept = asyncio.Event(), ALIVE[alive]
            opening: Script = [frame(OPENING[path])] if OPENING[path] else []
            engine.script = [begin, *opening, 0.02, frame(kept), gate, frame(DELTA), *end]
            async with await Client.connect(gateway.port) as client:
                client.send(request(ASKING, path=path))
                head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
                assert head.startswith(b"HTTP/1.1 200 OK\r\n")
                assert b"text/event-stream" in head
                assert await body_until(client, kept) == kept
                [exchange] = gateway.context.exchanges
                assert exchange.phase == "wait"
                gate.set()
                assert await body_until(client, DONE) == OPENING[path] + DELTA + DONE
            await eventually(lambda: not gateway.context.exchanges)
            before, gaps = gaps, sum(gateway.context.metrics.cells["tiny", "default"].itl.counts)
            assert gaps <= before + 1  # what keeps alive is no token


FAILS: dict[str, Script] = {
    "error event": [chunk(ENGINE_ERROR), LAST_CHUNK],
    "broken off": [CLOSE],
    "ended": [chunk(b"event: error\ndata: {}\n\n"), CLOSE],
}
SECOND: dict[str, Script] = {
    "chunked": stream("ok"),
    "open": [OPEN_HEAD, event("ok"), event("", finish="stop"), DONE, CLOSE],
    "keeps alive too": [SSE_HEAD, chunk(PING), 0.05, *stream("ok")[1:]],
}


def in_turn(engines: Sequence[ScriptedEngine], *scripts: Script) -> None:
    """Play `scripts`, one a request, to whichever of `engines` it goes; the last for all that follow."""
    left = [*scripts]
    for engine in engines:
        engine.choose = lambda _: left.pop(0) if len(left) > 1 else left[0]


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("fails", FAILS)
async def test_another_engine_may_answer_behind_what_kept_alive(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, fails: str, second: str
) -> None:
    gateway = await start_gateway(engine, other_engine)
    first = [SSE_HEAD, chunk(PING), 0.05, *FAILS[fails]]
    in_turn((engine, other_engine), first, SECOND[second], [reply(completion())])
    async with await Client.connect(gateway.port) as client:
        client.send(request(ASKING))
        answer = await client.answer()
        assert answer.status == 200
        assert answer.body.replace(PING, b"") == event("ok") + event("", finish="stop") + DONE
        client.send(request())  # the connection serves on
        assert (await client.answer()).status == 200
    assert gateway.context.metrics.retries == 1


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize(
    "second",
    [
        [CLOSE],
        [reply(REFUSAL, "500 Internal Server Error")],
        [reply(b"dead", "503 Service Unavailable", "text/plain")],
        [reply(b'{"detail": "no"}', "404 Not Found")],
        [reply(REFUSAL.replace(b"500", b"401"), "401 Unauthorized")],
        [reply(completion())],
        [reply(b"x" * 600_000, "400 Bad Request", "text/plain")],
    ],
    ids=["closed", "500", "text", "404", "401", "no stream", "long"],
)
@pytest.mark.parametrize("path", OPENING)
async def test_what_fails_behind_what_kept_alive_is_an_event_of_the_clients_dialect(
    engine: ScriptedEngine,
    other_engine: ScriptedEngine,
    start_gateway: StartGateway,
    path: str,
    second: Script,
    version: bytes,
) -> None:
    gateway = await start_gateway(engine, other_engine)
    in_turn((engine, other_engine), [SSE_HEAD, chunk(OPENING[path] + PING), 0.05, CLOSE], second)
    answer = await call(gateway.port, request(STREAM, path=path).replace(b"HTTP/1.1", version))
    assert (answer.status, answer.is_whole) == (200, True)
    name, _, data = answer.body.removeprefix(PING).partition(b"data: ")
    assert name == (b"event: error\n" if path == "/v1/messages" else b"")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    assert b'"error"' in data


@pytest.mark.parametrize("end", [CLOSE, LAST_CHUNK])
async def test_a_dead_only_engine_is_an_error_event_behind_what_kept_alive(
    engine: ScriptedEngine, gateway: GatewayThread, end: Step
) -> None:
    engine.script = [SSE_HEAD, chunk(PING), 0.05, end]
    answer = await call(gateway.port, request(STREAM, path="/v1/messages"))
    assert (answer.status, answer.is_whole) == (200, True)
    assert answer.body.startswith(PING + b'event: error\ndata: {"type":"error"')
    [line] = [line for line in gateway.log_lines() if line["path"] == "/v1/messages"] or [{}]
    assert line.get("error", "bad_engine_response") == "bad_engine_response"


async def test_usage_that_nobody_asked_for_is_taken_out_behind_what_kept_alive(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    frames = [event("a"), event("", finish="stop"), usage_event(3), DONE]
    whole = b"".join(frames)
    engine.scripts = [
        [SSE_HEAD, chunk(PING), 0.03, *map(chunk, frames), LAST_CHUNK],
        [SSE_HEAD, chunk(PING), 0.03, *(chunk(whole[at : at + 7]) for at in range(0, len(whole), 7)), LAST_CHUNK],
        [OPEN_HEAD, PING, 0.03, whole[:40], 0.01, whole[40:], CLOSE],
    ]
    for _ in range(3):
        answer = await call(gateway.port, request(STREAM))
        assert answer.body == PING + frames[0] + frames[1] + DONE
    assert gateway.context.metrics.cells["tiny", "default"].tokens_by_usage == 9


async def test_without_passing_them_on_they_wait_and_an_error_keeps_its_status(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [SSE_HEAD, chunk(PING), 0.05, CLOSE]
    gateway = await start_gateway(engine, pass_keep_alives=False)
    assert (await call(gateway.port, request(STREAM))).status == 502
    engine.script = [SSE_HEAD, chunk(PING), 0.05, chunk(DELTA + DONE), LAST_CHUNK]
    assert (await call(gateway.port, request(STREAM))).body == PING + DELTA + DONE


async def say(gateway: GatewayThread, clock: Clock, gate: asyncio.Event, after_s: float) -> None:
    """Let the only engine that speaks say something so long after what it said before, and the gateway hear it."""
    clock.at += after_s
    gate.set()
    await eventually(lambda: clock.at in [one.heard_at for one in gateway.context.fleet.engines.values()])


@pytest.mark.parametrize("kind", [b": keep-alive\n\n", PING, CREATED])
async def test_an_engine_that_keeps_its_streams_alive_is_not_silent(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock, kind: bytes
) -> None:
    gates = [asyncio.Event() for _ in range(5)]
    said = [step for gate in gates for step in (gate, chunk(kind))]
    ends = asyncio.Event()
    engine.script = [SSE_HEAD, *said, ends, chunk(event("ok") + DONE), LAST_CHUNK]
    gateway = await start_gateway(engine, clock=clock, stream_first_byte_timeout_s=1.0)
    answered = asyncio.create_task(call(gateway.port, request(STREAM)))
    await engine.wait_seen(1)
    for gate in gates:
        await say(gateway, clock, gate, 0.9)
    ends.set()
    assert (await answered).body == kind * 5 + event("ok") + DONE
    assert len(engine.seen) == 1
    assert gateway.context.metrics.upstream_errors == {}


async def test_the_time_to_the_first_content_is_bounded_however_a_stream_is_kept_alive(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gates = [asyncio.Event() for _ in range(2)]
    in_turn((engine, other_engine), *([SSE_HEAD, gate, chunk(PING), HANG] for gate in gates))
    gateway = await start_gateway(
        engine,
        other_engine,
        clock=clock,
        stream_first_byte_timeout_s=1.5,
        stream_content_timeout_s=2.0,
        first_byte_timeout_s=9,
    )
    answered = asyncio.create_task(call(gateway.port, request(STREAM)))
    for at, gate in enumerate(gates):
        await eventually(lambda at=at: requests_of(engine, other_engine) == at + 1)  # type: ignore[misc]
        await say(gateway, clock, gate, 1.2)
        clock.at += 1.2  # since the ping it is silent for less than a first byte may take
    answer = await answered
    assert answer.body.replace(PING, b"").startswith(b'data: {"error":{"message":"the stream content time-out')
    assert gateway.context.metrics.upstream_errors == {"stream_content_timeout": 2}
    assert len(engine.seen) == len(other_engine.seen) == 1
    # Nothing but what its server sends came from the first, so its model hangs. Where two do it may be the request.
    assert sum(one.outlier_detection.is_ejected for one in gateway.context.fleet.engines.values()) == 1


async def test_the_openai_client_reads_past_them_and_raises_what_follows(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    import openai  # noqa: PLC0415 - a second to load

    arguments = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        engine.script = [SSE_HEAD, chunk(b": keep-alive\n\n"), 0.03, *stream("ok")[1:]]
        parts = [part async for part in await client.chat.completions.create(**arguments)]  # type: ignore[call-overload]
        assert parts[0].choices[0].delta.content == "ok"
        engine.script = [SSE_HEAD, chunk(b": keep-alive\n\n"), 0.03, CLOSE]
        with pytest.raises(openai.APIError, match="no whole answer"):
            [part async for part in await client.chat.completions.create(**arguments)]  # type: ignore[call-overload]

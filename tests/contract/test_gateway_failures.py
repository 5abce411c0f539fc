"""What goes wrong: engines that break, hang or lie; clients that leave; and what each costs whom."""

import asyncio
import gc
import json
import socket
import time
from collections.abc import Iterator
from typing import cast

import pytest

from gateway import routing
from gateway.discovery import Discovery
from gateway.prefix import points_of
from gateway.wire import read_facts
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import PATH, STREAM, Answer, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    RESET,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    Step,
    chunk,
    completion,
    event,
    reply,
    stream,
)

FREED_WITHIN_S = 0.25
OVERLOADED = reply(
    b'{"error":{"message":"full","type":"overloaded","param":null,"code":503}}', "503 Service Unavailable"
)


def error_event(answer: Answer) -> str:
    """The code of the error event that ends the answer."""
    frames = answer.body.decode().strip().split("\n\n")
    assert frames[-1].startswith('data: {"error":{"message":')
    return frames[-1].split('"code":"')[1].split('"')[0]


def serves_twice(first: ScriptedEngine, second: ScriptedEngine) -> int:
    return len(first.seen) + len(second.seen)


# Disconnects


async def assert_freed(engine: ScriptedEngine, leave: float) -> None:
    async with asyncio.timeout(3):
        await engine.seen[0].closed.wait()
    closed_at = engine.seen[0].closed_at
    assert closed_at is not None
    assert closed_at - leave < FREED_WITHIN_S


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
    engine: ScriptedEngine, start_gateway: StartGateway, script: Script, body: dict[str, object] | None, is_reset: bool
) -> None:
    engine.script = script
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request(body))
        await engine.wait_seen(1)
        await asyncio.sleep(0.05)
        leave = asyncio.get_running_loop().time()
        if is_reset:
            client.abort()
        else:
            client.close()
    await assert_freed(engine, leave)
    await eventually(lambda: not gateway.plane.exchanges)
    [one] = gateway.plane.fleet.engines.values()
    assert (one.outstanding_requests, one.outstanding_tokens) == (0, 0)
    assert sum(gateway.plane.metrics.disconnects.values()) == 1
    assert gateway.plane.metrics.cells["tiny", "default"].requests == {499: 1}


async def test_a_client_that_leaves_while_it_sends_reaches_no_engine(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request()[:-5])
        await eventually(lambda: gateway.plane.exchanges)
    await eventually(lambda: gateway.plane.metrics.disconnects == {"request": 1})
    assert engine.seen == []


async def test_a_client_that_leaves_while_pipelined_requests_wait_frees_the_engine(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request() * 3)
        await engine.wait_seen(1)
        leave = asyncio.get_running_loop().time()
    await assert_freed(engine, leave)
    assert len(engine.seen) == 1


@pytest.fixture
def full_port() -> Iterator[int]:
    """The port of a server that accepts nothing and whose queue is full: connecting to it hangs."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        yield listener.getsockname()[1]


async def test_a_client_that_sends_and_never_reads_holds_no_memory(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    size = 4_000_000
    engine.script = [reply(b'"' + b"x" * size + b'"')]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.writer.transport.pause_reading()
        client.send(request() * 12)
        await engine.wait_seen(1)
        await asyncio.sleep(1.0)
        [connection] = [item for item in gateway.plane.connections if item.flow.write_paused]
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
        await eventually(lambda: not gateway.plane.connections, 10)


async def test_a_client_that_leaves_while_another_route_waits_behind_frees_the_engine(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request() + request(path="/health", method="GET"))
        await engine.wait_seen(1)
        leave = asyncio.get_running_loop().time()
    await assert_freed(engine, leave)


async def test_a_client_that_leaves_during_connect_leaves_nothing_behind(
    start_gateway: StartGateway, full_port: int
) -> None:
    gateway = await start_gateway(engine=(f"http://127.0.0.1:{full_port}",))
    plane = gateway.plane
    [one] = plane.fleet.engines.values()
    one.cards = ({"id": "tiny"},)
    plane.fleet.index()
    async with await Client.connect(gateway.port) as client:
        client.send(request())
        await eventually(lambda: one.outstanding_requests == 1)
    await eventually(lambda: one.outstanding_requests == 0)
    assert plane.metrics.disconnects == {"connect": 1}


# Time-outs


async def test_the_first_byte_time_out(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = [SSE_HEAD, HANG]  # a head is no byte of body
    gateway = await start_gateway(engine, first_byte_timeout_s=0.3)
    answer = await call(gateway.port, request(STREAM))
    assert (answer.status, answer.code) == (504, "engine_timeout")
    assert "--first-byte-timeout-s" in answer.json["error"]["message"]
    async with asyncio.timeout(1):
        await engine.seen[0].closed.wait()


async def test_the_idle_time_out(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), HANG]
    gateway = await start_gateway(engine, idle_timeout_s=0.3)
    answer = await call(gateway.port, request(STREAM))
    assert answer.status == 200
    assert answer.body.startswith(event("a"))
    assert error_event(answer) == "engine_timeout"
    assert answer.is_whole
    async with asyncio.timeout(1):
        await engine.seen[0].closed.wait()


async def test_the_total_time_out(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    pause: list[Step] = [chunk(event("a")), 0.1]
    engine.script = [SSE_HEAD, *pause * 50]
    gateway = await start_gateway(engine, total_timeout_s=0.5)
    answer = await call(gateway.port, request(STREAM))
    assert error_event(answer) == "engine_timeout"
    assert b"--total-timeout-s" in answer.body


async def test_the_idle_time_out_cuts_a_json_body_off(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = [b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{", HANG]
    gateway = await start_gateway(engine, idle_timeout_s=0.3)
    answer = await call(gateway.port)
    assert not answer.is_whole


async def test_the_connect_time_out(start_gateway: StartGateway, full_port: int) -> None:
    gateway = await start_gateway(engine=(f"http://127.0.0.1:{full_port}",), connect_timeout_s=0.2)
    [one] = gateway.plane.fleet.engines.values()
    one.cards = ({"id": "tiny"},)
    gateway.plane.fleet.index()
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (503, "engine_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert gateway.plane.metrics.upstream_errors["connect_timeout"] >= 1


async def test_a_request_that_does_not_arrive_times_out(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, request_timeout_s=0.3)
    answer = await call(gateway.port, request()[:-5])
    assert (answer.status, answer.code) == (408, "request_timeout")
    answer = await call(gateway.port, request()[:30])
    assert (answer.status, answer.code) == (408, "request_timeout")


async def test_a_client_that_stops_reading_loses_its_stream(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [SSE_HEAD, *[chunk(event("x" * 60_000))] * 400, HANG]
    gateway = await start_gateway(engine, idle_timeout_s=0.4)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**10)
    writer.write(request(STREAM))
    await reader.readuntil(b"\r\n\r\n")
    async with asyncio.timeout(5):
        await engine.seen[0].closed.wait()
    assert gateway.plane.metrics.disconnects == {"stalled": 1}
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
    "interim only": [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n", CLOSE],
    "longer length": [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2, 2\r\n\r\n{}"],
    "chunks of nothing": [SSE_HEAD + b"\r\n\r\n"],
    "folded header": [b"HTTP/1.1 200 OK\r\nx: y\r\n z\r\ncontent-length: 2\r\n\r\n{}"],
    "bare LF": [b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}", CLOSE],
    "error cut off": [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 99\r\n\r\n{", CLOSE],
}


@pytest.mark.parametrize("name", BROKEN)
async def test_an_engine_that_gives_no_answer_is_one_clear_error(
    engine: ScriptedEngine, start_gateway: StartGateway, name: str
) -> None:
    engine.script = BROKEN[name]
    gateway = await start_gateway(engine)
    answer = await call(gateway.port, request(STREAM))
    assert (answer.status, answer.code) == (502, "bad_engine_response")
    assert answer.headers["retry-after"] == "1"
    assert sum(gateway.plane.metrics.upstream_errors.values()) >= 1


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
    assert gateway.plane.metrics.retries == len(engine.seen)


@pytest.mark.parametrize(
    ("script", "event_ends"),
    [
        ([SSE_HEAD, chunk(event("a")), 0.02, CLOSE], True),
        ([SSE_HEAD, chunk(event("a")), 0.02, RESET], True),
        ([SSE_HEAD, chunk(event("a")), 0.02, b"zz\r\n"], True),
        ([SSE_HEAD, chunk(event("a")), chunk(event("b")[:20]), 0.02, CLOSE], True),
        ([SSE_HEAD, chunk(event("a")), chunk(event("b"))[:20], 0.02, CLOSE], False),
        ([SSE_HEAD, chunk(event("a")), b"1", 0.02, CLOSE], False),
        ([SSE_HEAD.replace(b"transfer-encoding: chunked", b"x: y"), event("a"), 0.02, CLOSE], True),
    ],
    ids=["close", "reset", "bad chunk", "mid event", "mid chunk", "mid size", "unframed"],
)
async def test_a_stream_that_breaks_says_so(
    engine: ScriptedEngine, start_gateway: StartGateway, script: Script, event_ends: bool
) -> None:
    engine.script = script
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request(STREAM))
        answer = await client.answer()
        assert answer.body.startswith(event("a"))
        assert b"[DONE]" not in answer.body
        assert answer.is_whole == event_ends
        if event_ends:
            assert error_event(answer) == "stream_broken"
        assert await client.is_closed()


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_a_json_body_that_breaks_is_cut_off(
    engine: ScriptedEngine, start_gateway: StartGateway, end: object
) -> None:
    engine.script = [reply(completion())[:-9], 0.02, end]  # type: ignore[list-item]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request())
        assert not (await client.answer()).is_whole


async def test_a_broken_stream_of_messages_is_a_named_event(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [SSE_HEAD, chunk(b"event: ping\ndata: {}\n\n"), 0.02, CLOSE]
    gateway = await start_gateway(engine)
    answer = await call(gateway.port, request(STREAM, path="/v1/messages"))
    assert answer.body.startswith(b'event: ping\ndata: {}\n\nevent: error\ndata: {"error":{')


def parsed_bodies(marker: str) -> int:
    """How many parsed request bodies with the field `marker` are in memory."""
    return sum(type(item) is dict and marker in item and "model" in item for item in gc.get_objects())


@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_body_is_not_kept_parsed_while_its_engine_works(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, is_begun: bool
) -> None:
    script: Script = [SSE_HEAD, chunk(event("a")), HANG] if is_begun else [HANG]
    engine.script = other_engine.script = script
    gateway = await start_gateway(engine, other_engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request({**STREAM, "x-marked": [1]}))
        await eventually(lambda: serves_twice(engine, other_engine))
        if is_begun:
            assert event("a") in await client.reader.readuntil(event("a"))
        assert parsed_bodies("x-marked") == 0


@pytest.mark.parametrize("script", [[OVERLOADED], [CLOSE], BROKEN["error cut off"]], ids=["503", "closed", "cut off"])
async def test_a_retry_goes_by_the_same_session_and_sends_the_same_bytes(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, script: Script
) -> None:
    engine.script = other_engine.script = script
    gateway = await start_gateway(engine, other_engine)
    body = {**STREAM, "user": "u", "prompt": "x" * 100_000}
    assert (await call(gateway.port, request(body))).status in (502, 503)
    counts = gateway.plane.fleet.chooser.counts
    assert {rule: count for rule, count in counts.items() if count} == {"session": 1, "session_spilled": 1}
    for seen in (*engine.seen, *other_engine.seen):
        assert seen.json == {**body, "vllm_xargs": {"traffic_class": "default"}}
    assert serves_twice(engine, other_engine) == 2


async def test_bytes_beyond_the_end_reach_nobody(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    evil = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"
    engine.scripts = [[reply(completion()) + evil], [*stream("a")[:-1], LAST_CHUNK + evil], [reply(completion())]]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request())
        assert (await client.answer()).body == completion()
        client.send(request(STREAM))
        assert (await client.answer()).body.endswith(DONE)
        client.send(request())
        assert (await client.answer()).body == completion()


# Retries, standing, errors of engines


async def test_a_refused_request_goes_to_another_engine(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [OVERLOADED]
    gateway = await start_gateway(engine, other_engine)
    for _ in range(6):
        assert (await call(gateway.port)).status == 200
    assert len(other_engine.seen) == 6
    assert gateway.plane.metrics.upstream_errors["status_503"] == len(engine.seen)


async def test_when_all_engines_refuse_their_answer_is_passed_on(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [OVERLOADED]
    gateway = await start_gateway(engine, other_engine)
    answer = await call(gateway.port)
    assert answer.status == 503
    assert answer.json["error"]["message"] == "full"
    assert answer.headers["retry-after"] == "1"
    assert serves_twice(engine, other_engine) == 2


async def test_retries_have_a_budget(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [OVERLOADED]
    gateway = await start_gateway(engine, other_engine, retry_ratio=0.1)
    async with await Client.connect(gateway.port) as client:
        for _ in range(100):
            client.send(request())
            assert (await client.answer()).status == 503
    assert gateway.plane.metrics.retries <= 10 + 0.1 * 100 + 5


async def test_a_retry_that_the_budget_refuses_is_neither_counted_nor_remembered(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [OVERLOADED]
    gateway = await start_gateway(engine, other_engine, retry_ratio=0)
    bodies = [{"model": "tiny", "messages": [{"role": "user", "content": f"{at}" * 2000}]} for at in range(100, 125)]
    async with await Client.connect(gateway.port) as client:
        for body in bodies:
            client.send(request(body))
            assert (await client.answer()).status == 503
    chooser = gateway.plane.fleet.chooser
    assert gateway.plane.metrics.retries < len(bodies)
    assert sum(chooser.counts.values()) == len(engine.seen) + len(other_engine.seen)
    for body in bodies:
        got = {
            f"127.0.0.1:{one.port}"
            for one in (engine, other_engine)
            if any(seen.json["messages"] == body["messages"] for seen in one.seen)
        }
        point = points_of(read_facts(PATH, json.dumps(body).encode()))[-1]
        assert set(chooser.prefixes.holders(point)) == got


async def test_an_engines_429_says_when_to_come_back(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    body = b'{"error":{"message":"slowly","type":"rate_limit_error","param":null,"code":429}}'
    engine.scripts = [[reply(body, "429 Too Many Requests", extra=extra)] for extra in ("", "Retry-After: 17\r\n")]
    for wanted in ("1", "17"):
        answer = await call(gateway.port)
        assert (answer.status, answer.headers["retry-after"], answer.body) == (429, wanted, body)


@pytest.mark.parametrize("status", ["400 Bad Request", "404 Not Found", "422 Unprocessable Entity", "429 Too Many"])
async def test_a_clients_error_passes_untouched_and_is_not_retried(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, status: str
) -> None:
    body = b'{"error": {"message": "no",  "type": "BadRequestError", "param": null, "code": 400}}'
    engine.script = other_engine.script = [reply(body, status)]
    gateway = await start_gateway(engine, other_engine)
    for _ in range(10):
        answer = await call(gateway.port)
        assert answer.status == int(status[:3])
        assert answer.body == body
    assert serves_twice(engine, other_engine) == 10
    assert not any(one.standing.is_ejected for one in gateway.plane.fleet.engines.values())


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"Internal Server Error", "text/plain", "Internal Server Error"),
        (b'{"detail":"Not Found"}', "application/json", "Not Found"),
        (b'{"object":"error","message":"too long","code":400}', "application/json", "too long"),
        (b'{"error":"plain"}', "application/json", "plain"),
        (b"", "text/plain", "the engine answered 500 without a reason"),
    ],
)
async def test_an_engines_error_gets_the_envelope(
    engine: ScriptedEngine, start_gateway: StartGateway, body: bytes, kind: str, message: str
) -> None:
    engine.script = [reply(body, "500 Internal Server Error", kind)]
    gateway = await start_gateway(engine)
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (500, "engine_error")
    assert answer.json["error"]["message"] == message
    assert answer.headers["content-type"] == "application/json"


class _Hasty(asyncio.Protocol):
    """Answers a POST after its head and reads no further."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._transport.write(reply(b'{"data":[{"id":"tiny"}]}'))
            return
        refusal = b'{"error":{"message":"too much","type":"x","param":null,"code":413}}'
        self._transport.pause_reading()
        self._transport.write(reply(refusal, "413 Payload Too Large"))
        self._transport.close()


async def test_an_engine_that_refuses_before_it_has_read_is_heard(start_gateway: StartGateway) -> None:
    server = await asyncio.get_running_loop().create_server(_Hasty, "127.0.0.1", 0)
    gateway = await start_gateway(engine=(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",))
    answer = await call(gateway.port, request(b'{"model":"tiny","x":"' + b"y" * 8_000_000 + b'"}'))
    assert (answer.status, answer.json["error"]["message"]) == (413, "too much")
    server.close()
    await server.wait_closed()


async def test_an_error_too_long_to_hold_passes_as_it_is(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    body = b"no " * 200_000
    engine.script = [reply(body, "500 Internal Server Error", "text/plain")]
    gateway = await start_gateway(engine)
    answer = await call(gateway.port)
    assert (answer.status, answer.headers["content-type"]) == (500, "text/plain")
    assert answer.body == body


async def test_a_dead_engine_costs_nothing_while_another_lives(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, other_engine)
    await engine.stop()
    for _ in range(20):
        assert (await call(gateway.port)).status == 200
    assert gateway.plane.metrics.retries <= 2
    assert gateway.plane.fleet.engines[f"127.0.0.1:{engine.port}"].standing.is_ejected
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 200


async def test_a_dead_engine_alone_is_a_clear_error_and_comes_back(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine)
    await engine.stop()
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (503, "engine_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 503
    await engine.start()
    [one] = gateway.plane.fleet.engines.values()
    await eventually(lambda: not one.standing.is_ejected)
    assert (await call(gateway.port)).status == 200
    assert one.standing.share(time.monotonic()) < 1.0


@pytest.mark.parametrize("closes", [False, True], ids=["kept", "closed"])
async def test_an_engine_of_server_errors_costs_nothing_while_another_lives_and_is_ejected(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, closes: bool
) -> None:
    answer = reply(b"{}", "500 Internal Server Error", extra="connection: close\r\n" if closes else "")
    engine.script = [answer, CLOSE] if closes else [answer]
    gateway = await start_gateway(engine, other_engine)
    assert {(await call(gateway.port)).status for _ in range(2 * routing.FAILURES_ALLOWED + 2)} == {200}
    assert len(engine.seen) == gateway.plane.metrics.retries == routing.FAILURES_ALLOWED
    assert gateway.plane.fleet.engines[f"127.0.0.1:{engine.port}"].standing.is_ejected


@pytest.mark.parametrize("script", [[HANG], [SSE_HEAD, HANG]], ids=["says nothing", "says only its head"])
async def test_an_engine_that_hangs_costs_time_but_no_request_while_another_lives_and_is_ejected(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, script: Script
) -> None:
    engine.script, other_engine.script = script, stream("ok")
    gateway = await start_gateway(engine, other_engine, first_byte_timeout_s=0.2)
    for _ in range(2 * routing.FAILURES_ALLOWED + 2):
        answer = await call(gateway.port, request(STREAM))
        assert answer.status == 200
        assert answer.body.endswith(DONE)
    assert len(engine.seen) == gateway.plane.metrics.retries == routing.FAILURES_ALLOWED
    assert gateway.plane.metrics.upstream_errors == {"first_byte_timeout": routing.FAILURES_ALLOWED}
    assert gateway.plane.fleet.engines[f"127.0.0.1:{engine.port}"].standing.is_ejected
    async with asyncio.timeout(1):
        for seen in engine.seen:
            await seen.closed.wait()


async def test_an_engine_that_says_what_it_serves_may_hang_all_the_same(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, first_byte_timeout_s=0.2)
    assert (await call(gateway.port)).status == 504
    [one] = gateway.plane.fleet.engines.values()
    assert gateway.plane._loop is not None
    asked = engine.model_calls
    looking = asyncio.run_coroutine_threadsafe(Discovery(gateway.plane).once(), gateway.plane._loop)
    await asyncio.wrap_future(looking)
    assert engine.model_calls == asked + 1
    assert one.standing.failures == 1


async def test_when_every_engine_hangs_the_time_out_is_the_answer(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [SSE_HEAD, HANG]
    gateway = await start_gateway(engine, other_engine, first_byte_timeout_s=0.2)
    answer = await call(gateway.port, request(STREAM))
    assert (answer.status, answer.code) == (504, "engine_timeout")
    assert serves_twice(engine, other_engine) == 2


async def test_the_requests_of_a_dying_engine_go_elsewhere_however_many_they_are(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, other_engine)
    async with await Client.connect(gateway.port) as client:
        for _ in range(400):
            client.send(request())
            await client.answer()
    engine.seen.clear()
    engine.script, other_engine.script = [HANG], [0.2, reply(completion())]
    clients = [await Client.connect(gateway.port) for _ in range(60)]
    for client in clients:
        client.send(request())
    await eventually(lambda: len(engine.seen) >= 25)
    await engine.stop()
    for client in clients:
        assert (await client.answer()).status == 200
        client.close()
    assert gateway.plane.metrics.retries >= 25


async def test_a_kept_connection_that_the_engine_closed_is_replaced(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, engine_keep_alive_s=60)
    engine.scripts = [[reply(completion())], [CLOSE], [reply(completion("again"))]]
    assert (await call(gateway.port)).status == 200
    # The second request goes out on the kept connection, which the engine closes without an answer.
    answer = await call(gateway.port)
    assert answer.body == completion("again")
    assert not gateway.plane.metrics.upstream_errors


async def test_work_goes_where_least_is_outstanding(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = other_engine.script = [HANG]
    gateway = await start_gateway(engine, other_engine)
    clients = [await Client.connect(gateway.port) for _ in range(10)]
    for at, client in enumerate(clients):
        client.send(request())
        await eventually(lambda at=at: serves_twice(engine, other_engine) == at + 1)
    assert len(engine.seen) == len(other_engine.seen) == 5
    for client in clients:
        client.close()


async def assert_memory_of_requests_is_gone(gateway: GatewayThread) -> None:
    await eventually(lambda: not gateway.plane.exchanges and not gateway.plane.connections)


async def test_nothing_stays_behind(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.choose = lambda seen: stream("a") if seen.json.get("stream") else [reply(completion())]
    gateway = await start_gateway(engine)
    for body in (None, STREAM, b"{", None):
        await call(gateway.port, request(body))
    await assert_memory_of_requests_is_gone(gateway)
    assert gateway.plane.metrics.cells["tiny", "default"].in_flight == 0

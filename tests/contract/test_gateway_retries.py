"""Another engine takes over where that is possible; errors of engines; which engines are left out."""

import asyncio
import gc
import json
import time
from typing import cast

import pytest

from specpilot.gateway.engines.probe import Probe
from specpilot.gateway.routing import outlier_detection as routing
from specpilot.gateway.routing.prefix import points_of
from specpilot.gateway.wire.request_facts import read_facts
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import PATH, STREAM, Client, call, request
from tests.support.gateway_server import eventually
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    RESET,
    SSE_HEAD,
    Act,
    Script,
    ScriptedEngine,
    chunk,
    completion,
    event,
    reply,
    stream,
)

WHOLE = reply(completion())

OVERLOADED = reply(
    b'{"error":{"message":"full","type":"overloaded","param":null,"code":503}}', "503 Service Unavailable"
)
ERROR_CUT_OFF: Script = [b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 99\r\n\r\n{", CLOSE]


def serves_twice(first: ScriptedEngine, second: ScriptedEngine) -> int:
    return len(first.seen) + len(second.seen)


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


@pytest.mark.parametrize("script", [[OVERLOADED], [CLOSE], ERROR_CUT_OFF], ids=["503", "closed", "cut off"])
async def test_a_retry_goes_by_the_same_session_and_sends_the_same_bytes(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, script: Script
) -> None:
    engine.script = other_engine.script = script
    gateway = await start_gateway(engine, other_engine)
    body = {**STREAM, "user": "u", "prompt": "x" * 100_000, "stream_options": {"include_usage": True}}
    assert (await call(gateway.port, request(body))).status in (502, 503)
    counts = gateway.context.fleet.chooser.counts
    assert {rule: count for rule, count in counts.items() if count} == {"session": 1, "session_spilled": 1}
    for seen in (*engine.seen, *other_engine.seen):
        assert seen.json == {**body, "vllm_xargs": {"traffic_class": "default"}}
    assert serves_twice(engine, other_engine) == 2


async def test_a_refused_request_goes_to_another_engine(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [OVERLOADED]
    gateway = await start_gateway(engine, other_engine)
    for _ in range(6):
        assert (await call(gateway.port)).status == 200
    assert len(other_engine.seen) == 6
    assert gateway.context.metrics.upstream_errors["status_503"] == len(engine.seen)


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
    assert gateway.context.metrics.retries <= 10 + 0.1 * 100 + 5


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
    chooser = gateway.context.fleet.chooser
    assert gateway.context.metrics.retries < len(bodies)
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
    assert not any(one.outlier_detection.is_ejected for one in gateway.context.fleet.engines.values())


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
    assert gateway.context.metrics.retries <= 2
    assert gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection.is_ejected
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
    [one] = gateway.context.fleet.engines.values()
    await eventually(lambda: not one.outlier_detection.is_ejected)
    assert (await call(gateway.port)).status == 200
    assert one.outlier_detection.share(time.monotonic()) < 1.0


@pytest.mark.parametrize("closes", [False, True], ids=["kept", "closed"])
async def test_an_engine_of_server_errors_costs_nothing_while_another_lives_and_is_ejected(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, closes: bool
) -> None:
    answer = reply(b"{}", "500 Internal Server Error", extra="connection: close\r\n" if closes else "")
    engine.script = [answer, CLOSE] if closes else [answer]
    gateway = await start_gateway(engine, other_engine)
    assert {(await call(gateway.port)).status for _ in range(2 * routing.FAILURES_ALLOWED + 2)} == {200}
    assert len(engine.seen) == gateway.context.metrics.retries == routing.FAILURES_ALLOWED
    assert gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection.is_ejected


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
    assert len(engine.seen) == gateway.context.metrics.retries == 1  # nothing else came from it meanwhile
    assert gateway.context.metrics.upstream_errors == {"first_byte_timeout": 1}
    assert gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection.is_ejected
    async with asyncio.timeout(1):
        for seen in engine.seen:
            await seen.closed.wait()


async def test_an_engine_that_says_what_it_serves_may_hang_all_the_same(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, first_byte_timeout_s=0.2)
    assert (await call(gateway.port)).status == 504
    [one] = gateway.context.fleet.engines.values()
    assert gateway.context._loop is not None
    asked = engine.model_calls
    looking = asyncio.run_coroutine_threadsafe(
        Probe(gateway.context.fleet, gateway.context.monotonic, lambda _: None).once(), gateway.context._loop
    )
    await asyncio.wrap_future(looking)
    assert engine.model_calls == asked + 1
    assert one.outlier_detection.failures == 1
    assert one.outlier_detection.is_ejected


async def test_one_stream_that_times_out_on_a_silent_engine_spares_the_others_their_longer_wait(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    """Its server goes on answering probes, and JSON clients are allowed 600 s."""
    gateway = await start_gateway(engine, other_engine, stream_first_byte_timeout_s=0.5)
    engine.script, other_engine.choose = [HANG], lambda seen: stream("ok") if "stream" in seen.json else [WHOLE]
    calls = [call(gateway.port, request(body), timeout_s=4.0) for body in [STREAM, STREAM] * 4 + [None] * 8]
    assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
    assert any("stream" in seen.json for seen in engine.seen)
    assert not all("stream" in seen.json for seen in engine.seen)
    detection = gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection
    assert detection.is_ejected
    await asyncio.sleep(1.0)  # a probe, too, would have ended a first ejection
    assert detection.is_ejected


async def test_a_busy_engine_is_not_ejected_by_one_time_out(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, stream_first_byte_timeout_s=0.5)
    engine.scripts = [[HANG], [0.2, WHOLE]]
    waiting = asyncio.create_task(call(gateway.port, request(STREAM)))
    await engine.wait_seen(1)
    assert (await call(gateway.port)).status == 200
    assert (await waiting).status == 504
    [detection] = [one.outlier_detection for one in gateway.context.fleet.engines.values()]
    assert (detection.is_ejected, detection.failures) == (False, 1)


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
    assert gateway.context.metrics.retries >= 25


async def test_a_kept_connection_that_the_engine_closed_is_replaced(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, engine_keep_alive_s=60)
    engine.scripts = [[reply(completion())], [CLOSE], [reply(completion("again"))]]
    assert (await call(gateway.port)).status == 200
    # The second request goes out on the kept connection, which the engine closes without an answer.
    answer = await call(gateway.port)
    assert answer.body == completion("again")
    assert not gateway.context.metrics.upstream_errors


@pytest.mark.parametrize("end", [CLOSE, RESET])
async def test_a_kept_connection_that_breaks_later_is_the_engines_failure(
    engine: ScriptedEngine, start_gateway: StartGateway, end: Act
) -> None:
    gateway = await start_gateway(engine, engine_keep_alive_s=60)
    engine.scripts = [[reply(completion())], [1.2, end], [reply(completion("again"))]]
    assert (await call(gateway.port)).status == 200
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (502, "bad_engine_response")
    assert len(engine.seen) == 2
    assert engine.seen[1].connection == engine.seen[0].connection
    assert gateway.context.metrics.retries == 0
    assert gateway.context.metrics.upstream_errors == {"closed" if end is CLOSE else "reset": 1}


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

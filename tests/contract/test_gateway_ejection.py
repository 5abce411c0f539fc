"""Outlier ejection: engines that are dead, fail or hang; not those whose requests are at fault."""

import asyncio
from typing import Any

import pytest

from specpilot.gateway.engines import probe
from specpilot.gateway.engines.probe import Probe
from specpilot.gateway.routing import outlier_detection as routing
from specpilot.gateway.routing.outlier_detection import FAILURES_ALLOWED
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    Seen,
    chunk,
    completion,
    event,
    reply,
    requests_of,
    stream,
)

WHOLE = reply(completion())


async def test_a_dead_engine_alone_is_a_clear_error_and_comes_back(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gateway = await start_gateway(engine, clock=clock)
    await engine.stop()
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (503, "engine_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 503
    await engine.start()
    [one] = gateway.context.fleet.engines.values()
    clock.at = one.outlier_detection.ejected_until
    await eventually(lambda: not one.outlier_detection.is_ejected)
    assert (await call(gateway.port)).status == 200
    assert one.outlier_detection.share(clock.at) < 1.0


@pytest.mark.parametrize("script", [[HANG], [SSE_HEAD, HANG]], ids=["says nothing", "says only its head"])
async def test_an_engine_that_hangs_costs_time_but_no_request_while_another_lives_and_is_ejected(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock, script: Script
) -> None:
    engine.script, other_engine.script = script, stream("ok")
    gateway = await start_gateway(engine, other_engine, clock=clock, first_byte_timeout_s=0.2)
    for _ in range(2 * routing.FAILURES_ALLOWED + 2):
        answered = asyncio.create_task(call(gateway.port, request(STREAM)))
        await eventually(lambda answered=answered: answered.done() or engine.seen)
        if not answered.done():
            clock.at += 0.3
        answer = await answered
        assert answer.status == 200
        assert answer.body.endswith(DONE)
        assert float(answer.headers["x-specpilot-overhead-ms"]) == 0.0, "the engine's silence is not the gateway's"
    assert len(engine.seen) == gateway.context.metrics.retries == 1  # nothing else came from it meanwhile
    assert gateway.context.metrics.upstream_errors == {"first_byte_timeout": 1}
    assert gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection.is_ejected
    await engine.seen[0].until_closed()


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


@pytest.mark.parametrize("status", [500, 505])
async def test_an_error_that_breaks_off_counts_once(
    engine: ScriptedEngine, start_gateway: StartGateway, status: int
) -> None:
    engine.script = [
        b"HTTP/1.1 %d Oops\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{" % status,
        CLOSE,
    ]
    gateway = await start_gateway(engine)
    assert (await call(gateway.port)).code == "bad_engine_response"
    [one] = gateway.context.fleet.engines.values()
    assert one.outlier_detection.failures == 1


async def test_one_stream_that_times_out_on_a_silent_engine_spares_the_others_their_longer_wait(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    """Its server goes on answering probes, and JSON clients are allowed 600 s."""
    gateway = await start_gateway(engine, other_engine, clock=clock, stream_first_byte_timeout_s=0.5)
    engine.script, other_engine.choose = [HANG], lambda seen: stream("ok") if "stream" in seen.json else [WHOLE]
    bodies = [STREAM, STREAM] * 4 + [None] * 8
    calls = [asyncio.create_task(call(gateway.port, request(body))) for body in bodies]
    await eventually(lambda: requests_of(engine, other_engine) == len(bodies))
    clock.at += 0.6
    assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
    assert any("stream" in seen.json for seen in engine.seen)
    assert not all("stream" in seen.json for seen in engine.seen)
    detection = gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection
    assert detection.is_ejected
    clock.at += 1.0  # a probe, too, would have ended a first ejection
    probed = engine.model_calls + other_engine.model_calls
    clock.at += probe.PROBE_S
    await eventually(lambda: engine.model_calls + other_engine.model_calls > probed)
    assert detection.is_ejected


async def test_a_busy_engine_is_not_ejected_by_one_time_out(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gateway = await start_gateway(engine, clock=clock, stream_first_byte_timeout_s=0.5)
    engine.scripts = [[HANG], [WHOLE]]
    waiting = asyncio.create_task(call(gateway.port, request(STREAM)))
    await engine.wait_seen(1)
    clock.at += 0.2
    assert (await call(gateway.port)).status == 200
    clock.at += 0.4
    assert (await waiting).status == 504
    [detection] = [one.outlier_detection for one in gateway.context.fleet.engines.values()]
    assert (detection.is_ejected, detection.failures) == (False, 1)


FAILED = b'{"error":{"message":"grammar","type":"InternalServerError","param":null,"code":500}}'
ERROR_EVENT = b"data: " + FAILED + b"\n\n"
FAILURES: dict[str, Script] = {
    "500": [reply(FAILED, "500 Internal Server Error")],
    "503": [reply(FAILED, "503 Service Unavailable")],
    "505": [reply(FAILED, "505 What")],
    "200 with an error": [reply(FAILED)],
    "error event": [SSE_HEAD, chunk(ERROR_EVENT), LAST_CHUNK],
    "closed": [CLOSE],
    "error event behind content": [SSE_HEAD, chunk(event("a") + ERROR_EVENT), LAST_CHUNK],
    "broken off": [SSE_HEAD, chunk(event("a")), 0.02, CLOSE],
}
KEYS = [{"key_id": f"k{at}", "key": f"secret-{at}"} for at in range(2)]


def body(bad: bool, **more: Any) -> dict[str, Any]:
    return {**STREAM, **({"structured_outputs": {"grammar": "root ::= "}} if bad else {}), **more}


def fails_by_body(script: Script) -> Any:
    """Return the script of an engine that fails some requests only."""

    def choose(seen: Seen) -> Script:
        if seen.path == "/health":
            return [reply(b"")]
        return script if "structured_outputs" in seen.json else [reply(completion())]

    return choose


def ejected(gateway: GatewayThread) -> int:
    return sum(one.outlier_detection.is_ejected for one in gateway.context.fleet.engines.values())


@pytest.mark.parametrize("failure", FAILURES)
async def test_one_body_of_one_client_ejects_nobody(
    engine: ScriptedEngine, gateway: GatewayThread, failure: str
) -> None:
    engine.choose = fails_by_body(FAILURES[failure])
    for _ in range(3 * FAILURES_ALLOWED):
        await call(gateway.port, request(body(bad=True)))
    assert ejected(gateway) == 0
    assert (await call(gateway.port, request(body(bad=False)))).status == 200


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_body_that_fails_on_two_engines_ejects_neither(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, failure: str
) -> None:
    engine.choose = other_engine.choose = fails_by_body(FAILURES[failure])
    gateway = await start_gateway(engine, other_engine, api_keys_file=None)
    for at in range(3 * FAILURES_ALLOWED):
        more = {} if "behind" in failure or failure == "broken off" else {"max_tokens": at + 1}
        await call(gateway.port, request(body(bad=True, **more)))
    assert ejected(gateway) == 0


async def test_several_bodies_of_one_client_have_the_engine_asked(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    engine.choose = fails_by_body(FAILURES["500"])
    [one] = gateway.context.fleet.engines.values()
    for at in range(FAILURES_ALLOWED):
        await call(gateway.port, request(body(bad=True, max_tokens=at + 1)))
    await eventually(lambda: any(seen.path == "/health" for seen in engine.seen))
    await eventually(lambda: one.outlier_detection.failures == 0)
    assert ejected(gateway) == 0
    engine.choose = None
    engine.script = FAILURES["500"]  # everything, its health too
    for at in range(FAILURES_ALLOWED):
        await call(gateway.port, request(body(bad=True, max_tokens=at + 1)))
    await eventually(lambda: ejected(gateway) == 1)


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_failures_of_several_keys_eject(
    engine: ScriptedEngine, start_gateway: StartGateway, failure: str
) -> None:
    engine.script = FAILURES[failure]
    gateway = await start_gateway(engine, keys=KEYS)
    for at in range(FAILURES_ALLOWED):
        header = f"authorization: Bearer secret-{at % 2}\r\n"
        more = {"user": str(at % 2)} if failure in ("broken off", "error event behind content") else {}
        await call(gateway.port, request(body(bad=True, **more), headers=header))
    assert ejected(gateway) == 1


async def test_a_body_that_another_engine_answers_is_the_engines_fault(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.choose = fails_by_body(FAILURES["500"])
    gateway = await start_gateway(engine, other_engine)
    for _ in range(3 * FAILURES_ALLOWED):
        assert (await call(gateway.port, request(body(bad=True)))).status == 200
    assert ejected(gateway) == 1


async def test_an_address_that_leads_to_another_engine_is_dialled_anew_after_one_failure(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    """The old one refuses what comes on connections that stand, and closes none."""
    gate = asyncio.Event()
    engine.script = [gate, reply(completion())]
    calls = [asyncio.create_task(call(gateway.port)) for _ in range(3)]
    await engine.wait_seen(3)
    gate.set()
    await asyncio.gather(*calls)  # three connections are kept
    old = engine.connections
    draining = reply(FAILED.replace(b"500", b"503"), "503 Service Unavailable")
    engine.choose = lambda seen: [draining if seen.connection <= old else reply(completion())]
    assert [(await call(gateway.port)).status for _ in range(4)] == [503, 200, 200, 200]

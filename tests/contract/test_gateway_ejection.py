"""Outlier ejection: engines that are dead, fail or hang, what that costs, and which are not ejected."""

import asyncio

import pytest

from specpilot.gateway.engines import probe
from specpilot.gateway.engines.probe import Probe
from specpilot.gateway.routing import outlier_detection as routing
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import eventually
from tests.support.hand_clock import Clock
from tests.support.scripted_engine import (
    DONE,
    HANG,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    completion,
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

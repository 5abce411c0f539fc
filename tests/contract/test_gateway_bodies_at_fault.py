"""Requests that fail by their own content, as vLLM answers 500 to some grammars, take no engine from the others."""

import asyncio
from typing import Any

import pytest

from specpilot.gateway.routing.outlier_detection import FAILURES_ALLOWED
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import (
    CLOSE,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    Seen,
    chunk,
    completion,
    event,
    reply,
)

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

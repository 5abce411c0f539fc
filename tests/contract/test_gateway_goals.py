"""The latency goals of a class at the gateway: which streams count, and what they count."""

import asyncio
import json
from typing import Any

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Policy, VersionedPolicy
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import DONE, LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, event, usage_event

GOALS = ClassPolicy(slo=Slo(tpot_ms={Statistic.P95: 30.0}, ttft_ms={Statistic.P95: 60_000.0}))
STREAM: dict[str, Any] = {"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "hi"}]}


async def gateway_with_goals(engine: ScriptedEngine, start_gateway: StartGateway) -> GatewayThread:
    gateway = await start_gateway(engine)
    policies = {"tiny": VersionedPolicy(1, 1.0, Policy("tiny", classes={"default": GOALS}))}
    await gateway.adopt(Snapshot(policies=policies))
    return gateway


def counted(gateway: GatewayThread) -> dict[str, dict[str, int]]:
    return gateway.context.metrics.cell("tiny", "default").slo


@pytest.mark.parametrize("several", [{"n": 4}, {"prompt": ["one", "two", "three", "four"], "messages": None}])
async def test_a_stream_of_several_choices_has_no_time_per_token(
    engine: ScriptedEngine, start_gateway: StartGateway, several: dict[str, Any]
) -> None:
    """Ten tokens of each of four choices at 40 ms are forty tokens, which are not 10 ms apart for anybody."""
    gateway = await gateway_with_goals(engine, start_gateway)
    engine.scripts = [
        [SSE_HEAD, chunk(event("a")), 0.36, chunk(event("b")), chunk(usage_event(tokens)), chunk(DONE), LAST_CHUNK]
        for tokens in (10, 40)
    ]
    path = "/v1/completions" if "prompt" in several else "/v1/chat/completions"
    for body in (STREAM, STREAM | several):
        answer = await call(gateway.port, request({key: value for key, value in body.items() if value}, path=path))
        assert answer.status == 200
    await eventually(lambda: counted(gateway).get("ttft", {}).get("within") == 2)
    assert counted(gateway)["tpot"] == {"within": 0, "beyond": 1}


async def test_a_stream_that_is_an_error_met_no_goal(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await gateway_with_goals(engine, start_gateway)
    error = b"data: " + json.dumps({"error": {"message": "out of memory", "code": 500}}).encode() + b"\n\n"
    engine.script = [SSE_HEAD, chunk(error), chunk(DONE), LAST_CHUNK]
    await call(gateway.port, request(STREAM))
    await asyncio.sleep(0)
    await eventually(lambda: sum(gateway.context.metrics.cell("tiny", "default").requests.values()) == 1)
    assert counted(gateway) == {}

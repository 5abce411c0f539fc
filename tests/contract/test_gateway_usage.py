"""What is counted of a stream: its usage, asked of engines unseen by clients, and the latency goals of its class."""

import asyncio
import json
from typing import Any

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Policy, VersionedPolicy
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import DONE, LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, event, usage_event

SCRIPT = [SSE_HEAD, chunk(event("a")), chunk(usage_event(40_000) + DONE), LAST_CHUNK]


async def test_engines_without_stream_options_work(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = SCRIPT
    gateway = await start_gateway(engine, ask_usage=False)
    assert usage_event(40_000) in (await call(gateway.port, request(STREAM))).body
    assert "stream_options" not in engine.seen[0].json


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
@pytest.mark.parametrize("is_large", [False, True])
async def test_engines_get_the_priority_of_the_class_and_never_the_clients(
    engine: ScriptedEngine, start_gateway: StartGateway, path: str, is_large: bool
) -> None:
    """Negated, because in vLLM the lower one goes first. A client's own becomes 0."""
    policy = Policy("tiny", classes={"urgent": ClassPolicy(priority=7), "batch": ClassPolicy(priority=-3)})
    text = "x" * 100_000 if is_large else "x"

    async def sent_with(send_priority: bool, traffic_class: str, **more: int) -> str | None:
        gateway = await start_gateway(engine, send_priority=send_priority)
        await gateway.adopt(Snapshot(policies={"tiny": VersionedPolicy(1, 1.0, policy)}))
        sent = request(
            {"model": "tiny", "input": text, **more}, path=path, headers=f"x-traffic-class: {traffic_class}\r\n"
        )
        assert (await call(gateway.port, sent)).status == 200
        assert engine.seen[-1].json.get("priority") == (0 if more else None)
        return engine.seen[-1].headers.get("x-vllm-priority")

    for own in ({}, {"priority": -100}, {"priority": 100}):
        assert await sent_with(True, "urgent", **own) == "-7"
        assert await sent_with(True, "batch", **own) == "3"
        assert await sent_with(True, "default", **own) is None
        assert await sent_with(False, "urgent", **own) is None


GOALS = ClassPolicy(slo=Slo(tpot_ms={Statistic.P95: 30.0}, ttft_ms={Statistic.P95: 60_000.0}))


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

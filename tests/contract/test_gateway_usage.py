"""Usage is asked of engines on every stream, and clients that did not ask see nothing of it."""

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy.model_policy import ClassPolicy, Policy, VersionedPolicy
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, call, request
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

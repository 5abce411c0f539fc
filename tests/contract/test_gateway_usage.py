"""Usage is asked of engines on every stream, and clients that did not ask see nothing of it."""

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy.model_policy import ClassPolicy, Policy, VersionedPolicy
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, STREAM, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import DONE, LAST_CHUNK, SSE_HEAD, ScriptedEngine, chunk, event, usage_event

SCRIPT = [SSE_HEAD, chunk(event("a")), chunk(usage_event(40_000) + DONE), LAST_CHUNK]


@pytest.mark.parametrize("asks", [False, True])
async def test_a_stream_is_counted_by_its_usage_and_shows_it_to_who_asked(
    engine: ScriptedEngine, gateway: GatewayThread, asks: bool
) -> None:
    engine.script = SCRIPT
    answer = await call(gateway.port, request(ASKING if asks else STREAM))
    assert engine.seen[0].json["stream_options"] == {"include_usage": True}
    assert answer.body == event("a") + (usage_event(40_000) if asks else b"") + DONE
    assert gateway.context.metrics.cells["tiny", "default"].tokens_by_usage == 40_000


async def test_a_stream_is_charged_what_it_used(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = SCRIPT
    gateway = await start_gateway(engine, keys=[{"key_id": "k", "key": "sk-1", "tokens_per_minute": 1000}])
    sent = request(STREAM, headers="authorization: Bearer sk-1\r\n")
    assert (await call(gateway.port, sent)).status == 200
    refused = await call(gateway.port, sent)
    assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) > 2000


async def test_engines_without_stream_options_work(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = SCRIPT
    gateway = await start_gateway(engine, ask_usage=False)
    assert usage_event(40_000) in (await call(gateway.port, request(STREAM))).body
    assert "stream_options" not in engine.seen[0].json


async def test_a_client_cannot_choose_its_rank_or_its_place_in_the_engines_queue(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    body = {"model": "tiny", "input": "x", "priority": -100}
    for path in ("/v1/embeddings", "/v1/chat/completions"):
        sent = request(body, path=path, headers="X-data-parallel-rank: 3\r\nX-Vllm-Priority: -100\r\n")
        assert (await call(gateway.port, sent)).status == 200
    await eventually(lambda: len(engine.seen) == 2)
    for seen in engine.seen:
        assert seen.json["priority"] == 0
        assert not {"x-data-parallel-rank", "x-vllm-priority"} & set(seen.headers)


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
        context = gateway.context
        context._loop.call_soon_threadsafe(context.adopt, Snapshot(policies={"tiny": VersionedPolicy(1, 1.0, policy)}))
        await eventually(lambda: "urgent" in context.snapshot.known_classes("tiny"))
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

"""Requests that name no model."""

import json
from typing import Any

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.gateway.wire.routes import PROXIED, STORED
from specpilot.policy.model_routes import ModelRoute, Target
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import RESET, ScriptedEngine

BODIES = sorted(PROXIED - STORED)
MISSING: list[dict[str, Any]] = [{}, {"model": None}, {"model": ""}]


async def routed(gateway: GatewayThread, **routes: ModelRoute) -> None:
    await gateway.adopt(Snapshot(model_routes=routes))


@pytest.mark.parametrize("path", BODIES)
async def test_the_only_model_is_meant_on_every_route(
    engine: ScriptedEngine, gateway: GatewayThread, path: str
) -> None:
    for size in (1, 100_000):
        for missing in MISSING:
            body = {"input": "a" * size, "messages": [], **missing}
            assert (await call(gateway.port, request(body, path=path))).status == 200
            sent = json.loads(engine.seen[-1].body)
            assert sent["model"] == "tiny"  # some engines need it: vLLM itself on Anthropic's routes
            assert sent["input"] == body["input"]
            assert engine.seen[-1].body.count(b'"model"') == 1


@pytest.mark.parametrize("body", [b"{}", b" { } ", b'{"model":null}', b'{"model":"x","model":""}'])
async def test_a_body_of_no_member_besides_stays_json(
    engine: ScriptedEngine, gateway: GatewayThread, body: bytes
) -> None:
    for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/responses"):
        assert (await call(gateway.port, request(body, path=path))).status == 200
        assert engine.seen[-1].json["model"] == "tiny"


async def test_of_two_models_none_is_meant(two_models: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(two_models)
    for path in BODIES:
        for missing in MISSING:
            answer = await call(gateway.port, request({"input": "a", **missing}, path=path))
            assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_field")
            assert answer.json["error"]["param"] == "model"
    assert two_models.seen == []


async def test_of_an_engine_with_adapters_its_base_model_is_meant(
    two_models: ScriptedEngine, start_gateway: StartGateway
) -> None:
    two_models.models = ["tiny"]
    gateway = await start_gateway(two_models)
    [one] = gateway.context.fleet.engines.values()
    await eventually(lambda: one.cards is not None)
    one.cards = (*one.cards, {"id": "lora", "parent": "tiny"})
    await gateway.on_loop(gateway.context.fleet.index)
    assert (await call(gateway.port, request({"messages": []}))).status == 200
    assert two_models.seen[-1].json["model"] == "tiny"


async def test_what_a_key_may_not_use_cannot_be_meant(two_models: ScriptedEngine, start_gateway: StartGateway) -> None:
    keys = [{"key_id": "k", "key": "sk-1", "allowed_models": ["other"]}, {"key_id": "l", "key": "sk-2"}]
    gateway = await start_gateway(two_models, keys=keys)
    own = {"headers": "authorization: Bearer sk-1\r\n"}
    assert (await call(gateway.port, request({"messages": []}, **own))).status == 200
    assert two_models.seen[-1].json["model"] == "other"
    answer = await call(gateway.port, request({"messages": []}, headers="authorization: Bearer sk-2\r\n"))
    assert answer.status == 400


async def test_the_only_route_is_meant(two_models: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(two_models)
    await routed(gateway, public=ModelRoute(split=(Target("tiny"), Target("other"))))
    for path in BODIES:
        answer = await call(gateway.port, request({"input": "a"}, path=path))
        assert answer.status == 200
        assert two_models.seen[-1].json["model"] == answer.headers["x-specpilot-model"]
    assert {seen.json["model"] for seen in two_models.seen} == {"tiny", "other"}
    assert gateway.context.metrics.model_routes.keys() == {"public"}
    await routed(gateway, tiny=ModelRoute(fallback=("other",)))
    assert (await call(gateway.port, request({"messages": []}))).status == 200
    assert two_models.seen[-1].json["model"] == "tiny"
    await routed(gateway, public=ModelRoute(split=(Target("tiny"),)))
    assert (await call(gateway.port, request({"messages": []}))).status == 400


async def test_a_request_without_a_model_falls_back_as_any(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    other_engine.models = ["spare"]
    gateway = await start_gateway(engine, other_engine)
    await routed(gateway, tiny=ModelRoute(fallback=("spare",)))
    engine.script = [RESET]
    answer = await call(gateway.port, request({"messages": []}))
    assert (answer.status, answer.headers["x-specpilot-model"]) == (200, "spare")
    assert (engine.seen[-1].json["model"], other_engine.seen[-1].json["model"]) == ("tiny", "spare")

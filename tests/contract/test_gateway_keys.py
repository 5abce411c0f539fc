"""What an API key may: models, requests at once, a ceiling on K; and what is counted of it."""

import asyncio
import json
import re
from typing import Any

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, Answer, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import HANG, ScriptedEngine, stream

AUTH = "authorization: Bearer sk-own\r\n"


def keys(**may: Any) -> list[dict[str, Any]]:
    return [{"key_id": "own", "key": "sk-own", **may}, {"key_id": "free", "key": "sk-free"}]


async def ask(gateway: GatewayThread, headers: str = "", **members: Any) -> Answer:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **members}
    return await call(gateway.port, request(body, headers=AUTH + headers))


async def test_a_key_asks_for_its_models_alone(two_models: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(two_models, keys=keys(allowed_models=["tiny"]))
    assert (await ask(gateway)).status == 200
    for model in ("other", "nothing of this name"):
        refused = await ask(gateway, model=model)
        assert (refused.status, refused.code) == (403, "model_not_allowed")
        assert refused.json["error"]["param"] == "model"
        assert "GET /v1/models" in refused.json["error"]["message"]
    assert len(two_models.seen) == 1
    listed = await call(gateway.port, request(path="/v1/models", method="GET", headers=AUTH))
    assert [card["id"] for card in listed.json["data"]] == ["tiny"]
    hidden = await call(gateway.port, request(path="/v1/models/other", method="GET", headers=AUTH))
    assert hidden.code == "model_not_found"
    free = await call(gateway.port, request({"model": "other"}, headers="authorization: Bearer sk-free\r\n"))
    assert free.status == 200


@pytest.mark.parametrize("padding", [0, 100_000])
async def test_a_body_that_names_two_models_asks_for_the_one_that_its_key_may(
    two_models: ScriptedEngine, start_gateway: StartGateway, padding: int
) -> None:
    """Parsers differ in which of two members they take; vLLM's takes the last, others the first."""
    gateway = await start_gateway(two_models, keys=keys(allowed_models=["tiny"]))
    prompt = b'"prompt":"' + b"x" * padding + b'"'
    for body in (
        b'{"model":"other",%s,"model":"tiny"}' % prompt,
        b'{"\\u006dodel":"other",%s,"model":"tiny"}' % prompt,
        b'{"model":"other","tools":[{"model":1}],%s,"\\u006dodel":"tiny"}' % prompt,
    ):
        assert (await call(gateway.port, request(body, headers=AUTH))).status == 200
        members = json.loads(two_models.seen[-1].body, object_pairs_hook=list)
        assert {value for name, value in members if name == "model"} == {"tiny"}
    refused = await call(gateway.port, request(b'{"model":"tiny","model":"other"}', headers=AUTH))
    assert refused.code == "model_not_allowed"
    plain = b'{"model":"tiny",%s}' % prompt
    assert (await call(gateway.port, request(plain, headers=AUTH))).status == 200
    assert two_models.seen[-1].body.endswith(plain[1:])


async def test_no_more_requests_of_a_key_than_it_may_have_are_under_way(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, keys=keys(max_concurrent_requests=2))
    may_go_on = asyncio.Event()
    head, first, *rest = stream("one", "two")
    engine.script = [head, first, may_go_on, *rest]
    async with await Client.connect(gateway.port) as one, await Client.connect(gateway.port) as two:
        for client in (one, two):
            client.send(request(STREAM, headers=AUTH))
        await engine.wait_seen(2)
        refused = await ask(gateway)
        assert (refused.status, refused.code) == (429, "rate_limit_exceeded")
        assert refused.json["error"]["type"] == "concurrent_requests"
        assert "2 requests of this API key" in refused.json["error"]["message"]
        assert refused.headers["retry-after"] == "1"
        assert gateway.context.metrics.refusals == {"concurrent_requests": 1}
        two.close()  # a client that leaves gives its place back, as does one whose answer is whole
        await eventually(lambda: gateway.context.rates._meters["own"].unsettled == 1)
        may_go_on.set()
        assert (await one.answer()).is_whole
    engine.script = stream("three")
    assert [(await ask(gateway, stream=True)).status for _ in range(5)] == [200] * 5


async def test_without_redis_a_worker_of_two_has_half_of_the_places_and_one_at_least(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    for limit, passing in ((4, 2), (1, 1)):
        gateway = await start_gateway(engine, workers=2, keys=keys(max_concurrent_requests=limit))
        seen = len(engine.seen)
        clients = [await Client.connect(gateway.port) for _ in range(passing)]
        for client in clients:
            client.send(request(headers=AUTH))
        await engine.wait_seen(seen + passing)
        assert (await ask(gateway)).status == 429
        for client in clients:
            client.abort()


async def test_the_ceiling_on_k_is_the_least_of_key_header_and_body(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, keys=keys(k_max=4))
    for key, header, body, held in (
        ("free", None, None, None),
        ("free", "0", None, 0),
        ("free", None, 2, 2),
        ("free", "5", 3, 3),
        ("free", "3", 5, 3),
        ("own", None, None, 4),
        ("own", "7", 9, 4),
        ("own", "1", None, 1),
        ("own", "64", 0, 0),
    ):
        headers = f"authorization: Bearer sk-{key}\r\n" + (f"x-specpilot-k-max: {header}\r\n" if header else "")
        own = {} if body is None else {"vllm_xargs": {"k_max": body, "a": 1}}
        answer = await call(gateway.port, request({"model": "tiny", **own}, headers=headers))
        assert answer.status == 200
        assert engine.seen[-1].json == {"model": "tiny", **own}
        for headers in (engine.seen[-1].headers, answer.headers):
            assert headers.get("x-specpilot-k-max") == (None if held is None else str(held))


async def test_a_ceiling_that_is_none_is_refused_and_reaches_no_route_without_drafts(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, keys=keys(k_max=1))
    for asked in ("-1", "65", "2.5", "many", ""):
        refused = await ask(gateway, f"x-specpilot-k-max: {asked}\r\n")
        assert (refused.status, refused.code) == (400, "invalid_field")
        assert refused.json["error"]["param"] == "x-specpilot-k-max"
        assert "from 0 to 64; 0 switches speculation off" in refused.json["error"]["message"]
    for value in (-1, 65, 2.5, "2", True, None):
        refused = await ask(gateway, vllm_xargs={"k_max": value})
        assert (refused.status, refused.json["error"]["param"]) == (400, "vllm_xargs.k_max")
    assert engine.seen == []
    embeddings = request({"model": "tiny", "input": "a"}, path="/v1/embeddings", headers=AUTH)
    assert (await call(gateway.port, embeddings)).status == 200
    assert "x-specpilot-k-max" not in engine.seen[-1].headers


async def test_what_a_key_uses_is_counted_by_its_id(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, keys=keys(allowed_models=["tiny"]))
    for _ in range(3):
        await ask(gateway)
    await ask(gateway, model="other")
    await call(gateway.port)  # no key: counts for none
    text = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    found = dict(re.findall(r"specpilot_gateway_key_(\w+\{[^}]*\}) (\S+)", text))
    assert found == {
        'requests_total{key_id="own",status="200"}': "3.0",
        'requests_total{key_id="own",status="403"}': "1.0",
        'tokens_total{direction="input",key_id="own"}': "9.0",
        'tokens_total{direction="output",key_id="own"}': "6.0",
    }

"""Names that have a model route: aliases, splits, fall-back models."""

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.model_policy import ClassPolicy, Policy
from specpilot.policy.model_routes import ModelRoute, ModelRoutes, Target
from specpilot.policy.store import Store
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Answer, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import HANG, ScriptedEngine, Seen, completion, reply


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def store(redis: RedisServer) -> Iterator[Store]:
    redis.client.flushall()
    with closing(Store(redis.url, PATIENCE_S)) as store:
        yield store


def answer(seen: Seen) -> list[bytes]:
    """Name in the answer the model that is asked for."""
    return [reply(completion(model=seen.json["model"]))]


@pytest.fixture
def big(engine: ScriptedEngine) -> ScriptedEngine:
    engine.models, engine.choose = ["big"], answer
    return engine


@pytest.fixture
def small(other_engine: ScriptedEngine) -> ScriptedEngine:
    other_engine.models, other_engine.choose = ["small"], answer
    return other_engine


@pytest.fixture
async def gateway(
    big: ScriptedEngine, small: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer, store: Store
) -> GatewayThread:
    store.ping()
    return await start_gateway(big, small, redis_url=redis.url)


async def route(gateway: GatewayThread, store: Store, **routes: ModelRoute) -> None:
    store.put_model_routes(ModelRoutes(routes), store.model_routes().version, 1.0)
    await eventually(lambda: gateway.context.snapshot.model_routes == routes)


async def ask(gateway: GatewayThread, model: str, headers: str = "", **members: Any) -> Answer:
    body = {"n": 1, "model": model, "messages": [{"role": "user", "content": "hi"}], **members}
    return await call(gateway.port, request(body, headers=headers))


def alias(model: str) -> ModelRoute:
    return ModelRoute(split=(Target(model),))


async def test_an_alias_is_served_by_its_model_under_the_models_policy(
    gateway: GatewayThread, store: Store, big: ScriptedEngine
) -> None:
    store.put_policy(Policy("big", classes={"code": ClassPolicy()}), None, 1.0)
    assert (await ask(gateway, "chat")).code == "model_not_found"
    await route(gateway, store, chat=alias("big"))
    answer = await ask(gateway, "chat", "x-traffic-class: code\r\n", unknown={"model": "chat"})
    assert answer.status == 200
    assert (answer.json["model"], answer.headers["x-specpilot-model"]) == ("big", "big")
    assert (answer.headers["x-specpilot-class"], answer.headers["x-specpilot-policy-version"]) == ("code", "1")
    assert big.seen[-1].json["model"] == "big"
    assert big.seen[-1].json["unknown"] == {"model": "chat"}
    assert "x-specpilot-model" not in (await ask(gateway, "big")).headers
    listed = await call(gateway.port, request(path="/v1/models", method="GET"))
    assert [card["id"] for card in listed.json["data"]] == ["big", "chat", "small"]
    await eventually(lambda: len(gateway.log_lines()) >= 3)
    logged = [(line["model"], line["requested_model"]) for line in gateway.log_lines()]
    assert logged[-2:] == [("big", "chat"), ("big", None)]


async def test_a_body_that_names_its_model_twice_or_is_large_is_for_the_same_model_throughout(
    gateway: GatewayThread, store: Store, big: ScriptedEngine
) -> None:
    await route(gateway, store, chat=alias("big"))
    for body in (
        b'{"model":"other","\\u006dodel":"chat"}',
        json.dumps({"prompt": "a" * 300_000, "model": "chat", "vllm_xargs": {"a": "b"}}).encode(),
    ):
        assert (await call(gateway.port, request(body, path="/v1/completions"))).status == 200
        pairs = json.loads(big.seen[-1].body, object_pairs_hook=list)
        assert {value for name, value in pairs if name == "model"} == {"big"}
    assert big.seen[-1].json["prompt"] == "a" * 300_000


async def test_a_conversation_stays_on_one_model_of_a_split_and_others_spread_by_weight(
    gateway: GatewayThread, store: Store
) -> None:
    await route(gateway, store, chat=ModelRoute(split=(Target("big", 3), Target("small", 1))))
    by_session = {}
    for number in range(40):
        found = {(await ask(gateway, "chat", f"x-session-id: s{number}\r\n")).json["model"] for _ in range(2)}
        found.add((await ask(gateway, "chat", prompt_cache_key=f"s{number}")).json["model"])
        assert len(found) == 1
        by_session[number] = found.pop()
    assert 20 <= sum(model == "big" for model in by_session.values()) <= 38
    alone = [(await ask(gateway, "chat")).json["model"] for _ in range(60)]
    assert {"big", "small"} == set(alone)
    text = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    counted = dict(re.findall(r'model_routes_total\{model="(\w+)",requested_model="chat",rule="split"\} (\S+)', text))
    assert sum(map(float, counted.values())) == 180
    assert float(counted["big"]) == 3 * list(by_session.values()).count("big") + alone.count("big")
    assert 'requests_total{model="chat"' not in text


async def test_requests_fall_back_while_no_engine_of_their_model_is_left_and_return_with_it(
    gateway: GatewayThread, store: Store, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    last = ModelRoute((Target("absent"),), ("big",))
    await route(gateway, store, big=ModelRoute(fallback=("absent", "small")), only=alias("big"), last=last)
    assert (await ask(gateway, "big")).json["model"] == "big"
    await big.stop()
    large = {"messages": [{"role": "user", "content": "a" * 300_000}]}
    for members in ({}, large, {"vllm_xargs": {"a": 1}, "priority": 3}):
        answer = await ask(gateway, "big", **members)  # the first finds out that nobody listens any more
        assert (answer.status, answer.json["model"], answer.headers["x-specpilot-model"]) == (200, "small", "small")
        assert small.seen[-1].json["messages"] == members.get("messages", [{"role": "user", "content": "hi"}])
    assert gateway.context.metrics.model_routes["big"]["small"] == {"fallback": 3}
    for name in ("only", "last"):
        refused = await ask(gateway, name)  # no other is left, so the one that was ejected is tried
        assert (refused.code, "cannot be reached" in refused.json["error"]["message"]) == ("engine_unavailable", True)
    assert gateway.context.metrics.cells["small", "default"].requests == {200: 3}
    assert {cell.in_flight for cell in gateway.context.metrics.cells.values()} == {0}
    await big.start()
    await eventually(lambda: gateway.context.fleet.has_engine("big"))
    assert (await ask(gateway, "big")).json["model"] == "big"


async def test_a_large_request_whose_engine_refuses_it_is_retried_at_the_fall_back_model(
    gateway: GatewayThread, store: Store, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    await route(gateway, store, big=ModelRoute(fallback=("small",)))
    big.choose = None
    big.script = [reply(b"{}", "503 Service Unavailable")]
    answer = await ask(gateway, "big", "x-specpilot-k-max: 2\r\n", messages=[{"content": "a" * 300_000}])
    assert (answer.status, answer.json["model"]) == (200, "small")
    assert (len(big.seen), len(small.seen)) == (1, 1)
    assert small.seen[0].headers["x-specpilot-k-max"] == "2"
    assert small.seen[0].json["messages"] == [{"content": "a" * 300_000}]
    assert gateway.context.metrics.retries == 1


async def test_a_route_to_nobody_says_so_and_a_key_is_held_to_the_name_that_it_asks_for(
    gateway: GatewayThread, store: Store
) -> None:
    await route(gateway, store, gone=ModelRoute((Target("absent"),), ("also-absent",)), chat=alias("big"))
    refused = await ask(gateway, "gone")
    assert (refused.status, refused.code) == (503, "engine_unavailable")
    assert "no engine serves `absent` or `also-absent`, to which `gone` is routed" in refused.json["error"]["message"]
    store.put_api_key(ApiKey("k", sha256_of("sk-k"), allowed_models=("chat",)))
    await eventually(lambda: gateway.context.snapshot.needs_key)
    headers = "authorization: Bearer sk-k\r\n"
    assert (await ask(gateway, "chat", headers)).json["model"] == "big"
    assert (await ask(gateway, "big", headers)).code == "model_not_allowed"
    listed = await call(gateway.port, request(path="/v1/models", method="GET", headers=headers))
    assert [card["id"] for card in listed.json["data"]] == ["chat"]


async def test_routes_that_cannot_be_read_leave_the_last_good_ones_in_place(
    gateway: GatewayThread, store: Store
) -> None:
    await route(gateway, store, chat=alias("big"))
    store._redis.set("{specpilot}:model_routes", '{"version": 2, "routes": {"chat": {"split": "big"}}}')
    store.put_policy(Policy("big"), None, 1.0)
    await eventually(lambda: gateway.context.snapshot.policies)
    assert (await ask(gateway, "chat")).json["model"] == "big"


async def test_a_response_goes_on_with_the_model_that_began_it_whatever_the_split_draws(
    gateway: GatewayThread, store: Store, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    await route(gateway, store, either=ModelRoute(split=(Target("big"), Target("small"))))
    for engine, other in ((big, small), (small, big)):
        known = gateway.context.fleet.engines.values()
        tag = next(item.response_tag for item in known if item.url == engine.url)
        asked_before = len(other.seen)
        for turn in range(8):
            body = {"model": "either", "input": "hi", "previous_response_id": f"resp_{tag}{turn:026x}"}
            answer = await call(gateway.port, request(body, path="/v1/responses"))
            assert answer.status == 200
        assert len(other.seen) == asked_before


MANY = {f"k{at}": 1 for at in range(600)}
"""Members of a body in which no model can be put in another's place."""


async def test_a_retry_that_cannot_be_made_is_answered_all_the_same(
    gateway: GatewayThread, store: Store, big: ScriptedEngine
) -> None:
    await route(gateway, store, big=ModelRoute(fallback=("small",)))
    big.choose = None
    big.script = [reply(b"{}", "503 Service Unavailable")]
    assert (await ask(gateway, "big", **MANY)).code == "body_too_complex"
    await big.stop()
    answer = await ask(gateway, "big", **MANY)
    assert (answer.status, answer.code) == (413, "body_too_complex")
    context = gateway.context
    assert {cell.in_flight for cell in context.metrics.cells.values()} == {0}
    assert {engine.outstanding_requests for engine in context.fleet.engines.values()} == {0}


async def test_a_fault_of_the_gateway_while_it_retries_is_answered(
    gateway: GatewayThread, store: Store, big: ScriptedEngine
) -> None:
    await route(gateway, store, big=ModelRoute(fallback=("small",)))
    gateway.context.fleet.longest["small"] = "not a number"
    await big.stop()
    assert (await ask(gateway, "big")).code == "internal_error"


async def test_one_request_that_cannot_go_elsewhere_does_not_keep_the_others_there(
    gateway: GatewayThread, store: Store, big: ScriptedEngine, small: ScriptedEngine
) -> None:
    await route(gateway, store, big=ModelRoute(fallback=("small",)))
    big.choose = None
    big.script = [HANG]
    calls = [asyncio.create_task(ask(gateway, "big", **members)) for members in (MANY, {}, MANY, {})]
    await big.wait_seen(4)
    context = gateway.context
    [engine] = context.fleet.by_model["big"]

    def eject() -> None:
        engine.outlier_detection.eject(context.monotonic())
        context.engine_ejected(engine)

    await gateway.on_loop(eject)
    answers = await asyncio.gather(*calls)
    assert [answer.status for answer in answers] == [413, 200, 413, 200]


async def test_a_fall_back_keeps_what_is_said_of_the_keys_limits(
    big: ScriptedEngine,
    small: ScriptedEngine,
    start_gateway: StartGateway,
    redis: RedisServer,
    store: Store,
) -> None:
    keys = [{"key_id": "k", "key": "sk-1", "requests_per_minute": 100}]
    store.ping()
    gateway = await start_gateway(big, small, redis_url=redis.url, keys=keys)
    await route(gateway, store, big=ModelRoute(fallback=("small",)))
    await big.stop()
    answer = await ask(gateway, "big", "authorization: Bearer sk-1\r\n")
    assert (answer.status, answer.headers["x-specpilot-model"]) == (200, "small")
    assert answer.headers["x-ratelimit-limit-requests"] == "100"
    assert answer.headers["x-ratelimit-remaining-requests"] == "99"


@pytest.mark.parametrize(("name", "header"), [("my model", "my%20model"), ("größe", "gr%C3%B6%C3%9Fe"), ("a/b", "a/b")])
async def test_the_header_has_any_models_name_percent_encoded(
    engine: ScriptedEngine, start_gateway: StartGateway, name: str, header: str
) -> None:
    engine.models = [name]
    gateway = await start_gateway(engine)
    await gateway.adopt(Snapshot(model_routes={"alias ü": ModelRoute((Target(name),))}))
    answer = await call(gateway.port, request({"model": "alias ü", "messages": []}))
    assert (answer.status, answer.headers["x-specpilot-model"]) == (200, header)
    assert engine.seen[0].json["model"] == name

"""Engines, policies and keys that come from Redis: engines that register, drain and leave, and Redis away or frozen."""

import asyncio
import hashlib

import pytest

from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.model_policy import ClassPolicy, MatchRule, Policy
from specpilot.policy.records import EngineRecord
from specpilot.policy.store import Store
from tests.contract.conftest import StartGateway
from tests.support.engine_records import record
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_keys import class_of, key_headers
from tests.support.gateway_server import eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, threads_that_ask
from tests.support.scripted_engine import DONE, ScriptedEngine, completion, reply, stream


def record_of(engine: ScriptedEngine, engine_id: str = "e1", *, draining: bool = False) -> EngineRecord:
    return record(engine_id, engine.url, draining=draining)


BY_ANNOUNCEMENT_S = 3600.0
"""Seconds between two reads of Redis without an announcement, so that what arrives was announced, and at once."""

POLICY = Policy(
    model="tiny",
    classes={"code": ClassPolicy(), "batch": ClassPolicy()},
    match=(MatchRule(traffic_class="batch", max_tokens_at_most=5),),
)


async def test_engines_policies_and_keys_come_from_redis(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = Store(redis.url, PATIENCE_S)
    gateway = await start_gateway(redis_url=redis.url, redis_poll_s=BY_ANNOUNCEMENT_S)
    assert (await call(gateway.port)).code == "engine_unavailable"
    store.heartbeat(record_of(engine), 60.0)
    await eventually(lambda: gateway.context.fleet.by_model)
    answer = await call(gateway.port)
    assert answer.headers["x-specpilot-engine"] == "e1"
    assert answer.headers["x-specpilot-policy-version"] == "0"
    assert await class_of(gateway, "x-traffic-class: code\r\n") == "default"

    store.put_policy(POLICY, None, 1.0)
    await eventually(lambda: gateway.context.snapshot.policies)
    answer = await call(gateway.port, request(headers="x-traffic-class: code\r\n"))
    assert answer.headers["x-specpilot-policy-version"] == "1"
    assert answer.headers["x-specpilot-class"] == "code"
    assert await class_of(gateway, body={"max_tokens": 5}) == "batch"
    assert await class_of(gateway, body={"service_tier": "batch"}) == "batch"
    assert await class_of(gateway, body={"service_tier": "auto"}) == "default"
    assert gateway.context.metrics.unknown_class == 1

    secret = "sk-new"
    store.put_api_key(ApiKey("new", hashlib.sha256(secret.encode()).hexdigest(), "batch"))
    await eventually(lambda: gateway.context.snapshot.needs_key)
    assert (await call(gateway.port)).status == 401
    assert await class_of(gateway, key_headers(secret)) == "batch"
    store.delete_api_key("new")
    await eventually(lambda: not gateway.context.snapshot.keys)
    assert (await call(gateway.port, request(headers=key_headers(secret)))).status == 401  # closed, not open

    metrics = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    assert 'specpilot_gateway_policy_version{model="tiny"} 1.0' in metrics
    assert "\nspecpilot_gateway_snapshot_age_seconds " in metrics
    store.close()


async def test_a_draining_engine_gets_nothing_new_and_finishes(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = Store(redis.url, PATIENCE_S)
    store.heartbeat(record_of(engine, "a"), 60.0)
    store.heartbeat(record_of(other_engine, "b"), 60.0)
    gateway = await start_gateway(redis_url=redis.url, redis_poll_s=BY_ANNOUNCEMENT_S)
    await eventually(lambda: all(one.cards for one in gateway.context.fleet.engines.values()))
    may_go_on = asyncio.Event()
    head, first, *rest = stream("one", "two")
    engine.script = other_engine.script = [head, first, may_go_on, *rest]
    async with await Client.connect(gateway.port) as client, await Client.connect(gateway.port) as other:
        client.send(request(STREAM))
        other.send(request(STREAM))
        await engine.wait_seen(1)
        store.heartbeat(record_of(engine, "a", draining=True), 60.0)
        await eventually(lambda: gateway.context.fleet.engines["a"].is_draining)
        other_engine.script = [reply(completion())]
        for _ in range(6):
            assert (await call(gateway.port)).headers["x-specpilot-engine"] == "b"
        may_go_on.set()
        answers = [await client.answer(), await other.answer()]
        assert {answer.headers["x-specpilot-engine"] for answer in answers} == {"a", "b"}
        assert all(answer.is_whole and answer.body.endswith(DONE) for answer in answers)
    store.remove_engine("b")
    await eventually(lambda: "b" not in gateway.context.fleet.engines)
    answer = await call(gateway.port)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "engine_unavailable", "1")
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 503
    store.close()


async def test_without_redis_everything_goes_on(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = Store(redis.url, PATIENCE_S)
    store.heartbeat(record_of(engine), 60.0)
    store.put_policy(POLICY, None, 1.0)
    store.put_api_key(ApiKey("k", sha256_of("sk-k")))
    store.close()
    gateway = await start_gateway(redis_url=redis.url, redis_poll_s=0.2)
    headers = key_headers("sk-k", "code")
    assert await class_of(gateway, headers) == "code"
    redis.stop()
    for _ in range(20):
        assert await class_of(gateway, headers) == "code"
    await eventually(lambda: (gateway.context.snapshot_age_s or 0) > 1.0)
    assert await class_of(gateway, headers) == "code"
    redis.start()  # and it lost everything
    await eventually(lambda: (gateway.context.snapshot_age_s or 9) < 0.5)
    assert await class_of(gateway, headers) == "code"
    assert (await call(gateway.port)).status == 401


async def test_frozen_redis_delays_no_request(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread but the one that follows Redis waits for it."""
    store = Store(redis.url, PATIENCE_S)
    store.heartbeat(record_of(engine), 60.0)
    store.close()
    gateway = await start_gateway(redis_url=redis.url, redis_poll_s=0.1)
    redis.process.send_signal(19)
    threads = threads_that_ask(monkeypatch)
    try:
        for _ in range(50):
            assert (await call(gateway.port)).status == 200
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            assert (await call(gateway.port, request(path=path, method="GET"))).status == 200
        await eventually(lambda: threads)
    finally:
        redis.process.send_signal(18)
    assert threads == {"snapshot"}

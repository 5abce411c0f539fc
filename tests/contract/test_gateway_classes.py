"""Keys and classes: who may call, and which class the server gives."""

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specpilot.gateway.engines import snapshot
from specpilot.policy import keys
from specpilot.policy.api_key import ApiKey
from specpilot.policy.model_policy import ClassPolicy, MatchRule, Policy
from specpilot.policy.records import EngineRecord
from specpilot.policy.redis_store import RedisStore
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import DONE, ScriptedEngine, completion, reply, stream


def record_of(engine: ScriptedEngine, engine_id: str = "e1", *, draining: bool = False) -> EngineRecord:
    return EngineRecord(
        engine_id=engine_id,
        url=engine.url,
        model="tiny",
        pool="cpu",
        k_max=7,
        static_k=3,
        max_num_seqs=8,
        method="eagle3",
        vllm_version="0.32.0",
        adapter_version="0.1.0",
        started_at=1.0,
        heartbeat_at=2.0,
        draining=draining,
    )


POLICY = Policy(
    model="tiny",
    classes={"code": ClassPolicy(), "batch": ClassPolicy()},
    match=(MatchRule(traffic_class="batch", max_tokens_at_most=5),),
)


def key_headers(key: str, traffic_class: str | None = None) -> str:
    return f"authorization: Bearer {key}\r\n" + (f"x-traffic-class: {traffic_class}\r\n" if traffic_class else "")


@pytest.fixture
def keys_file(tmp_path: Path) -> str:
    keys = [
        {"key_id": "coder", "key": "sk-code", "traffic_class": "code", "allowed_classes": ["code"]},
        {"key_id": "any", "key": "sk-any"},
    ]
    path = tmp_path / "keys.json"
    path.write_text(json.dumps(keys))
    return str(path)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


async def class_of(gateway: GatewayThread, headers: str = "", body: dict[str, object] | None = None) -> str:
    answer = await call(gateway.port, request({"model": "tiny", **(body or {})}, headers=headers))
    assert answer.status == 200, answer.body
    return answer.headers["x-specpilot-class"]


async def test_a_key_is_required_once_there_is_one(
    engine: ScriptedEngine, start_gateway: StartGateway, keys_file: str
) -> None:
    gateway = await start_gateway(engine, api_keys_file=keys_file)
    for headers in (
        "",
        "authorization: Bearer wrong\r\n",
        "authorization: Basic sk-any\r\n",
        "authorization: sk-any\r\n",
    ):
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")):
            answer = await call(gateway.port, request(headers=headers, method=method, path=path))
            assert (answer.status, answer.code) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
    assert engine.seen == []
    for headers in ("authorization: Bearer sk-any\r\n", "authorization: bearer  sk-any\r\n", "x-api-key: sk-any\r\n"):
        assert (await call(gateway.port, request(headers=headers))).status == 200
        assert (await call(gateway.port, request(headers=headers, method="GET", path="/v1/models"))).status == 200
    for path in ("/health", "/ready", "/metrics"):
        assert (await call(gateway.port, request(method="GET", path=path))).status == 200


async def test_the_class_comes_from_key_and_header(
    engine: ScriptedEngine, start_gateway: StartGateway, keys_file: str
) -> None:
    gateway = await start_gateway(engine, api_keys_file=keys_file)
    assert await class_of(gateway, key_headers("sk-code")) == "code"
    assert await class_of(gateway, key_headers("sk-code", "default")) == "code"  # not allowed
    assert await class_of(gateway, key_headers("sk-any")) == "default"
    assert await class_of(gateway, key_headers("sk-any", "code")) == "code"
    assert gateway.context.metrics.unknown_class == 0
    assert await class_of(gateway, key_headers("sk-any", "nonsense")) == "default"
    assert gateway.context.metrics.unknown_class == 1
    sent = {"metadata": {"traffic_class": "code"}, "vllm_xargs": {"traffic_class": "default", "a": 1}}
    assert await class_of(gateway, key_headers("sk-any"), sent) == "code"
    assert engine.seen[-1].json["vllm_xargs"] == {"traffic_class": "code", "a": 1}
    assert {label for _, label in gateway.context.metrics.cells} <= {"default", "code", "other"}


async def test_a_key_can_be_required_before_there_is_one(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, require_api_key=True)
    assert (await call(gateway.port)).status == 401


async def test_engines_policies_and_keys_come_from_redis(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    gateway = await start_gateway(redis_url=redis.url)
    assert (await call(gateway.port)).code == "engine_unavailable"
    store.heartbeat(record_of(engine), 60.0)
    await eventually(lambda: gateway.context.fleet.by_model, 1.0)
    answer = await call(gateway.port)
    assert answer.headers["x-specpilot-engine"] == "e1"
    assert answer.headers["x-specpilot-policy-version"] == "0"
    assert await class_of(gateway, "x-traffic-class: code\r\n") == "default"

    store.put_policy(POLICY, None, 1.0)
    await eventually(lambda: gateway.context.snapshot.policies, 1.0)
    answer = await call(gateway.port, request(headers="x-traffic-class: code\r\n"))
    assert answer.headers["x-specpilot-policy-version"] == "1"
    assert answer.headers["x-specpilot-class"] == "code"
    assert await class_of(gateway, body={"max_tokens": 5}) == "batch"
    assert await class_of(gateway, body={"service_tier": "batch"}) == "batch"
    assert await class_of(gateway, body={"service_tier": "auto"}) == "default"
    assert gateway.context.metrics.unknown_class == 1

    secret = "sk-new"
    store.put_api_key(ApiKey("new", hashlib.sha256(secret.encode()).hexdigest(), "batch"))
    await eventually(lambda: gateway.context.snapshot.needs_key, 1.0)
    assert (await call(gateway.port)).status == 401
    assert await class_of(gateway, key_headers(secret)) == "batch"
    store.delete_api_key("new")
    await eventually(lambda: not gateway.context.snapshot.keys, 1.0)
    assert (await call(gateway.port, request(headers=key_headers(secret)))).status == 401  # closed, not open

    metrics = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    assert 'specpilot_gateway_policy_version{model="tiny"} 1.0' in metrics
    assert "\nspecpilot_gateway_snapshot_age_seconds " in metrics
    store.close()


async def test_a_draining_engine_gets_nothing_new_and_finishes(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store.heartbeat(record_of(engine, "a"), 60.0)
    store.heartbeat(record_of(other_engine, "b"), 60.0)
    gateway = await start_gateway(redis_url=redis.url)
    await eventually(lambda: all(one.cards for one in gateway.context.fleet.engines.values()))
    may_go_on = asyncio.Event()
    head, first, *rest = stream("one", "two")
    engine.script = other_engine.script = [head, first, may_go_on, *rest]
    async with await Client.connect(gateway.port) as client, await Client.connect(gateway.port) as other:
        client.send(request(STREAM))
        other.send(request(STREAM))
        await engine.wait_seen(1)
        store.heartbeat(record_of(engine, "a", draining=True), 60.0)
        await eventually(lambda: gateway.context.fleet.engines["a"].is_draining, 1.0)
        other_engine.script = [reply(completion())]
        for _ in range(6):
            assert (await call(gateway.port)).headers["x-specpilot-engine"] == "b"
        may_go_on.set()
        answers = [await client.answer(), await other.answer()]
        assert {answer.headers["x-specpilot-engine"] for answer in answers} == {"a", "b"}
        assert all(answer.is_whole and answer.body.endswith(DONE) for answer in answers)
    store.remove_engine("b")
    await eventually(lambda: "b" not in gateway.context.fleet.engines, 1.0)
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (503, "engine_unavailable")
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 503
    store.close()


async def test_without_redis_everything_goes_on(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store.heartbeat(record_of(engine), 60.0)
    store.put_policy(POLICY, None, 1.0)
    store.put_api_key(ApiKey("k", snapshot.hash_of("sk-k")))
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
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store.heartbeat(record_of(engine), 60.0)
    store.close()
    gateway = await start_gateway(redis_url=redis.url, redis_poll_s=0.1)
    assert redis.process is not None
    redis.process.send_signal(19)
    try:
        for _ in range(50):
            assert (await call(gateway.port, timeout_s=0.5)).status == 200
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            assert (await call(gateway.port, request(path=path, method="GET"), timeout_s=0.5)).status == 200
    finally:
        redis.process.send_signal(18)


async def test_a_key_ends_with_its_time_and_a_rotated_one_with_its_grace(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store, now = RedisStore(redis.url), time.time()
    store.put_api_key(ApiKey("late", snapshot.hash_of("sk-late"), expires_at=now - 1))
    grace = {"previous_sha256": snapshot.hash_of("sk-old"), "previous_expires_at": now + 60}
    store.put_api_key(ApiKey("rotated", snapshot.hash_of("sk-new"), traffic_class="code", **grace))
    over = {"previous_sha256": snapshot.hash_of("sk-over"), "previous_expires_at": now - 1}
    store.put_api_key(ApiKey("over", snapshot.hash_of("sk-now"), **over))
    store.close()
    gateway = await start_gateway(engine, redis_url=redis.url)
    await eventually(lambda: snapshot.hash_of("sk-now") in gateway.context.snapshot.keys)
    for secret in ("sk-late", "sk-over"):
        answer = await call(gateway.port, request(headers=key_headers(secret)))
        assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert "has expired" in answer.json["error"]["message"]
    for secret in ("sk-new", "sk-old"):
        assert await class_of(gateway, key_headers(secret)) == "code"
    assert await class_of(gateway, key_headers("sk-now")) == "default"


async def test_until_redis_was_read_only_keys_of_the_file_pass(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer, keys_file: str
) -> None:
    redis.stop()
    without = await start_gateway(engine, redis_url=redis.url, admin_token="t")
    gateway = await start_gateway(engine, redis_url=redis.url, api_keys_file=keys_file)
    for port in (without.port, gateway.port):
        for headers in ("", key_headers("sk-k")):
            for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")):
                answer = await call(port, request(headers=headers, method=method, path=path))
                assert (answer.status, answer.code) == (503, "api_keys_unknown")
                assert answer.headers["retry-after"] == "1"
    assert engine.seen == []
    assert await class_of(gateway, key_headers("sk-code")) == "code"
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 200
    ready = await call(without.port, request(path="/ready", method="GET"))
    assert (ready.status, ready.json) == (503, {"status": "no API keys"})
    config = request(path="/admin/config", method="GET", headers=key_headers("t"))
    assert (await call(without.port, config)).json["requires_api_key"] is None

    redis.start()
    await eventually(lambda: not without.context.snapshot.is_awaiting_keys)
    assert (await call(without.port)).status == 200  # Redis says that there are none
    assert (await call(without.port, config)).json["requires_api_key"] is False
    store = RedisStore(redis.url)
    store.put_api_key(ApiKey("k", snapshot.hash_of("sk-k")))
    store.close()
    for one in (without, gateway):
        await eventually(lambda one=one: snapshot.hash_of("sk-k") in one.context.snapshot.keys)
        assert (await call(one.port)).status == 401
        assert await class_of(one, key_headers("sk-k")) == "default"


async def test_an_api_key_that_cannot_be_read_hides_no_other_and_opens_nothing(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store._redis.hset(keys.API_KEYS, "a-broken-one", b"{")
    gateway = await start_gateway(engine, redis_url=redis.url)
    assert (await call(gateway.port)).status == 401
    for name in ("first", "second"):
        store.put_api_key(ApiKey(name, snapshot.hash_of(name)))
        await eventually(lambda name=name: snapshot.hash_of(name) in gateway.context.snapshot.keys)
        store._redis.hset(keys.API_KEYS, name, b"{}")
    assert await class_of(gateway, key_headers("first")) == "default"  # its last good version holds
    store._redis.delete(keys.API_KEYS)
    store.put_api_key(ApiKey("third", snapshot.hash_of("third")))
    await eventually(lambda: [*gateway.context.snapshot.keys] == [snapshot.hash_of("third")])
    assert (await call(gateway.port)).status == 401
    store.close()


async def test_one_engine_with_a_bad_url_keeps_no_gateway_from_starting_and_no_engine_from_joining(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store.heartbeat(replace(record_of(engine, "bad"), url="http://fd00::5:8000"), 60.0)
    store.heartbeat(record_of(engine, "a"), 60.0)
    gateway = await start_gateway(redis_url=redis.url)
    assert (await call(gateway.port)).headers["x-specpilot-engine"] == "a"
    store.heartbeat(record_of(other_engine, "b"), 60.0)
    await eventually(lambda: set(gateway.context.fleet.engines) == {"a", "b"}, 1.0)
    store.close()


async def test_a_registered_engine_of_the_list_is_one_engine(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store.heartbeat(record_of(engine), 60.0)
    store.close()
    gateway = await start_gateway(engine, redis_url=redis.url)
    assert [*gateway.context.fleet.engines] == ["e1"]


async def test_when_every_engine_drains_the_error_says_when_to_come_back(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store.heartbeat(record_of(engine, draining=True), 60.0)
    store.close()
    gateway = await start_gateway(redis_url=redis.url)
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (503, "engine_unavailable")
    assert answer.headers["retry-after"] == "1"
    assert engine.seen == []


async def test_requests_under_way_survive_the_engine_leaving_the_fleet(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = RedisStore(redis.url)
    store.heartbeat(record_of(engine), 60.0)
    may_go_on = asyncio.Event()
    head, first, *rest = stream("one", "two")
    engine.script = [head, first, may_go_on, *rest]
    gateway = await start_gateway(redis_url=redis.url)
    await eventually(lambda: gateway.context.fleet.by_model)
    async with await Client.connect(gateway.port) as client:
        client.send(request(STREAM))
        await engine.wait_seen(1)
        store.remove_engine("e1")
        store.close()
        await eventually(lambda: not gateway.context.fleet.engines, 1.0)
        assert (await call(gateway.port)).code == "engine_unavailable"
        may_go_on.set()
        answer = await client.answer()
    assert answer.is_whole
    assert answer.body.endswith(DONE)
    await eventually(lambda: not engine.open)  # and its connection is not kept

"""Keys and classes: which requests are admitted, and which class the server gives."""

import time
from typing import Any

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.store import Store
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import call, request
from tests.support.gateway_keys import class_of, key_headers
from tests.support.gateway_server import eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def keys() -> list[dict[str, Any]]:
    return [
        {"key_id": "coder", "key": "sk-code", "traffic_class": "code", "allowed_classes": ["code"]},
        {"key_id": "any", "key": "sk-any"},
    ]


async def test_a_key_is_required_once_there_is_one(
    engine: ScriptedEngine, start_gateway: StartGateway, keys: list[dict[str, Any]]
) -> None:
    gateway = await start_gateway(engine, keys=keys)
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny")):
        answer = await call(gateway.port, request(method=method, path=path))
        assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert engine.seen == []
    for path in ("/health", "/ready", "/metrics"):
        assert (await call(gateway.port, request(method="GET", path=path))).status == 200


async def test_the_class_comes_from_key_and_header(
    engine: ScriptedEngine, start_gateway: StartGateway, keys: list[dict[str, Any]]
) -> None:
    gateway = await start_gateway(engine, keys=keys)
    assert await class_of(gateway, key_headers("sk-code")) == "code"
    assert await class_of(gateway, key_headers("sk-code", "default")) == "code"  # not allowed
    assert await class_of(gateway, key_headers("sk-any")) == "default"
    assert await class_of(gateway, key_headers("sk-any", "code")) == "code"
    assert gateway.context.metrics.unknown_class == 0
    assert await class_of(gateway, key_headers("sk-any", "nonsense")) == "default"
    assert gateway.context.metrics.unknown_class == 1
    sent = {"metadata": {"traffic_class": "code"}, "vllm_xargs": {"traffic_class": "default", "a": 1}}
    assert await class_of(gateway, key_headers("sk-any"), sent) == "code"
    assert engine.seen[-1].headers["x-traffic-class"] == "code"
    assert {label for _, label in gateway.context.metrics.cells} <= {"default", "code", "other"}


async def test_a_key_ends_with_its_time_and_a_rotated_one_with_its_grace(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store, now = Store(redis.url, PATIENCE_S), time.time()
    store.put_api_key(ApiKey("late", sha256_of("sk-late"), expires_at=now - 1))
    grace = {"previous_sha256": sha256_of("sk-old"), "previous_expires_at": now + 60}
    store.put_api_key(ApiKey("rotated", sha256_of("sk-new"), traffic_class="code", **grace))
    over = {"previous_sha256": sha256_of("sk-over"), "previous_expires_at": now - 1}
    store.put_api_key(ApiKey("over", sha256_of("sk-now"), **over))
    store.close()
    gateway = await start_gateway(engine, redis_url=redis.url)
    await eventually(lambda: sha256_of("sk-now") in gateway.context.snapshot.keys)
    for secret in ("sk-late", "sk-over"):
        answer = await call(gateway.port, request(headers=key_headers(secret)))
        assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert "has expired" in answer.json["error"]["message"]
    for secret in ("sk-new", "sk-old"):
        assert await class_of(gateway, key_headers(secret)) == "code"
    assert await class_of(gateway, key_headers("sk-now")) == "default"


async def test_until_redis_was_read_only_keys_of_the_file_pass(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer, keys: list[dict[str, Any]]
) -> None:
    redis.stop()
    without = await start_gateway(engine, redis_url=redis.url, admin_token="t")
    gateway = await start_gateway(engine, redis_url=redis.url, keys=keys)
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
    store = Store(redis.url, PATIENCE_S)
    store.put_api_key(ApiKey("k", sha256_of("sk-k")))
    store.close()
    for one in (without, gateway):
        await eventually(lambda one=one: sha256_of("sk-k") in one.context.snapshot.keys)
        assert (await call(one.port)).status == 401
        assert await class_of(one, key_headers("sk-k")) == "default"


async def test_an_api_key_that_cannot_be_read_hides_no_other_and_opens_nothing(
    engine: ScriptedEngine, start_gateway: StartGateway, redis: RedisServer
) -> None:
    store = Store(redis.url, PATIENCE_S)
    store._redis.hset(redis_keys.API_KEYS, "a-broken-one", b"{")
    gateway = await start_gateway(engine, redis_url=redis.url)
    assert (await call(gateway.port)).status == 401
    for name in ("first", "second"):
        store.put_api_key(ApiKey(name, sha256_of(name)))
        await eventually(lambda name=name: sha256_of(name) in gateway.context.snapshot.keys)
        store._redis.hset(redis_keys.API_KEYS, name, b"{}")
    assert await class_of(gateway, key_headers("first")) == "default"  # its last good version holds
    store._redis.delete(redis_keys.API_KEYS)
    store.put_api_key(ApiKey("third", sha256_of("third")))
    await eventually(lambda: [*gateway.context.snapshot.keys] == [sha256_of("third")])
    assert (await call(gateway.port)).status == 401
    store.close()

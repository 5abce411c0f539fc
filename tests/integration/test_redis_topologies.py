"""Sentinel and Cluster while a primary dies, and a server that is full: what goes on under load."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.model_policy import Policy
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.controller_engine import HttpEngine
from tests.support.controller_program import running_controller
from tests.support.gateway_client import call, request
from tests.support.gateway_server import eventually, running_gateway
from tests.support.patience import PATIENCE_S
from tests.support.redis_load import running_load
from tests.support.redis_server import NEEDS_SYSTEM, RedisServer
from tests.support.redis_topologies import Cluster, Sentinels, node, until_replicated
from tests.support.scripted_engine import ScriptedEngine, completion, reply
from tests.support.stack import until
from tests.support.store_operations import RECORD, use_everything

pytestmark = NEEDS_SYSTEM


Redundant = tuple[str, RedisServer]
"""The address of all, and the primary that holds the policies."""


@pytest.fixture(params=["sentinel", "cluster"], scope="module")
def redundant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redundant]:
    running: Any = Cluster() if request.param == "cluster" else Sentinels(tmp_path_factory.mktemp("sentinels"))
    with closing(running):
        yield running.url, running.primary


def test_the_memory_is_that_of_the_fullest_primary(redundant: Redundant) -> None:
    url, primary = redundant
    store = Store(url, PATIENCE_S)
    primary.client.config_set("maxmemory", "100mb")
    limited = store.memory()
    primary.client.config_set("maxmemory", "0")
    unlimited = store.memory()
    store.close()
    assert limited is not None
    assert unlimited is not None
    assert limited.max_bytes == 100 << 20
    assert 0 < limited.used_ratio < 0.5
    assert (unlimited.max_bytes, unlimited.used_ratio) == (0, 0.0)


def is_done(write: Callable[[], object]) -> bool:
    """Whether Redis takes a write now."""
    try:
        return bool(write())
    except StoreUnavailableError:
        return False


async def test_a_primary_dies_under_load_no_request_fails_and_the_state_goes_on(
    redundant: Redundant, scripted: ScriptedEngine
) -> None:
    url, primary = redundant
    store = Store(url)
    use_everything(store)
    record = replace(RECORD, url=scripted.url)
    store.heartbeat(record, 4.0)

    def write_again() -> bool:
        return is_done(lambda: store.put_policy(Policy("tiny", static_k=5), None, 3.0))

    async with running_load(url, record) as load:
        before = await asyncio.to_thread(store.put_policy, Policy("tiny", static_k=4), None, 2.0)
        await asyncio.to_thread(until_replicated, primary)
        primary.stop()
        await asyncio.to_thread(until, write_again)
        found = store.policy("tiny")
        assert found is not None
        assert found.version > before.version  # it is not lost; a write that timed out may have been made all the same
        assert found.policy.static_k == 5
        load.seen.clear()
        await asyncio.to_thread(until, lambda: write_again() and redis_keys.POLICIES in load.seen)
        assert [item.engine_id for item in store.engines()] == ["e1"]
        last = write_again() and store.policy("tiny")
        assert last
        await eventually(lambda: load.answers[-1].headers["x-specpilot-policy-version"] == str(last.version))
    assert {item.status for item in load.answers} == {200}


async def test_a_revoked_key_that_a_stale_replica_brings_back_is_shown(
    tmp_path: Path, scripted: ScriptedEngine
) -> None:
    with closing(Sentinels(tmp_path)) as running:
        store = Store(running.url)
        store.heartbeat(replace(RECORD, url=scripted.url), 600.0)
        for key_id in ("one", "two"):
            store.put_api_key(ApiKey(key_id, sha256_of(f"sk-{key_id}")))
        until_replicated(running.primary)
        async with running_gateway("--redis-url", running.url, "--redis-poll-s", "0.3") as gateway:
            await becomes(gateway.port, 200, 200, "0.0")
            running.replica.client.config_set("masterauth", "wrong")
            running.primary.client.client_kill_filter(_type="replica")
            running.replica.until_it_is("replication", master_link_status="down")
            store.delete_api_key("one")
            await becomes(gateway.port, 401, 200, "0.0")
            running.primary.stop()
            running.replica.until_it_is("replication", role="master")
            await becomes(gateway.port, 200, 200, "1.0")
            assert any("revoke these API keys again" in line and ": one" in line for line in gateway.errors)
            await asyncio.to_thread(until, lambda: is_done(lambda: store.delete_api_key("one")))
            await becomes(gateway.port, 401, 200, "0.0")


async def becomes(port: int, *expected: object) -> None:
    """Wait until the two keys get these statuses, and so many returned keys are shown."""

    async def found() -> list[object]:
        answers = [
            await call(port, request(headers=f"authorization: Bearer sk-{key_id}\r\n")) for key_id in ("one", "two")
        ]
        page = (await call(port, request(path="/metrics", method="GET"))).body.decode()
        [shown] = re.findall(r"^specpilot_gateway_returned_keys (\S+)", page, re.MULTILINE)
        return [*(answer.status for answer in answers), shown]

    async with asyncio.timeout(PATIENCE_S):
        while await found() != [*expected]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def test_a_full_server_keeps_engines_gateways_and_leader_and_says_that_it_is_full() -> None:
    with node("--maxmemory-policy", "noeviction") as running:
        store = Store(running.url)
        store.put_policy(Policy("m"), None, 1.0)
        store.heartbeat(RECORD, 60.0)
        store.exchange_usage(GatewayUsage("g", {}), 60.0)
        lease = store.acquire_lease("a", 60.0)
        assert lease is not None
        running.client.config_set("maxmemory", 1)
        store.heartbeat(replace(RECORD, heartbeat_at=3.0), 600.0)
        assert [item.gateway_id for item in store.exchange_usage(GatewayUsage("g", {"k": 1.0}), 600.0)] == ["g"]
        assert store.acquire_lease("a", 600.0) == lease
        kept = (redis_keys.engine(RECORD.engine_id), redis_keys.gateway("g"), redis_keys.LEASE)
        assert all(store._redis.ttl(key) > 60 for key in kept)
        assert store.engines() == [RECORD]
        assert [item.policy.model for item in store.policies()] == ["m"]
        refused: list[Callable[[], object]] = [
            lambda: store.put_policy(Policy("m"), None, 2.0),
            lambda: store.heartbeat(replace(RECORD, engine_id="new"), 60.0),
            lambda: store.publish_schedule(Schedule("m", "p", 1, 1.0, Guidance()), lease),
        ]
        for write in refused:
            with pytest.raises(StoreUnavailableError, match=r"Redis is full \(maxmemory\).*raise maxmemory"):
                write()
        store.remove_engine("e1")
        assert store.engines() == []
        running.client.config_set("maxmemory", 0)
        store.heartbeat(RECORD, 60.0)
        assert store.engines() == [RECORD]


async def test_a_server_that_fills_up_under_load_fails_no_request_and_the_controller_says_so_once(
    tmp_path: Path, scripted: ScriptedEngine
) -> None:
    log, flags = tmp_path / "controller.log", ("--interval-s", "0.5", "--log-level", "info")
    scripted.script = [0.02, reply(completion())]  # so that requests are in flight at every moment
    with (
        node("--maxmemory-policy", "noeviction") as running,
        log.open("wb") as output,
        running_controller(redis_url=running.url, arguments=flags, log=output) as controller,
        closing(Store(running.url, PATIENCE_S)) as store,
    ):
        async with HttpEngine(store) as steered, running_load(running.url, replace(RECORD, url=scripted.url)) as load:
            await eventually(lambda: steered.applied)
            await eventually(lambda: len(load.answers) > 20)
            running.client.config_set("maxmemory", 1)
            await eventually(lambda: "schedules stay as they are: Redis is full (maxmemory)" in log.read_text())
            before = len(load.answers)
            await asyncio.sleep(2.0)  # some ticks more
            page = (await asyncio.to_thread(controller.call, "/metrics"))[1]
            await eventually(lambda: len(load.answers) > before + 20)
            running.client.config_set("maxmemory", 0)
            await eventually(lambda: "Redis takes schedules and decisions again" in log.read_text())
    assert {item.status for item in load.answers} == {200}
    assert "specpilot_controller_store_up 1.0" in page
    assert log.read_text().count("Redis is full") == 1
    assert "last known state" not in log.read_text()

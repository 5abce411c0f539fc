"""Sentinel and Cluster while a primary dies, and a server that is full: what goes on under load."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.model_policy import Policy
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.controller_engine import HttpEngine
from tests.support.gateway_client import Answer, Client, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_load import Beating, ask_until
from tests.support.redis_server import NEEDS_SYSTEM
from tests.support.redis_topologies import Cluster, Node, Sentinels
from tests.support.scripted_engine import ScriptedEngine, completion, reply
from tests.support.stack import call, free_port, until
from tests.support.store_operations import RECORD, use_everything

pytestmark = NEEDS_SYSTEM


def _sentinels(folder: Path) -> tuple[str, Node, Callable[[], None]]:
    running = Sentinels(folder)
    return running.url, running.primary, running.close


def _cluster(folder: Path) -> tuple[str, Node, Callable[[], None]]:
    running = Cluster(folder)
    return running.url, running.owner_of(redis_keys.POLICIES), running.close


@pytest.fixture(params=[_sentinels, _cluster], ids=["sentinel", "cluster"], scope="module")
def redundant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Node]]:
    url, primary, close = request.param(tmp_path_factory.mktemp("redundant"))
    yield url, primary
    close()


def test_the_memory_is_that_of_the_fullest_primary(redundant: tuple[str, Node]) -> None:
    url, primary = redundant
    store = Store(url, PATIENCE_S)
    primary.ask("config", "set", "maxmemory", "100mb")
    limited = store.memory()
    primary.ask("config", "set", "maxmemory", "0")
    unlimited = store.memory()
    store.close()
    assert limited is not None
    assert unlimited is not None
    assert limited.max_bytes == 100 << 20
    assert 0 < limited.used_ratio < 0.5
    assert (unlimited.max_bytes, unlimited.used_ratio) == (0, 0.0)


def write_again(store: Store) -> bool:
    try:
        store.put_policy(Policy("tiny", static_k=5), None, 3.0)
    except StoreUnavailableError:
        return False
    return True


async def test_a_primary_dies_under_load_no_request_fails_and_the_state_goes_on(
    redundant: tuple[str, Node], scripted: ScriptedEngine
) -> None:
    url, primary = redundant
    store = Store(url)
    use_everything(store)
    record = replace(RECORD, url=scripted.url)
    store.heartbeat(record, 4.0)
    replies: list[Answer] = []
    loads: list[asyncio.Task[None]] = []
    beating = Beating(url, record)
    gateway = GatewayProgram(["--redis-url", url, "--redis-poll-s", "0.3"])
    try:
        await gateway.started()
        loads += [asyncio.create_task(ask_until(beating.ended, gateway.port, replies)) for _ in range(4)]
        before = await asyncio.to_thread(store.put_policy, Policy("tiny", static_k=4), None, 2.0)
        await asyncio.to_thread(primary.until_replicated)
        primary.kill()
        await asyncio.to_thread(until, lambda: write_again(store))
        found = store.policy("tiny")
        assert found is not None
        assert found.version > before.version  # it is not lost; a write that timed out may have been made all the same
        assert found.policy.static_k == 5
        beating.seen.clear()
        await asyncio.to_thread(until, lambda: write_again(store) and redis_keys.POLICIES in beating.seen)
        assert [item.engine_id for item in store.engines()] == ["e1"]
        last = write_again(store) and store.policy("tiny")
        assert last
        await eventually(lambda: replies[-1].headers["x-specpilot-policy-version"] == str(last.version))
    finally:
        await asyncio.to_thread(beating.end)
        await asyncio.gather(*loads)
        gateway.close()
    assert {item.status for item in replies} == {200}


async def test_a_revoked_key_that_a_stale_replica_brings_back_is_shown(
    tmp_path: Path, scripted: ScriptedEngine
) -> None:
    running = Sentinels(tmp_path)
    store = Store(running.url)
    store.heartbeat(replace(RECORD, url=scripted.url), 600.0)
    for key_id in ("one", "two"):
        store.put_api_key(ApiKey(key_id, sha256_of(f"sk-{key_id}")))
    running.primary.until_replicated()
    gateway = GatewayProgram(["--redis-url", running.url, "--redis-poll-s", "0.3"])

    async def found() -> tuple[int, int, str]:
        async with await Client.connect(gateway.port) as client:
            statuses = []
            for key_id in ("one", "two"):
                client.send(request(headers=f"authorization: Bearer sk-{key_id}\r\n"))
                statuses.append((await client.answer()).status)
            client.send(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
            page = (await client.answer()).body.decode()
        [shown] = (line.split()[1] for line in page.splitlines() if line.startswith("specpilot_gateway_returned_keys "))
        return statuses[0], statuses[1], shown

    async def becomes(wanted: tuple[int, int, str]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await found() != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    try:
        await gateway.started()
        await becomes((200, 200, "0.0"))
        running.replica.ask("config", "set", "masterauth", "wrong")
        running.primary.ask("client", "kill", "type", "replica")
        running.replica.until_said("master_link_status:down", "info", "replication")
        store.delete_api_key("one")
        await becomes((401, 200, "0.0"))
        running.primary.kill()
        running.replica.until_said("role:master", "info", "replication")
        await becomes((200, 200, "1.0"))
        assert any("revoke these API keys again" in line and ": one" in line for line in gateway.errors)
        await asyncio.to_thread(until, lambda: _revoked(store, "one"))
        await becomes((401, 200, "0.0"))
    finally:
        gateway.close()
        running.close()


def _revoked(store: Store, key_id: str) -> bool:
    try:
        return store.delete_api_key(key_id)
    except StoreUnavailableError:
        return False


def test_a_full_server_keeps_engines_gateways_and_leader_and_says_that_it_is_full(tmp_path: Path) -> None:
    node = Node(tmp_path, "--maxmemory-policy", "noeviction")
    store = Store(f"redis://127.0.0.1:{node.port}")
    try:
        node.until_said("PONG", "ping")
        store.put_policy(Policy("m"), None, 1.0)
        store.heartbeat(RECORD, 60.0)
        store.exchange_usage(GatewayUsage("g", {}), 60.0)
        lease = store.acquire_lease("a", 60.0)
        assert lease is not None
        node.ask("config", "set", "maxmemory", "1")
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
        node.ask("config", "set", "maxmemory", "0")
        store.heartbeat(RECORD, 60.0)
        assert store.engines() == [RECORD]
    finally:
        node.kill()


async def test_a_server_that_fills_up_under_load_fails_no_request_and_the_controller_says_so_once(
    tmp_path: Path, scripted: ScriptedEngine
) -> None:
    node = Node(tmp_path, "--maxmemory-policy", "noeviction")
    url, log, port = f"redis://127.0.0.1:{node.port}", tmp_path / "controller.log", free_port()
    node.until_said("PONG", "ping")
    store = Store(url, PATIENCE_S)
    scripted.script = [0.02, reply(completion())]  # so that requests are in flight at every moment
    replies: list[Answer] = []
    loads: list[asyncio.Task[None]] = []
    beating = Beating(url, replace(RECORD, url=scripted.url))
    gateway = GatewayProgram(["--redis-url", url, "--redis-poll-s", "0.3"])
    flags = ["--redis-url", url, "--port", str(port), "--interval-s", "0.5", "--trust-this-machine"]
    with log.open("wb") as output:
        controller = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
            [sys.executable, "-P", "-m", "specpilot.controller", *flags], stderr=output
        )
    try:
        await gateway.started()
        async with HttpEngine(store) as steered:
            await eventually(lambda: steered.applied)
            loads += [asyncio.create_task(ask_until(beating.ended, gateway.port, replies)) for _ in range(4)]
            await eventually(lambda: len(replies) > 20)
            node.ask("config", "set", "maxmemory", "1")
            await eventually(lambda: "schedules stay as they are: Redis is full (maxmemory)" in log.read_text())
            before = len(replies)
            await asyncio.sleep(2.0)  # some ticks more
            page = (await asyncio.to_thread(call, f"http://127.0.0.1:{port}/metrics"))[1]
            await eventually(lambda: len(replies) > before + 20)
            node.ask("config", "set", "maxmemory", "0")
            await eventually(lambda: "Redis takes schedules and decisions again" in log.read_text())
    finally:
        await asyncio.to_thread(beating.end)
        await asyncio.gather(*loads)
        controller.terminate()
        gateway.close()
        status = controller.wait(PATIENCE_S)
        store.close()
        node.kill()
    assert {item.status for item in replies} == {200}
    assert "specpilot_controller_store_up 1.0" in page
    assert log.read_text().count("Redis is full") == 1
    assert "last known state" not in log.read_text()
    assert status == 0

"""Sentinel and Cluster: the memory of real servers, and a gateway under load while a primary dies."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.model_policy import Policy
from specpilot.policy.store import Store
from tests.support.gateway_client import Answer, Client, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_load import Beating, ask_until
from tests.support.redis_server import NEEDS_SYSTEM
from tests.support.redis_topologies import Cluster, Node, Sentinels
from tests.support.scripted_engine import ScriptedEngine
from tests.support.stack import until
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

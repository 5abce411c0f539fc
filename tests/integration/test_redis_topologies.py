"""TLS, ACL, Sentinel, Cluster and a full server: real servers, and a gateway under load while they fail over."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from specpilot.bench.fleet.redis_servers import Cluster, Node, Sentinels, is_answering
from specpilot.policy import keys
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.types import ApiKey, EngineRecord, GatewayUsage, KRange, Policy, Schedule
from tests.support.certificates import make_certificates
from tests.support.gateway_client import Answer, Client, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.redis_server import SYSTEM
from tests.support.scripted_engine import ScriptedEngine
from tests.support.stack import until

pytestmark = pytest.mark.skipif(SYSTEM is None, reason="needs a redis-server of the system")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations" / "redis.md").read_text()
ACL_LINE = next(line for line in PAGE.splitlines() if line.startswith("user specpilot "))
RECORD = EngineRecord("e1", "http://e1", "tiny", "p", 7, 3, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 2.0)


def use_everything(store: RedisStore) -> None:
    """Touch every kind of key by every kind of command."""
    store.put_policy(Policy("m"), None, 1.0)
    store.put_api_key(ApiKey("k", "ab" * 32))
    store.heartbeat(RECORD, 5.0)
    store.exchange_usage(GatewayUsage("g", {}), 5.0)
    lease = store.acquire_lease("a", 5.0)
    assert lease is not None
    store.publish_schedule(Schedule("m", "p", 1, 1.0, 60.0, 0.0, {"default": (KRange(1, 1, 3),)}), lease)
    assert len(store.policies()) == len(store.engines()) == len(store.schedules()) == len(store.api_keys()) == 1
    assert next(store.changes(1.0)) is None
    assert store.decisions("m", "p", 1) == []
    store.release_lease(lease)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("tls") / "files")


def test_tls_with_a_certificate_of_the_client(tmp_path: Path, certificates: Path) -> None:
    files = ("--tls-cert-file", f"{certificates}/server.pem", "--tls-key-file", f"{certificates}/server.key")
    node = Node(tmp_path, *files, "--tls-ca-cert-file", f"{certificates}/ca.pem", "--tls-port", "0")
    plain = Node(tmp_path)  # its port is only taken to be free for TLS
    plain.kill()
    node.until_said("PONG", "ping")
    node.ask("config", "set", "tls-port", str(plain.port))
    own = f"ssl_certfile={certificates}/client.pem&ssl_keyfile={certificates}/client.key"
    ca = f"ssl_ca_certs={certificates}/ca.pem"
    try:
        use_everything(RedisStore(f"rediss://127.0.0.1:{plain.port}?{ca}&{own}"))
        assert is_answering(f"rediss://127.0.0.1:{plain.port}?ssl_cert_reqs=none&{own}")
        for wrong in ("", f"?{own}", f"?{ca}"):  # the server is not trusted, or asks for a certificate
            with pytest.raises(StoreUnavailableError, match="Redis does not answer"):
                RedisStore(f"rediss://127.0.0.1:{plain.port}{wrong}").ping()
    finally:
        node.kill()


def test_a_user_of_the_documented_acl_may_do_everything_that_is_needed_and_nothing_else(tmp_path: Path) -> None:
    acl = tmp_path / "users.acl"
    acl.write_text("user default off\n" + ACL_LINE.replace("PASSWORD", "p@ss") + "\n")
    node = Node(tmp_path, "--aclfile", str(acl))
    try:
        url = f"redis://specpilot:p%40ss@127.0.0.1:{node.port}"
        until(lambda: is_answering(url), 10.0)
        store = RedisStore(url)
        use_everything(store)
        for command in (("set", "elsewhere", "1"), ("flushall",), ("config", "get", "dir")):
            with pytest.raises(NoPermissionError):
                store._redis.execute_command(*command)
        for wrong in ("", "specpilot:other@"):
            with pytest.raises(StoreUnavailableError, match="Redis"):
                RedisStore(f"redis://{wrong}127.0.0.1:{node.port}").ping()
    finally:
        node.kill()


def test_a_full_server_keeps_engines_gateways_and_leader_and_says_that_it_is_full(tmp_path: Path) -> None:
    node = Node(tmp_path, "--maxmemory-policy", "noeviction")
    store = RedisStore(f"redis://127.0.0.1:{node.port}")
    try:
        node.until_said("PONG", "ping")
        store.put_policy(Policy("m"), None, 1.0)
        store.heartbeat(RECORD, 0.5)
        store.exchange_usage(GatewayUsage("g", {}), 0.5)
        lease = store.acquire_lease("a", 0.5)
        assert lease is not None
        node.ask("config", "set", "maxmemory", "1")
        for _ in range(4):
            time.sleep(0.2)
            store.heartbeat(replace(RECORD, heartbeat_at=3.0), 0.5)
            assert [item.gateway_id for item in store.exchange_usage(GatewayUsage("g", {"k": 1.0}), 0.5)] == ["g"]
            assert store.acquire_lease("a", 0.5) == lease
        assert store.engines() == [RECORD]
        assert [item.policy.model for item in store.policies()] == ["m"]
        refused: list[Callable[[], object]] = [
            lambda: store.put_policy(Policy("m"), None, 2.0),
            lambda: store.heartbeat(replace(RECORD, engine_id="new"), 0.5),
            lambda: store.publish_schedule(
                Schedule("m", "p", 1, 1.0, 60.0, 0.0, {"default": (KRange(1, 1, 3),)}), lease
            ),
        ]
        for write in refused:
            with pytest.raises(StoreUnavailableError, match=r"Redis is full \(maxmemory\).*raise maxmemory"):
                write()
        store.remove_engine("e1")
        assert store.engines() == []
        node.ask("config", "set", "maxmemory", "0")
        store.heartbeat(RECORD, 0.5)
        assert store.engines() == [RECORD]
    finally:
        node.kill()


def _sentinels(folder: Path) -> tuple[str, Node, Callable[[], None]]:
    running = Sentinels(folder)
    return running.url, running.primary, running.close


def _cluster(folder: Path) -> tuple[str, Node, Callable[[], None]]:
    running = Cluster(folder)
    return running.url, running.owner_of(keys.POLICIES), running.close


@pytest.fixture(params=[_sentinels, _cluster], ids=["sentinel", "cluster"], scope="module")
def redundant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Node]]:
    url, primary, close = request.param(tmp_path_factory.mktemp("redundant"))
    yield url, primary
    close()


class Beating:
    """An engine that keeps its record, and somebody who follows the changes, each on a thread."""

    def __init__(self, url: str, record: EngineRecord) -> None:
        self.seen: list[str | None] = []
        self.ended = threading.Event()
        self._url = url
        self._record = record
        self._threads = [threading.Thread(target=self._beat), threading.Thread(target=self._follow)]
        for thread in self._threads:
            thread.start()

    def _beat(self) -> None:
        store = RedisStore(self._url)
        while not self.ended.wait(0.3):
            with suppress(StoreUnavailableError):
                store.heartbeat(self._record, 4.0)
        store.close()

    def _follow(self) -> None:
        store = RedisStore(self._url)
        while not self.ended.is_set():
            with suppress(StoreUnavailableError):
                for change in store.changes(0.2):
                    self.seen.append(change)
                    if self.ended.is_set():
                        break
        store.close()

    def end(self) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()


async def ask_until(ended: threading.Event, port: int, answers: list[Answer]) -> None:
    async with await Client.connect(port) as client:
        while not ended.is_set():
            client.send(request())
            answers.append(await client.answer())
            await asyncio.sleep(0.01)


def write_again(store: RedisStore) -> bool:
    try:
        store.put_policy(Policy("tiny", static_k=5), None, 3.0)
    except StoreUnavailableError:
        return False
    return True


async def test_a_primary_dies_under_load_no_request_fails_and_the_state_goes_on(redundant: tuple[str, Node]) -> None:
    url, primary = redundant
    store = RedisStore(url)
    use_everything(store)
    store.delete_api_key("k")
    engine = await ScriptedEngine().start()
    record = replace(RECORD, url=engine.url)
    store.heartbeat(record, 4.0)
    replies: list[Answer] = []
    loads: list[asyncio.Task[None]] = []
    beating = Beating(url, record)
    gateway = GatewayProgram(["--redis-url", url, "--redis-poll-s", "0.3"])
    try:
        await gateway.started()
        loads += [asyncio.create_task(ask_until(beating.ended, gateway.port, replies)) for _ in range(4)]
        before = await asyncio.to_thread(store.put_policy, Policy("tiny", static_k=4), None, 2.0)
        await asyncio.to_thread(until, primary.is_replicated, 5.0)
        primary.kill()
        await asyncio.to_thread(until, lambda: write_again(store), 15.0)
        found = store.policy("tiny")
        assert found is not None
        assert found.version > before.version  # it is not lost; a write that timed out may have been made all the same
        assert found.policy.static_k == 5
        beating.seen.clear()
        await asyncio.to_thread(until, lambda: write_again(store) and keys.POLICIES in beating.seen, 15.0)
        assert [item.engine_id for item in store.engines()] == ["e1"]
        last = write_again(store) and store.policy("tiny")
        assert last
        await eventually(lambda: replies[-1].headers["x-specpilot-policy-version"] == str(last.version), 10.0)
    finally:
        await asyncio.to_thread(beating.end)
        await asyncio.gather(*loads)
        gateway.close()
        await engine.stop()
    assert {item.status for item in replies} == {200}

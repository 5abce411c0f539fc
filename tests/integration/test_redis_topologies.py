"""TLS, ACL, Sentinel, Cluster and a full server: real servers, and a gateway under load while they fail over."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import NoPermissionError

from specpilot.bench.fleet.redis_servers import Cluster, Node, Sentinels, is_answering
from specpilot.policy import keys
from specpilot.policy.access import AdminToken, Role
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.audit import AuditEntry, Result
from specpilot.policy.canary import Canary, Experiment, Outcome
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.gain import LogGain
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.model_routes import ModelRoute, ModelRoutes, Target
from specpilot.policy.operator_store import OperatorStore
from specpilot.policy.records import Decision, EngineRecord, Lease
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.schedule import KRange, Schedule
from specpilot.policy.store import Store
from tests.support.certificates import make_certificates
from tests.support.controller_engine import HttpEngine
from tests.support.gateway_client import Answer, Client, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.redis_server import SYSTEM
from tests.support.scripted_engine import ScriptedEngine, completion, reply
from tests.support.stack import call, free_port, until

pytestmark = pytest.mark.skipif(SYSTEM is None, reason="needs a redis-server of the system")

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations" / "redis.md").read_text()
ACL_LINE = next(line for line in PAGE.splitlines() if line.startswith("user specpilot "))
RECORD = EngineRecord("e1", "http://e1", "tiny", "p", 7, 3, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 2.0)


OPERATIONS = {name for kind in (Store, OperatorStore) for name in vars(kind) if not name.startswith("_")}


class Watched:
    """A store, and which of its operations were used."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return getattr(self._store, name)


def use_everything(store: RedisStore) -> None:
    """Do every operation that there is, so that a user or a server that one of them does not suit is found."""
    watched = Watched(store)
    watched.ping()
    assert watched.memory().used_bytes > 0
    lease = watched.acquire_lease("a", 5.0)
    assert lease is not None
    for use in (_use_policies, _use_engines, _use_keys, _use_what_operators_have):
        use(watched, lease)
    assert next(watched.changes(1.0)) is None
    watched.release_lease(lease)
    assert OPERATIONS - watched.used == set()


def _use_policies(store: Any, lease: Lease) -> None:
    store.put_policy(Policy("m"), None, 1.0)
    store.put_policy(Policy("m", k_max=5), 1, 2.0)
    assert store.policy("m").version == len(store.policy_versions("m", 10)) == 2
    assert store.policy_version("m", 1).policy == Policy("m")
    experiment = Experiment(1, "x", Canary(Policy("m", k_max=3)), 2, 3.0)
    store.put_canary(experiment, None, 3.0)
    ended = replace(experiment, version=2, ended_at=4.0, outcome=Outcome.PROMOTED)
    store.put_canary(ended, lease, 4.0)
    assert store.canary("m") == ended
    assert len(store.canaries()) == len(store.policies()) == len(store.policies_by_model()) == 1
    assert store.policy("m").policy.k_max == 3
    assert store.delete_policy("m", 3, 5.0)


def _use_engines(store: Any, lease: Lease) -> None:
    for _ in range(2):  # registered, and renewed
        store.heartbeat(RECORD, 5.0)
        store.exchange_usage(GatewayUsage("g", {}), 5.0)
    schedule = Schedule("m", "p", 1, 1.0, 60.0, 0.0, {"default": (KRange(1, 1, 3),)})
    store.publish_schedule(schedule, lease)
    assert (store.schedule("m", "p"), len(store.schedules()), len(store.engines())) == (schedule, 1, 1)
    decision = Decision(1.0, "m", "p", Mode.ACT, "adaptive", True, 1, schedule, 0.1, {})
    for is_lasting in (False, True):
        store.append_decision(decision, is_lasting=is_lasting)
    assert {item.reason for item in store.decisions("m", "p", 10)} == {"adaptive"}
    assert store.decisions("m", "p", 10, 0.5) == []
    assert store.add_gain("m", "p", 86_400.0, LogGain(0.1, 0.2), lease).itl.windows == 1
    assert len(store.daily_gains("m", "p")) == 1
    store.remove_schedule("m", "p", lease)
    store.remove_engine("e1")


def _use_keys(store: Any, _: Lease) -> None:
    key = ApiKey("k", "ab" * 32)
    store.put_api_key(key)
    assert store.change_api_key(key, replace(key, k_max=3))
    assert len(store.api_keys()) == len(store.api_keys_by_id()) == 1
    assert store.delete_api_key("k")


def _use_what_operators_have(store: Any, _: Lease) -> None:
    token = AdminToken("a" * 12, "ada", Role.VIEWER, "ab" * 32, 1.0)
    assert store.put_admin_token(token, None)
    assert store.put_admin_token(replace(token, role=Role.ADMIN), token)
    assert [item.role for item in (*store.admin_tokens(), store.admin_token("a" * 12))] == [Role.ADMIN] * 2
    assert store.delete_admin_token("a" * 12)
    store.put_freeze(Freeze("m", Hold.STATIC, 1.0))
    assert [*store.freezes()] == ["m"]
    assert store.delete_freeze("m")
    routes = store.put_model_routes(ModelRoutes({"chat": ModelRoute((Target("big"),))}), 0, 1.0)
    assert store.model_routes() == routes
    store.put_model_routes(ModelRoutes(), 1, 2.0)
    for result in Result:
        store.append_audit(AuditEntry(1.0, "ada", "put_policy", "m", result))
    assert len(store.audit(10)) == len(store.audit(10, None, 0)) == len(Result)


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


def test_the_memory_is_that_of_the_fullest_primary(redundant: tuple[str, Node]) -> None:
    url, primary = redundant
    store = RedisStore(url)
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


async def test_a_server_that_fills_up_under_load_fails_no_request_and_the_controller_says_so_once(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, "--maxmemory-policy", "noeviction")
    url, log, port = f"redis://127.0.0.1:{node.port}", tmp_path / "controller.log", free_port()
    node.until_said("PONG", "ping")
    store = RedisStore(url)
    engine = await ScriptedEngine().start()
    engine.script = [0.02, reply(completion())]  # so that requests are in flight at every moment
    replies: list[Answer] = []
    loads: list[asyncio.Task[None]] = []
    beating = Beating(url, replace(RECORD, url=engine.url))
    gateway = GatewayProgram(["--redis-url", url, "--redis-poll-s", "0.3"])
    flags = ["--redis-url", url, "--port", str(port), "--interval-s", "0.5", "--trust-this-machine"]
    with log.open("wb") as output:
        controller = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
            [sys.executable, "-P", "-m", "specpilot.controller", *flags], stderr=output
        )
    try:
        await gateway.started()
        async with HttpEngine(store) as steered:
            await eventually(lambda: steered.applied, 20.0)
            loads += [asyncio.create_task(ask_until(beating.ended, gateway.port, replies)) for _ in range(4)]
            await eventually(lambda: len(replies) > 20)
            node.ask("config", "set", "maxmemory", "1")
            await eventually(lambda: "schedules stay as they are: Redis is full (maxmemory)" in log.read_text(), 10.0)
            before = len(replies)
            await asyncio.sleep(2.0)  # some ticks more
            page = (await asyncio.to_thread(call, f"http://127.0.0.1:{port}/metrics"))[1]
            assert len(replies) > before + 20
            node.ask("config", "set", "maxmemory", "0")
            await eventually(lambda: "Redis takes schedules and decisions again" in log.read_text(), 10.0)
    finally:
        await asyncio.to_thread(beating.end)
        await asyncio.gather(*loads)
        controller.terminate()
        gateway.close()
        await engine.stop()
        status = controller.wait(15.0)
        store.close()
        node.kill()
    assert {item.status for item in replies} == {200}
    assert "specpilot_controller_store_up 1.0" in page
    assert log.read_text().count("Redis is full") == 1
    assert "last known state" not in log.read_text()
    assert status == 0


async def test_a_primary_dies_under_load_no_request_fails_and_the_state_goes_on(redundant: tuple[str, Node]) -> None:
    url, primary = redundant
    store = RedisStore(url)
    use_everything(store)
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

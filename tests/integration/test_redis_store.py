"""The same suite on the embedded server and, where it is installed, on the system's: one server, and a cluster."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from specpilot.policy import redis_documents, redis_keys
from specpilot.policy.api_key import ApiKey
from specpilot.policy.audit import AuditEntry, Result
from specpilot.policy.canary import Block, Canary, Experiment, Gain, Lost, Outcome
from specpilot.policy.errors import FencedError, InvalidDocumentError, StoreUnavailableError, VersionConflictError
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.records import Decision, EngineRecord
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import SERVERS, SYSTEM, RedisServer
from tests.support.redis_topologies import Cluster
from tests.support.stack import until


@pytest.fixture(scope="module", params=SERVERS if SYSTEM is None else [*SERVERS, "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.param
    with closing(Cluster() if name == "cluster" else RedisServer(executable=SERVERS[name])) as running:
        yield running.url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    subject = Store(url, PATIENCE_S)
    subject._redis.flushall()
    yield subject
    subject.close()


def schedule(version: int) -> Schedule:
    return Schedule("m", "p", version, 1.0, Guidance())


RECORD = EngineRecord("e1", "http://e1", "m", "p", 7, 3, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 2.0)


def test_a_policy_is_written_once_per_version(store: Store) -> None:
    first = store.put_policy(Policy("m"), expected_version=0, now=5.0)
    second = store.put_policy(Policy("m", static_k=2), expected_version=first.version, now=6.0)
    with pytest.raises(VersionConflictError, match="version 2, not 1"):
        store.put_policy(Policy("m", static_k=9), expected_version=1, now=7.0)
    assert store.policy("m") == second
    assert [item.policy.static_k for item in store.policies()] == [2]


def test_a_policy_is_deleted_only_at_the_version_that_was_read(store: Store) -> None:
    store.put_policy(Policy("m"), 0, 1.0)
    with pytest.raises(VersionConflictError):
        store.delete_policy("m", 7, 9.0)
    assert store.delete_policy("m", 1, 9.0)
    assert not store.delete_policy("m", None, 9.0)
    assert store.policy("m") is None


def test_a_policy_that_was_deleted_goes_on_with_its_versions(store: Store) -> None:
    """Or who read version 1 of the old one could overwrite version 1 of the new one unseen."""
    assert store.put_policy(Policy("m"), 0, 1.0).version == 1
    assert store.delete_policy("m", 1, 9.0)
    assert store.put_policy(Policy("m", k_min=1), 0, 2.0).version == 3
    with pytest.raises(VersionConflictError):
        store.put_policy(Policy("m", k_min=2), 1, 3.0)
    assert store.policies()[0].version == 3
    assert store.delete_policy("m", 3, 9.0)
    assert store.put_policy(Policy("other"), 0, 4.0).version == 1
    canary = Experiment(1, "x", Canary(Policy("m", k_max=3)), 0, 0.0)
    store.put_canary(canary, None, 5.0)
    store.put_canary(replace(canary, version=2, outcome=Outcome.PROMOTED), None, 6.0)
    promoted = store.policy("m")
    assert promoted is not None
    assert (promoted.version, promoted.policy.k_max) == (5, 3)


def test_an_older_schedule_never_replaces_a_newer_one(store: Store) -> None:
    lease = store.acquire_lease("a", 60.0)
    assert lease is not None
    store.publish_schedule(schedule(3), lease)
    for version in (2, 3):
        with pytest.raises(VersionConflictError):
            store.publish_schedule(schedule(version), lease)
    assert store.schedule("m", "p") == schedule(3)


def test_a_deposed_leader_cannot_write(store: Store) -> None:
    old = store.acquire_lease("a", 60.0)
    assert old is not None
    assert store.acquire_lease("b", 60.0) is None
    store._redis.pexpire(redis_keys.LEASE, 1)
    until(lambda: not store._redis.exists(redis_keys.LEASE), every=0.005)
    new = store.acquire_lease("b", 60.0)
    assert new is not None
    assert new.fence == old.fence + 1
    store.publish_schedule(schedule(1), new)
    with pytest.raises(FencedError):
        store.publish_schedule(schedule(2), old)
    assert store.schedules() == [schedule(1)]


def test_the_leader_renews_under_the_same_fence_and_a_release_frees_it(store: Store) -> None:
    lease = store.acquire_lease("a", 60.0)
    assert lease is not None
    assert store.acquire_lease("a", 60.0) == lease
    store.release_lease(replace(lease, fence=lease.fence + 1))
    assert store.acquire_lease("b", 60.0) is None
    store.release_lease(lease)
    assert store.acquire_lease("b", 60.0) is not None


def test_an_engine_leaves_the_list_when_it_falls_silent_or_says_so(store: Store) -> None:
    store.heartbeat(RECORD, ttl_s=60.0)
    store.heartbeat(replace(RECORD, engine_id="e2"), ttl_s=60.0)
    assert [item.engine_id for item in store.engines()] == ["e1", "e2"]
    store.heartbeat(RECORD, ttl_s=0.05)
    until(lambda: [item.engine_id for item in store.engines()] == ["e2"], every=0.01)
    store.remove_engine("e2")
    assert store.engines() == []


def test_decisions_come_newest_first_and_only_so_many(store: Store) -> None:
    for version in range(5):
        store.append_decision(Decision(1.0, "m", "p", Mode.ACT, "held", False, version, None, {}), is_lasting=False)
    assert [item.version for item in store.decisions("m", "p", limit=2)] == [4, 3]
    assert store.decisions("m", "p", limit=9, before=1.0) == []


def test_past_the_latest_decisions_come_the_lasting_ones(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_keys, "DECISIONS_KEPT", 100)
    began = time.time()
    for version in range(1000):
        item = Decision(began + version / 1e3, "m", "p", Mode.ACT, "held", False, version, None, {})
        store.append_decision(item, is_lasting=version % 100 == 0)
    found = [item.version for item in store.decisions("m", "p", limit=5000)]
    recent = [version for version in found if version % 100]
    oldest = min(recent)
    assert recent == [version for version in range(999, oldest - 1, -1) if version % 100]
    assert 700 < oldest <= 901  # 100 and up to some nodes of the stream more; 900 is a lasting one
    assert sorted(set(found) - set(range(oldest, 1000))) == list(range(0, oldest, 100))
    assert len(found) == len(set(found))
    assert [item.version for item in store.decisions("m", "p", limit=3, before=began - 60)] == []
    assert [item.version for item in store.decisions("m", "p", limit=2000)][:3] == [999, 998, 997]


def test_of_large_decisions_fewer_are_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_keys, "DECISIONS_BYTES", 100_000)
    monkeypatch.setattr(redis_keys, "HISTORY_BYTES", 150_000)
    for version in range(200):
        evidence = {"noise": secrets.token_hex(3000)}  # compresses to half
        item = Decision(float(version), "m", "p", Mode.ACT, "adaptive", True, version, None, evidence)
        store.append_decision(item, is_lasting=version % 2 == 0)
    used = sum(
        store._redis.memory_usage(key("m", "p"), samples=0) for key in (redis_keys.decisions, redis_keys.history)
    )
    assert 200_000 < used <= 1.3 * (redis_keys.DECISIONS_BYTES + redis_keys.HISTORY_BYTES)
    assert [item.version for item in store.decisions("m", "p", limit=20)] == list(range(199, 179, -1))


def test_api_keys_come_and_go(store: Store) -> None:
    key = ApiKey("k1", "ab" * 32, "code", ("code",))
    store.put_api_key(key)
    assert store.api_keys() == [key]
    changed = replace(key, requests_per_minute=5)
    assert store.change_api_key(key, changed)
    assert store.api_keys() == [changed]
    assert not store.change_api_key(key, key)  # somebody was faster
    assert store.api_keys() == [changed]
    assert store.delete_api_key("k1")
    assert not store.delete_api_key("k1")
    assert not store.change_api_key(changed, key)  # a revoked key does not come back
    assert store.api_keys() == []


def test_a_change_is_announced_at_once(store: Store, url: str) -> None:
    seen: list[str | None] = []
    ready = threading.Event()

    def follow() -> None:
        for change in Store(url).changes(poll_s=3600.0, of_pool=(schedule(1).model, schedule(1).pool)):
            seen.append(change)
            ready.set()
            if change == redis_keys.SCHEDULES:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    assert ready.wait(PATIENCE_S)
    lease = store.acquire_lease("a", 60.0)
    assert lease is not None
    store.publish_schedule(schedule(1), lease)
    thread.join(PATIENCE_S)
    assert seen == [None, redis_keys.SCHEDULES]


@pytest.mark.parametrize("executable", SERVERS.values(), ids=SERVERS)
def test_a_lost_server_is_one_named_error_and_comes_back(executable: str) -> None:
    server = RedisServer(executable=executable)
    store = Store(server.url, PATIENCE_S)
    server.stop()
    reads: list[Callable[[], object]] = [store.ping, store.engines, store.policies, store.freezes, store.admin_tokens]
    entry = AuditEntry(1.0, "ada", "put_policy", "m", Result.DONE)
    for call in (*reads, lambda: store.audit(1), lambda: store.append_audit(entry), lambda: next(store.changes(1.0))):
        with pytest.raises(StoreUnavailableError, match="Redis does not answer"):
            call()
    server.start()
    store.ping()
    server.close()


def test_a_malformed_url_is_refused() -> None:
    with pytest.raises(InvalidDocumentError):
        Store("http://nowhere")


def experiment(version: int, outcome: Outcome | None = None, base_version: int = 1) -> Experiment:
    return Experiment(version, "id", Canary(Policy("m", static_k=4)), base_version, 5.0, outcome=outcome)


def test_an_experiment_is_written_once_per_version(store: Store) -> None:
    assert store.canary("m") is None
    counted = replace(
        experiment(2),
        blocks=(Block(0, {"p": Gain(9.5, 0.1, 0.2)}),),
        lost={Lost.INTERRUPTED: 2},
        evidence={"arm": None},
    )
    store.put_canary(experiment(1), None, 5.0)
    store.put_canary(counted, None, 6.0)
    assert store.canary("m") == counted
    assert store.canaries() == [counted]
    with pytest.raises(VersionConflictError, match="the canary of m is at version 2, not 1"):
        store.put_canary(experiment(2, Outcome.ABORTED), None, 7.0)
    store.put_canary(experiment(3, Outcome.WORSE), None, 8.0)
    assert store.policy("m") is None


def test_a_promotion_writes_the_policy_in_the_same_step_or_nothing(store: Store) -> None:
    store.put_policy(Policy("m"), 0, 1.0)
    store.put_canary(experiment(1), None, 5.0)
    store.put_policy(Policy("m", static_k=2), 1, 6.0)
    with pytest.raises(VersionConflictError, match="the policy of m is at version 2, not 1"):
        store.put_canary(experiment(2, Outcome.BETTER), None, 7.0)
    found = store.canary("m")
    assert found == experiment(1)
    store.put_canary(experiment(2, Outcome.PROMOTED, base_version=2), None, 8.0)
    policy = store.policy("m")
    assert policy is not None
    assert (policy.version, policy.updated_at, policy.policy.static_k) == (3, 8.0, 4)


def test_a_deposed_leader_cannot_end_an_experiment(store: Store) -> None:
    store.put_canary(experiment(1, base_version=0), None, 5.0)
    old = store.acquire_lease("a", 0.05)
    assert old is not None
    time.sleep(0.1)
    new = store.acquire_lease("b", 60.0)
    assert new is not None
    with pytest.raises(FencedError):
        store.put_canary(experiment(2, Outcome.BETTER, base_version=0), old, 6.0)
    assert store.policy("m") is None
    store.put_canary(experiment(2, Outcome.BETTER, base_version=0), new, 6.0)
    policy = store.policy("m")
    assert policy is not None
    assert policy.version == 1


@pytest.mark.parametrize("model", ["my model", "größe 7b", "模型"])
def test_models_of_any_printable_name_are_kept_apart(store: Store, model: str) -> None:
    lease = store.acquire_lease("a", 60.0)
    assert lease is not None
    for name in (model, f"{model} p"):  # the field of a schedule ends with its pool, which has no space
        store.heartbeat(replace(RECORD, engine_id=str(len(name)), model=name), 60.0)
        store.put_policy(Policy(name), None, 1.0)
        store.publish_schedule(replace(schedule(1), model=name, pool="p"), lease)
    assert {record.model for record in store.engines()} == {model, f"{model} p"}
    assert {item.policy.model for item in store.policies()} == {model, f"{model} p"}
    found = [store.schedule(name, "p") for name in (model, f"{model} p")]
    assert [item.model for item in found if item is not None] == [model, f"{model} p"]


def test_a_write_that_others_overtake_every_time_gives_up_by_name(store: Store) -> None:
    place, tries = redis_documents.Place(redis_keys.POLICIES, "m"), 0

    def overtaken(_: bytes | None) -> dict[redis_documents.Place, bytes]:
        nonlocal tries
        tries += 1
        store._redis.hset(*place, str(tries))
        return {place: b"late"}

    with pytest.raises(StoreUnavailableError, match=f"changed by others {redis_documents.WRITE_TRIES} times"):
        store._change([place], overtaken)
    assert tries == redis_documents.WRITE_TRIES
    assert store._redis.hget(*place) == str(tries).encode()

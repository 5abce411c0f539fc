"""What operators' tools keep in Redis: versions, tokens, freezes and the audit, on a real server."""

import re
import zlib
from collections.abc import Callable
from dataclasses import astuple, replace
from itertools import pairwise
from typing import Any

import pytest

from specpilot.gateway.engines import redis_watch
from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy import audit, redis_keys
from specpilot.policy.access import AdminToken, Role, sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.audit import AuditEntry, Result
from specpilot.policy.canary import Canary, Experiment, Outcome
from specpilot.policy.clock import SystemClock
from specpilot.policy.errors import FencedError, VersionConflictError
from specpilot.policy.freeze import EVERYTHING, Freeze, Hold, freeze_of
from specpilot.policy.gain import GAIN_DAYS_KEPT, LogGain
from specpilot.policy.history import VERSIONS_KEPT, Change, Difference, VersionCause
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.model_routes import ModelRoute, ModelRoutes, Target, VersionedModelRoutes
from specpilot.policy.records import Decision, EngineRecord
from specpilot.policy.store import Store
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer


@pytest.fixture
def raw(server: RedisServer) -> Any:
    """Redis itself, for what the store would not write."""
    return server.client


def test_model_routes_are_written_over_the_version_that_was_read_and_announced(store: Store, raw: Any) -> None:
    assert store.model_routes() == VersionedModelRoutes()
    routes = {"chat": ModelRoute((Target("big", 9.0), Target("new")), ("small",))}
    with raw.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(redis_keys.CHANGES)
        heard.get_message(timeout=PATIENCE_S)
        stored = store.put_model_routes(ModelRoutes(routes), 0, 5.0)
        message = heard.get_message(timeout=PATIENCE_S)
        assert message is not None
        assert message["data"] == redis_keys.MODEL_ROUTES
    assert store.model_routes() == stored == VersionedModelRoutes(1, 5.0, routes)
    for expected in (0, 2):
        with pytest.raises(VersionConflictError, match=f"is at version 1, not {expected}"):
            store.put_model_routes(ModelRoutes(), expected, 6.0)
    assert store.put_model_routes(ModelRoutes(), 1, 6.0).version == 2
    assert store.model_routes().routes == {}


def test_a_write_that_another_came_before_is_decided_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = store._run, Policy("m", static_k=1)

    def after_another(*arguments: Any) -> Any:
        monkeypatch.setattr(store, "_run", run)
        store.put_policy(other, None, 1.0)
        return run(*arguments)

    for expected in (None, 1):
        monkeypatch.setattr(store, "_run", after_another)
        if expected is None:
            assert store.put_policy(Policy("m", static_k=2), None, 2.0).version == 2
        else:
            with pytest.raises(VersionConflictError, match="is at version 3, not 2"):
                store.put_policy(Policy("m", static_k=2), 2, 2.0)
    assert [item.policy for item in store.policy_versions("m", 3)] == [other, Policy("m", static_k=2), other]


def test_every_version_is_kept_with_who_wrote_it_and_why(store: Store) -> None:
    store.put_policy(Policy("m"), 0, 1.0, Change("ada", VersionCause.PUT, 'first, with "quotes"'))
    store.put_policy(Policy("m", k_min=1), 1, 2.0, Change("bob", VersionCause.PATCH))
    store.delete_policy("m", 2, 3.0, Change("ada", VersionCause.DELETE, "over"))
    store.put_policy(Policy("m", k_max=2), 0, 4.0, Change("ada", VersionCause.ROLLBACK))
    found = store.policy_versions("m", 10)
    assert [(item.version, item.updated_at, item.author, item.cause, item.comment) for item in found] == [
        (4, 4.0, "ada", VersionCause.ROLLBACK, ""),
        (3, 3.0, "ada", VersionCause.DELETE, "over"),
        (2, 2.0, "bob", VersionCause.PATCH, ""),
        (1, 1.0, "ada", VersionCause.PUT, 'first, with "quotes"'),
    ]
    assert [item.policy for item in found] == [Policy("m", k_max=2), None, Policy("m", k_min=1), Policy("m")]
    assert [item.version for item in store.policy_versions("m", 2, before=4)] == [3, 2]
    assert store.policy_version("m", 2) == found[2]
    assert store.policy_version("m", 5) is None
    assert store.policy_versions("other", 5) == []


def test_the_last_300_versions_are_kept(store: Store) -> None:
    for version in range(VERSIONS_KEPT + 5):
        store.put_policy(Policy("m", k_min=version % 7), version, float(version))
    found = store.policy_versions("m", 1000)
    assert len(found) == VERSIONS_KEPT == 300
    assert (found[0].version, found[-1].version) == (305, 6)


@pytest.mark.parametrize("change", [None, Change("ada", VersionCause.CANARY, "now")])
def test_a_promotion_is_a_version(store: Store, change: Change | None) -> None:
    store.put_policy(Policy("m"), 0, 1.0)
    canary = Experiment(1, "id", Canary(Policy("m", static_k=4)), 1, 5.0, outcome=Outcome.BETTER)
    store.put_canary(canary, None, 7.0, change)
    newest = store.policy_versions("m", 1)[0]
    assert (newest.version, newest.cause, newest.updated_at) == (2, VersionCause.CANARY, 7.0)
    assert (newest.author, newest.comment) == (("ada", "now") if change else ("controller", "canary id was better"))
    assert newest.policy == Policy("m", static_k=4)


TOKEN = AdminToken("a" * 12, "ada", Role.OPERATOR, "0" * 64, 1.0, expires_at=9.0)


def test_a_token_is_written_only_over_what_was_read(store: Store) -> None:
    assert store.put_admin_token(TOKEN, None)
    assert not store.put_admin_token(TOKEN, None)
    rotated = replace(TOKEN, sha256="1" * 64, rotated_at=2.0)
    assert store.put_admin_token(rotated, TOKEN)
    assert not store.put_admin_token(TOKEN, TOKEN)
    assert store.admin_token(TOKEN.token_id) == rotated
    assert list(store.admin_tokens()) == [rotated]
    assert store.delete_admin_token(TOKEN.token_id)
    assert not store.delete_admin_token(TOKEN.token_id)
    assert store.admin_token(TOKEN.token_id) is None


def test_a_freeze_of_a_model_comes_before_the_one_of_everything(store: Store) -> None:
    whole = Freeze(EVERYTHING, Hold.STATIC, 1.0)
    own = Freeze("m", Hold.CURRENT, 1.0, until=5.0, author="ada", comment="launch")
    store.put_freeze(whole)
    store.put_freeze(own)
    found = store.freezes()
    assert freeze_of(found, "m", 4.9) == own
    assert freeze_of(found, "m", 5.0) == whole
    assert freeze_of(found, "other", 4.9) == whole
    assert store.delete_freeze(EVERYTHING)
    assert not store.delete_freeze(EVERYTHING)
    assert freeze_of(store.freezes(), "m", 5.0) is None


def test_gateways_hear_of_policies_and_not_of_freezes_which_they_do_not_read(store: Store) -> None:
    changes = store.changes(poll_s=3600.0)
    assert next(changes) is None
    store.put_freeze(Freeze("m", Hold.STATIC, 1.0))
    store.delete_freeze("m")
    store.put_policy(Policy("m"), None, 1.0)
    assert next(changes) == redis_keys.POLICIES


def test_a_freeze_that_cannot_be_read_holds_the_current_k_and_can_be_lifted(
    store: Store, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    good = Freeze("good", Hold.STATIC, 1.0)
    store.put_freeze(good)
    raw.hset(redis_keys.FREEZES, "bad", '{"model":"bad","hold":"nonsense","since":1.0,"until":2.0}')
    for _ in range(2):
        found = store.freezes()
    assert found["good"] == good
    assert (found["bad"].model, found["bad"].hold, found["bad"].until) == ("bad", Hold.CURRENT, None)
    [said] = [record.message for record in caplog.records]
    assert said.startswith("1 of the freezes cannot be read and hold the current K; lift or replace them; bad: ")
    assert "hold" in said
    assert store.delete_freeze("bad")
    assert store.freezes() == {"good": good}


def test_a_name_that_is_no_utf8_hides_nothing_else(store: Store, raw: Any) -> None:
    good, engine = (
        Freeze("good", Hold.STATIC, 1.0),
        EngineRecord("e", "u", "m", "p", 3, 3, 8, "eagle3", "0", "0", 1.0, 1.0),
    )
    store.put_freeze(good)
    store.heartbeat(engine, 60.0)
    raw.hset(redis_keys.FREEZES, b"\xff", "{}")
    raw.sadd(redis_keys.ENGINES, b"\xff")
    found = store.freezes()
    assert (found["good"], found["\ufffd"].hold) == (good, Hold.CURRENT)
    assert list(store.engines()) == [engine]
    assert raw.smembers(redis_keys.ENGINES) == {"e"}
    changes = store.changes(poll_s=3600.0)
    assert next(changes) is None
    raw.publish(redis_keys.CHANGES, b"\xff")
    assert next(changes) == "\ufffd"


def test_each_new_document_that_cannot_be_read_is_in_a_line_and_so_is_the_next_after_a_repair(
    store: Store, raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        caplog.clear()
        store.api_keys()
        store.api_keys()
        return [re.sub(r": invalid.*", "", record.message) for record in caplog.records]

    raw.hset(redis_keys.API_KEYS, mapping={"b": "{", "c": "{"})
    assert said() == ["2 of the API keys cannot be read and are left out; b"]
    raw.hset(redis_keys.API_KEYS, "d", "{")
    assert said() == ["3 of the API keys cannot be read and are left out; d"]
    raw.hdel(redis_keys.API_KEYS, "b")
    assert said() == ["2 of the API keys cannot be read and are left out; c"]
    raw.hdel(redis_keys.API_KEYS, "c")
    assert said() == []


DECISION = Decision(1.0, "m", "p", Mode.ACT, "held", False, 1, None, {})
UNREADABLE = [zlib.compress(b'{"at":3}'), b"neither JSON nor compressed", *(f'{{"at":{at}}}' for at in range(200))]


@pytest.mark.parametrize(
    ("write", "spoil", "read", "label"),
    [
        (
            lambda store, _: store.put_policy(Policy("m"), None, 1.0),
            lambda raw: raw.hset(redis_keys.policy_versions("m"), 7, '{"version":7}'),
            lambda store: [item.updated_at for item in store.policy_versions("m", 500)],
            "the versions of the policy of 'm'",
        ),
        (
            lambda store, number: store.append_audit(entry(str(number))),
            lambda raw: raw.xadd(redis_keys.AUDIT, {"entry": '{"at":"yesterday"}'}, id="1-1"),
            lambda store: [item.at for item in store.audit(500)],
            "the audit entries",
        ),
        (
            lambda store, _: store.append_decision(DECISION, is_lasting=True),
            lambda raw: [raw.xadd(redis_keys.decisions("m", "p"), {"decision": text}) for text in UNREADABLE],
            lambda store: [item.at for item in store.decisions("m", "p", 500)],
            "the decisions",
        ),
    ],
    ids=["versions", "audit", "decisions"],
)
def test_what_cannot_be_read_hides_nothing_else_and_is_told_of_in_one_line(
    store: Store,
    raw: Any,
    caplog: pytest.LogCaptureFixture,
    write: Callable[[Store, int], object],
    spoil: Callable[[Any], object],
    read: Callable[[Store], list[float]],
    label: str,
) -> None:
    """Another version of the controller may have written it; a console reads it every few seconds."""
    write(store, 1)
    spoil(raw)
    write(store, 2)
    assert [read(store) for _ in range(3)] == [[1.0, 1.0]] * 3
    [said] = [record.message for record in caplog.records]
    assert re.match(rf"\d+ of {label} cannot be read and are left out; \S+: invalid ", said)


def entry(what: str, result: Result = Result.DONE) -> AuditEntry:
    return AuditEntry(1.0, "ada", what, "m", result, changes=(Difference("k_min", 0, 1),))


def test_the_audit_numbers_what_was_done_and_refused_in_one_order(store: Store) -> None:
    for number in range(1, 9):
        assert store.append_audit(entry(str(number), Result.REFUSED if number % 3 == 0 else Result.DONE)) == number
    newest = store.audit(5)
    assert [item.number for item in newest] == [8, 7, 6, 5, 4]
    assert newest[0] == replace(entry("8"), number=8)
    assert [item.number for item in store.audit(5, before=4)] == [3, 2, 1]
    assert [item.number for item in store.audit(3, after=2)] == [3, 4, 5]
    assert [item.number for item in store.audit(9, before=6, after=3)] == [4, 5]
    assert store.audit(3, after=8) == []


def test_refusals_cannot_push_out_what_was_done(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "REFUSED_KEPT", 100)
    store.append_audit(entry("done"))
    for _ in range(600):
        store.append_audit(entry("refused", Result.REFUSED))
    found = store.audit(1000)
    assert found[-1].action == "done"
    assert len(found) < 400  # Redis drops whole nodes of a stream, so that some more are kept than asked for
    assert all(newer.number > older.number for newer, older in pairwise(found))


def test_a_key_that_an_older_version_wrote_can_be_changed(store: Store, raw: Any) -> None:
    raw.hset(redis_keys.API_KEYS, "k", '{"key_id":"k","sha256":"00","traffic_class":null,"allowed_classes":null}')
    [found] = store.api_keys()
    assert found == ApiKey("k", "00")
    assert store.change_api_key(found, replace(found, requests_per_minute=5))
    assert not store.change_api_key(found, replace(found, requests_per_minute=6))


def test_gains_are_summed_by_day_and_the_last_thirty_days_are_kept(store: Store, raw: Any) -> None:
    lease = store.acquire_lease("one", 60.0)
    assert lease is not None
    day_s, midnight = 86_400.0, 1_800_057_600.0
    for number in range(GAIN_DAYS_KEPT + 2):
        store.add_gain("m", "p", midnight + number * day_s, LogGain(0.1, 0.3), lease)
    latest = midnight + (GAIN_DAYS_KEPT + 1) * day_s
    found = store.add_gain("m", "p", latest + day_s - 1, LogGain(-0.2, 0.1), lease)
    assert astuple(found.throughput) == pytest.approx((2, -0.1, 0.05))
    assert astuple(found.itl) == pytest.approx((2, 0.4, 0.1))
    kept = store.daily_gains("m", "p")
    assert len(kept) == GAIN_DAYS_KEPT
    assert kept[0] == found
    assert [item.day for item in kept] == sorted((item.day for item in kept), reverse=True)
    assert kept[-1].throughput.windows == kept[-1].itl.windows == 1
    assert 0 < raw.ttl(redis_keys.gains("m", "p")) <= redis_keys.GAINS_EXPIRE_S
    assert store.daily_gains("m", "other") == []
    store.release_lease(lease)
    assert store.acquire_lease("two", 60.0) is not None
    with pytest.raises(FencedError):
        store.add_gain("m", "p", latest, LogGain(0.1, 0.1), lease)


def test_a_gateway_remembers_so_many_lost_keys_and_notices_the_latest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_watch, "LOST_KEYS", 2)
    watcher = redis_watch.Watcher(
        store=store,
        own_keys=(),
        first=Snapshot(),
        publish=lambda _: None,
        gateway_id="g",
        demands=dict,
        share=lambda _: None,
        clock=SystemClock(),
        poll_s=1.0,
    )
    keys = [ApiKey(f"k{number}", sha256_of(f"sk-{number}")) for number in range(4)]
    for key in keys:
        store.put_api_key(key)
        watcher.read()
        store.delete_api_key(key.key_id)
        assert watcher.read().returned_keys == frozenset()
    for key in (keys[0], keys[3]):
        store.put_api_key(key)
    assert watcher.read().returned_keys == {"k3"}
    assert len(watcher._lost_hashes) == 2

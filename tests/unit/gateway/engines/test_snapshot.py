import hashlib

import pytest

from specpilot.gateway.engines.snapshot import Snapshot, by_hash, follow, keys_of, without
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.model_policy import ClassPolicy, MatchRule, Policy, VersionedPolicy
from tests.support.engine_records import record


def key(key_id: str, traffic_class: str | None = None) -> ApiKey:
    return ApiKey(key_id, sha256_of(key_id), traffic_class)


POLICY = VersionedPolicy(3, 1.0, Policy("m", classes={"code": ClassPolicy()}, match=(MatchRule("code"),)))
FULL = Snapshot(
    (record("a", "http://x"), record("b", "http://x")), {"m": POLICY}, by_hash([key("k")]), needs_key=True, taken_at=1.0
)


def test_in_normal_times_what_is_found_holds() -> None:
    found = Snapshot((record("b", "http://x"),), {}, {}, taken_at=2.0)
    after = follow(FULL, found, Snapshot())
    assert (after.engines, after.policies, after.keys, after.taken_at) == ((record("b", "http://x"),), {}, {}, 2.0)


def test_losing_the_keys_closes_the_gateway() -> None:
    for unseen in (Snapshot(), FULL):
        assert follow(FULL, Snapshot(), unseen).needs_key
    assert not follow(Snapshot(), Snapshot(), Snapshot()).needs_key
    assert follow(Snapshot(), Snapshot(keys=by_hash([key("k")])), Snapshot()).needs_key


def test_once_redis_was_read_its_keys_are_known() -> None:
    waiting = Snapshot(is_awaiting_keys=True)
    for unseen in (Snapshot(), waiting):
        assert not follow(waiting, Snapshot(), unseen).is_awaiting_keys


def test_after_redis_was_away_nothing_is_dropped_at_once() -> None:
    found = Snapshot((record("b", "http://new"), record("c", "http://x")), {}, by_hash([key("l")]), taken_at=2.0)
    after = follow(FULL, found, without(FULL, found))
    assert [(item.engine_id, item.url) for item in after.engines] == [
        ("b", "http://new"), ("c", "http://x"), ("a", "http://x"),
    ]  # fmt: skip
    assert after.policies == FULL.policies
    assert {item.key_id for item in after.keys.values()} == {"k", "l"}
    assert after.taken_at == 2.0


def test_a_document_that_redis_holds_again_is_not_kept_any_longer() -> None:
    rotated = ApiKey("k", sha256_of("new"))
    found = Snapshot((record("b", "http://new"),), {"m": POLICY}, by_hash([rotated]), taken_at=2.0)
    unseen = without(FULL, found)
    assert [item.engine_id for item in unseen.engines] == ["a"]
    assert (unseen.policies, unseen.keys) == ({}, {})
    assert follow(FULL, found, unseen).keys == found.keys  # the old secret is not good any longer
    assert follow(FULL, Snapshot(), without(unseen, Snapshot())).keys == {}  # nor is a key that is revoked then


def test_what_a_policy_says() -> None:
    assert FULL.known_classes("m") == {"default", "code"}
    assert FULL.rules("m") == (MatchRule("code"),)
    assert FULL.policy_version("m") == 3


def test_without_a_policy() -> None:
    keys = by_hash([key("a", "code"), key("b")])
    found = Snapshot(keys=keys)
    assert found.known_classes("m") == {"default", "code"}
    assert found.rules("m") == ()
    assert found.policy_version("m") == 0


def test_keys_are_kept_as_hashes() -> None:
    [found] = keys_of([{"key_id": "a", "key": "sk-1", "traffic_class": "code", "allowed_classes": ["code", "chat"]}])
    assert found == ApiKey("a", hashlib.sha256(b"sk-1").hexdigest(), "code", ("code", "chat"))
    assert sha256_of("sk-1") == sha256_of(b"sk-1") == found.sha256
    assert by_hash([ApiKey("a", found.sha256.upper())])[found.sha256].key_id == "a"


def test_a_keys_file_states_all_that_a_key_may() -> None:
    may = {"requests_per_minute": 6, "tokens_per_minute": 7, "max_concurrent_requests": 8, "k_max": 0}
    [found] = keys_of([{"key_id": "a", "key": "sk-1", "expires_at": 9.5, "allowed_models": ["m"], **may}])
    assert (found.expires_at, found.allowed_models, found.may_use("m"), found.may_use("n")) == (
        9.5,
        ("m",),
        True,
        False,
    )
    assert {name: getattr(found, name) for name in may} == may
    assert found.has_limits
    with pytest.raises(InvalidDocumentError) as caught:
        keys_of([{"key_id": "a", "key": "sk-1", "k_max": 65, "max_concurrent_requests": 0, "allowed_models": ["a "]}])
    said = str(caught.value)
    assert "k_max: must be at most 64" in said
    assert "max_concurrent_requests: must be at least 1" in said
    assert "allowed_models.0: 'a '" in said
    assert "sk-1" not in said
    with pytest.raises(InvalidDocumentError, match="allowed_models: must have at most 256 items"):
        keys_of([{"key_id": "a", "key": "sk-1", "allowed_models": ["m"] * 257}])


def test_every_fault_of_a_keys_file_is_reported_and_no_key() -> None:
    with pytest.raises(InvalidDocumentError) as caught:
        keys_of(
            [{"key_id": "a"}, {"key_id": "b", "key": "sk-secret", "traffic_class": "A B"}, {"key": "", "key_id": "c"}]
        )
    fields = [fault.field for fault in caught.value.faults]
    assert fields == ["[0].key", "[1].traffic_class", "[2].key"]
    assert "sk-secret" not in str(caught.value)

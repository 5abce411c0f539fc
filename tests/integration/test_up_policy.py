"""What `specpilot up` leaves of the policy that is in Redis when it starts again."""

from collections.abc import Iterator

import pytest

from specpilot import up
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.settings import load
from specpilot.policy.types import ClassPolicy, Mode, Objective, Policy
from specpilot.up_settings import UpSettings
from tests.support.redis_server import RedisServer

WRITTEN = Policy(
    "demo",
    Mode.ADVISE,
    Objective.LATENCY,
    static_k=2,
    k_max=5,
    hold_out_ratio=0.1,
    classes={"batch": ClassPolicy(pin=1)},
)


@pytest.fixture
def url() -> Iterator[str]:
    server = RedisServer()
    yield server.url
    server.close()


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    found = RedisStore(url)
    yield found
    found.close()


def start(url: str, *flags: str) -> Policy:
    return up._write_policy(load(UpSettings, up.PROGRAM, flags), url)


def in_redis(store: RedisStore) -> tuple[Policy, int]:
    found = store.policy("demo")
    assert found is not None
    return found.policy, found.version


def test_the_first_start_writes_a_policy_with_the_flags_mode_and_k(url: str, store: RedisStore) -> None:
    started = start(url, "--mode", "off", "--k", "3")
    assert (started, 1) == in_redis(store)
    assert (started.mode, started.static_k) == (Mode.OFF, 3)


def test_without_flags_an_operators_policy_stays_as_it_is(url: str, store: RedisStore) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    assert start(url) == WRITTEN
    assert in_redis(store) == (WRITTEN, 1)


def test_a_flag_changes_its_own_field_and_no_other(url: str, store: RedisStore) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    changed = start(url, "--mode", "act", "--k", "4")
    assert (changed, 2) == in_redis(store)
    assert changed == Policy(
        "demo",
        Mode.ACT,
        Objective.LATENCY,
        static_k=4,
        k_max=5,
        hold_out_ratio=0.1,
        classes={"batch": ClassPolicy(pin=1)},
    )


def test_what_a_start_changed_is_in_the_audit(url: str, store: RedisStore) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    start(url, "--mode", "act")
    start(url, "--mode", "act")
    [entry] = store.audit(10)
    assert (entry.who, entry.action, entry.subject, entry.result) == ("specpilot up", "put_policy", "demo", "done")
    assert [tuple(item) for item in entry.changes] == [("mode", "advise", "act")]


def test_the_same_flags_again_are_no_new_version(url: str, store: RedisStore) -> None:
    for _ in range(2):
        start(url, "--mode", "advise")
    assert in_redis(store)[1] == 1


@pytest.mark.parametrize(("flags", "said"), [((), "mode advise"), (("--mode", "act"), "mode act")])
def test_the_addresses_say_the_mode_in_force(url: str, store: RedisStore, flags: tuple[str, ...], said: str) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    mode = start(url, *flags).mode
    assert said in up._addresses(load(UpSettings, up.PROGRAM, flags), mode)

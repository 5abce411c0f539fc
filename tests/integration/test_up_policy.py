"""What `specpilot up` leaves of the policy that is in Redis when it starts again."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from specpilot import up
from specpilot.policy import redis_keys
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.schedule import Objective
from specpilot.policy.settings import load
from specpilot.policy.store import Store
from specpilot.supervisor import PartFailedError
from specpilot.up_settings import UpSettings
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.stack import free_port

WRITTEN = Policy(
    "demo",
    Mode.ADVISE,
    Objective.LATENCY,
    static_k=2,
    k_max=5,
    control_group_ratio=0.1,
    classes={"batch": ClassPolicy(pin=1)},
)


@pytest.fixture
def url(server: RedisServer) -> str:
    return server.url


def start(url: str, *flags: str) -> Policy:
    return up._write_policy(load(UpSettings, up.PROGRAM, flags), url, lambda _: None)


def in_redis(store: Store) -> tuple[Policy, int]:
    found = store.policy("demo")
    assert found is not None
    return found.policy, found.version


def test_the_first_start_writes_a_policy_with_the_flags_mode_and_k(url: str, store: Store) -> None:
    started = start(url, "--mode", "off", "--k", "3")
    assert (started, 1) == in_redis(store)
    assert (started.mode, started.static_k) == (Mode.OFF, 3)


def test_without_flags_an_operators_policy_stays_as_it_is(url: str, store: Store) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    assert start(url) == WRITTEN
    assert in_redis(store) == (WRITTEN, 1)


def test_a_flag_changes_its_own_field_and_no_other(url: str, store: Store) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    changed = start(url, "--mode", "act", "--k", "4")
    assert (changed, 2) == in_redis(store)
    assert changed == Policy(
        "demo",
        Mode.ACT,
        Objective.LATENCY,
        static_k=4,
        k_max=5,
        control_group_ratio=0.1,
        classes={"batch": ClassPolicy(pin=1)},
    )


def test_what_a_start_changed_is_in_the_audit(url: str, store: Store) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    start(url, "--mode", "act")
    start(url, "--mode", "act")
    assert in_redis(store)[1] == 2  # the same again is no new version
    [entry] = store.audit(10)
    assert (entry.who, entry.action, entry.subject, entry.result) == ("specpilot up", "put_policy", "demo", "done")
    assert [tuple(item) for item in entry.changes] == [("mode", "advise", "act")]


@pytest.mark.parametrize(("flags", "said"), [((), "mode advise"), (("--mode", "act"), "mode act")])
def test_the_addresses_say_the_mode_in_force(url: str, store: Store, flags: tuple[str, ...], said: str) -> None:
    store.put_policy(WRITTEN, None, 0.0)
    mode = start(url, *flags).mode
    assert said in up._addresses(load(UpSettings, up.PROGRAM, flags), mode)


def in_time(url: str, within_s: float, said: list[str]) -> Policy | None:
    settings = load(UpSettings, up.PROGRAM, ["--ready-within-s", str(within_s)])
    return up._policy_in_force(settings, url, threading.Event(), said.append)


def test_redis_may_answer_later_than_the_start(server: RedisServer) -> None:
    """As when a machine boots: the service would stay down if that ended the start as a wrong setting does."""
    server.stop()
    later = threading.Timer(0.5, server.start)
    later.start()
    said: list[str] = []
    assert in_time(server.url, 20.0, said) is not None
    later.join()
    assert said[0].startswith("waiting for Redis: Redis does not answer")


def test_a_redis_that_is_absent_read_only_full_or_holds_nonsense_fails_the_start_and_is_named(
    server: RedisServer, store: Store
) -> None:
    said: list[str] = []
    store._redis.replicaof("127.0.0.1", 1)
    with pytest.raises(
        PartFailedError, match=r"in time: Redis does not answer: the server is not the primary.*read only replica"
    ):
        in_time(server.url, 0.1, said)
    store._redis.replicaof("NO", "ONE")
    store._redis.config_set("maxmemory", 1)
    with pytest.raises(PartFailedError, match=r"written in time: Redis (is full|.*OOM)"):
        in_time(server.url, 0.1, said)
    store._redis.config_set("maxmemory", 0)
    store._redis.hset(redis_keys.POLICIES, "demo", "nonsense")
    with pytest.raises(PartFailedError, match="the policy could not be written: invalid"):
        in_time(server.url, 0.1, said)
    server.stop()
    with pytest.raises(PartFailedError, match="could not be written in time: Redis does not answer"):
        in_time(server.url, 0.1, said)


def test_without_redis_the_program_ends_with_a_status_that_is_restarted(tmp_path: Path) -> None:
    """The unit's RestartPreventExitStatus keeps a machine down after status 2."""
    ports = [f"--{name}={free_port()}" for name in ("port", "admin-port", "engine-port")]
    flags = [*ports, "--unattended", "--redis-url", f"unix://{tmp_path}/none", "--ready-within-s", "0.1"]
    command = [sys.executable, "-P", "-m", "specpilot.cli", "up", *flags, "--state-dir", str(tmp_path / "state")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert "Redis does not answer" in done.stdout
    assert "Traceback" not in done.stderr

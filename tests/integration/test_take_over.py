"""Two controller processes on one Redis: the leader is killed, or frozen and woken; the stand-by follows, K stays."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.request import urlopen

import numpy as np
import pytest
from numpy.typing import NDArray

from specpilot.controller.lease import TTL_S
from specpilot.policy import redis_keys
from specpilot.policy.model_policy import Policy
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.records import Decision
from specpilot.policy.schedule import FleetAcceptance, Schedule
from specpilot.policy.store import Store
from tests.simulation.engine import MODEL, POOL
from tests.support.controller_engine import HttpEngine
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.stack import free_port, until


def ticks_with_engine(port: int) -> float:
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as page:
            text = page.read().decode()
    except OSError:
        return 0.0
    found = re.search(r"^specpilot_controller_tick_seconds_count (\S+)", text, re.MULTILINE)
    return float(found[1]) if found and "scrape_age_seconds{" in text else 0.0


def measured_k(decision: Decision) -> float:
    """The mean K of the last scrape."""
    return decision.k.get(DEFAULT_CLASS, 0.0)


class Settled(NamedTuple):
    """What was there before the leader was gone: its fence and name, K, the engine's own counts."""

    fence: int
    leader: str
    k: float
    counted: NDArray[np.float64]


@dataclass
class Pair:
    """Two controllers with the default settings, by the name in the lease. No control group: it moves K by design."""

    store: Store
    processes: dict[str, subprocess.Popen[bytes]]
    ports: dict[str, int]

    @property
    def lease(self) -> tuple[int, str] | None:
        found = self.store._redis.get(redis_keys.LEASE)
        fence, _, holder = (found or b"").decode().partition(":")
        return (int(fence), holder) if found else None

    def have_learned(self) -> bool:
        """Whether both have scraped for some ticks: only then is the one that stands by ready to follow."""
        return all(ticks_with_engine(port) >= 10 for port in self.ports.values())

    def other(self, holder: str) -> str:
        return next(name for name in self.processes if name != holder)


@pytest.fixture
def pair(server: RedisServer, store: Store) -> Iterator[Pair]:
    command = [sys.executable, "-m", "specpilot.controller", "--log-level", "error"]
    environment = {**os.environ, "REDIS_URL": server.url}
    ports = {name: free_port() for name in ("a", "b")}
    processes = {
        name: subprocess.Popen([*command, "--port", str(port), "--holder", name], env=environment)
        for name, port in ports.items()
    }
    store.put_policy(Policy(MODEL, control_group_ratio=0.0), None, time.time())
    yield Pair(store, processes, ports)
    for process in processes.values():
        process.kill()
        process.wait(PATIENCE_S)


async def within(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    await asyncio.to_thread(until, condition, seconds, 0.02)


async def settled(pair: Pair, engine: HttpEngine) -> Settled:
    """Wait until the engine has found its K, the leader knows it, and both have scraped for some time."""

    def is_settled() -> bool:
        if not engine.applied or engine.applied[-1].fleet is None:  # that comes with a renewal
            return False
        last = pair.store.decisions(MODEL, POOL, 5)
        if len(last) < 5 or {item.reason for item in last} != {"adaptive"} or not pair.have_learned():
            return False
        return min(map(measured_k, last)) > 5  # its static K is 3

    await within(is_settled, 100.0)
    assert all(process.poll() is None for process in pair.processes.values())
    assert pair.lease is not None
    assert engine.applied
    k = measured_k(pair.store.decisions(MODEL, POOL, 1)[0])
    return Settled(*pair.lease, k, engine.plant.by_source.copy())


def acceptance(fleet: FleetAcceptance) -> list[float]:
    """The ratio of accepted drafts by position, in the band of the likeliest ones."""
    return [accepted / tried for tried, accepted in zip(fleet.trials[-1], fleet.accepts[-1], strict=True) if tried > 50]


def assert_no_jump(
    engine: HttpEngine, was: Settled, before: Schedule, after: list[Schedule], pair: Pair, since: float
) -> None:
    """The successor goes on from the schedule in force: it asks the same of the engine, and has learned as much.

    So the engine keeps its K.
    """
    for item in after:
        assert item.guidance == before.guidance
        assert (item.drawn, item.is_fallen_back) == ((), False)
        assert before.fleet is not None
        assert item.fleet is not None
        found, expected = acceptance(item.fleet), acceptance(before.fleet)
        assert found
        assert expected
        assert max(abs(one - other) for one, other in zip(found, expected, strict=False)) < 0.1
    versions = [item.version for item in (before, *after)]
    assert versions == sorted(set(versions))
    taken = [item for item in pair.store.decisions(MODEL, POOL, 20) if item.at > since]
    assert {item.reason for item in taken} == {"adaptive"}
    assert max(abs(measured_k(item) - was.k) for item in taken) < 2  # the static K is 4 away
    [(decodes, verified)] = engine.plant.by_source - was.counted
    assert abs(verified / decodes - was.k) <= 1  # the engine's own K in the mean


@pytest.mark.timeout(240)
async def test_a_frozen_leader_that_wakes_finds_itself_deposed_and_follows_when_its_successor_is_killed(
    pair: Pair,
) -> None:
    async with HttpEngine(pair.store) as engine:
        was = await settled(pair, engine)
        pair.processes[was.leader].send_signal(signal.SIGSTOP)
        frozen_at = time.time()
        seen, before = len(engine.applied), engine.applied[-1]
        successor = (was.fence + 1, pair.other(was.leader))
        await within(lambda: pair.lease == successor and len(engine.applied) > seen)
        pair.processes[was.leader].send_signal(signal.SIGCONT)
        woken = len(engine.applied)
        await within(lambda: len(engine.applied) >= woken + 3)
        assert pair.lease == successor
        assert pair.processes[was.leader].poll() is None
        assert_no_jump(engine, was, before, engine.applied[seen:], pair, frozen_at)

        was = await settled(pair, engine)
        assert was.leader == successor[1]
        pair.processes[was.leader].kill()
        killed_at, left_ms = time.time(), pair.store._redis.pttl(redis_keys.LEASE)
        assert left_ms <= 1000 * TTL_S  # then the other may take it
        seen, before = len(engine.applied), engine.applied[-1]
        await within(lambda: len(engine.applied) > seen and pair.lease == (was.fence + 1, pair.other(was.leader)))
        await within(lambda: len(engine.applied) >= seen + 3)
        assert_no_jump(engine, was, before, engine.applied[seen:], pair, killed_at)

from dataclasses import replace

import pytest

from specpilot.controller.decision.pool_memory import PoolMemory
from specpilot.controller.estimation.observation import Evidence, Snapshot

BUSY = Evidence(drafts={("a", 3, 0): 40.0}, decode_tokens={("a", 3): 40.0}, steps_by={"decode": 10.0}, running={"a": 4})


@pytest.mark.parametrize("every_s", [0.5, 2.0, 4.5])
def test_a_busy_pool_is_not_idle_however_rarely_it_is_looked_at(every_s: float) -> None:
    pool = PoolMemory()
    for look in range(3):
        pool.add_snapshot(Snapshot(look * every_s, every_s, BUSY))
        assert not pool.is_idle
    assert not pool.is_stale(3 * every_s)
    pool.add_snapshot(Snapshot(2 * every_s + 2.5, 2.5, Evidence()))
    assert pool.is_idle


@pytest.mark.parametrize("every_s", [0.5, 2.0, 4.0])
def test_one_look_at_idle_engines_alone_makes_no_pool_idle(every_s: float) -> None:
    """A server scrapes each engine at its own time, sometimes late: a snapshot may hold one engine's sample alone."""
    pool = PoolMemory(every_s)
    pool.add_snapshot(Snapshot(0.0, every_s, BUSY))
    pool.add_snapshot(Snapshot(1.4 * every_s, every_s, Evidence()))
    assert not pool.is_idle
    pool.add_snapshot(Snapshot(max(2.0, 2 * every_s) + 0.1, every_s, Evidence()))
    assert pool.is_idle


def test_an_slo_is_at_risk_while_an_engine_with_fresh_evidence_says_so() -> None:
    pool = PoolMemory()
    breaking = replace(BUSY, static_breaks_slo=1.0)
    pool.engines = {"one": Snapshot(0.0, 1.0, breaking), "two": Snapshot(0.0, 1.0, BUSY)}
    assert [pool.breaks_slo(at) for at in (1.0, 6.0)] == [True, False]
    pool.engines["one"] = Snapshot(1.0, 1.0, BUSY)
    assert not pool.breaks_slo(1.0)
    pool.engines["two"] = Snapshot(1.0, 1.0, breaking)
    pool.keep_engines({"one"})
    assert not pool.breaks_slo(1.0)

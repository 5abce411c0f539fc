"""The limit on running requests: it follows what requests measured, and only where K cannot help."""

import pytest

from specpilot.engine_adapter.law.running_limit import RunningLimit
from specpilot.policy.latency_goal import Slo, Statistic

P95, MEAN = (Slo(tpot_ms={Statistic(name): 20.0}) for name in ("p95", "mean"))
MOST = 64


def play(limit: RunningLimit, asked: int, ms_of_one: float, slo: Slo = P95, seconds: int = 200) -> list[int]:
    """Requests whose time per token grows by `ms_of_one` with each that runs: 5 end each second."""
    ran = []
    for _ in range(seconds):
        running = min(asked, limit.limit or MOST)
        limit.add([("chat", "tpot", (1 + 0.01 * at) * ms_of_one * running / 1000) for at in range(5)], {"chat": slo})
        limit.update(running, {"chat": slo}, ["chat"] if ms_of_one * running > 20.0 else [])
        ran.append(running)
    return ran


@pytest.mark.parametrize("slo", [P95, MEAN])
def test_as_many_run_as_keep_the_goal(slo: Slo) -> None:
    ran = play(RunningLimit(MOST), asked=48, ms_of_one=1.0, slo=slo)
    assert ran[0] == 48
    assert all(15 <= running <= 21 for running in ran[80:])
    assert sum(ran[80:]) / len(ran[80:]) > 17


def test_when_the_machine_is_fast_again_the_limit_goes() -> None:
    limit = RunningLimit(MOST)
    play(limit, asked=48, ms_of_one=1.0)
    assert limit.limit is not None
    play(limit, asked=48, ms_of_one=0.1, seconds=2000)
    assert limit.limit is None


def test_a_goal_that_k_can_keep_or_that_is_kept_limits_nothing() -> None:
    limit = RunningLimit(MOST)
    for _ in range(20):
        limit.add([("chat", "tpot", 0.030)] * 5, {"chat": P95})
        limit.update(40, {"chat": P95}, [])
    assert limit.limit is None
    assert play(limit, asked=19, ms_of_one=1.0)[-1] == 19
    limit.add([("chat", "ttft", 9.0), ("batch", "tpot", 9.0)] * 50, {"chat": P95, "batch": None})
    limit.update(40, {"chat": P95, "batch": None}, ["chat", "batch"])
    assert limit.limit is None


def test_without_the_policys_leave_there_is_none() -> None:
    limit = RunningLimit(MOST)
    play(limit, asked=48, ms_of_one=1.0)
    limit.drop()
    assert limit.limit is None

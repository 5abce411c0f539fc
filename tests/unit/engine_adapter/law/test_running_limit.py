"""The limit on running requests: it follows what requests measured, and only where K cannot help."""

import pytest

from specpilot.engine_adapter.law.running_limit import FORGET_S, LEAST, RunningLimit
from specpilot.policy.latency_goal import Slo, Statistic

P95, MEAN = (Slo(tpot_ms={Statistic(name): 20.0}) for name in ("p95", "mean"))
MOST = 64


def play(limit: RunningLimit, asked: int, ms_of_one: float, slo: Slo = P95, seconds: int = 200) -> list[int]:
    """Requests whose time per token grows by `ms_of_one` with each that runs: 5 end each second."""
    ran = []
    for at in range(seconds):
        running = min(asked, limit.limit or MOST)
        limit.add(
            [("chat", "tpot", (1 + 0.01 * each) * ms_of_one * running / 1000) for each in range(5)], {"chat": slo}
        )
        limit.update({"chat": running}, {"chat": slo}, ["chat"] if ms_of_one * running > 20.0 else [], at)
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
        limit.update({"chat": 40}, {"chat": P95}, [], 0.0)
    assert limit.limit is None
    assert play(limit, asked=19, ms_of_one=1.0)[-1] == 19
    limit.add([("chat", "ttft", 9.0), ("batch", "tpot", 9.0)] * 50, {"chat": P95, "batch": None})
    limit.update({"chat": 40}, {"chat": P95, "batch": None}, ["chat", "batch"], 0.0)
    assert limit.limit is None


def test_without_the_policys_leave_there_is_none() -> None:
    limit = RunningLimit(MOST)
    play(limit, asked=48, ms_of_one=1.0)
    limit.drop()
    assert limit.limit is None


def missed(limit: RunningLimit, running: int, at: float = 0.0, name: str = "chat") -> int | None:
    """As many requests as one decision needs, and as are passed by before, miss a goal that no K keeps."""
    slos = {"default": P95, "chat": P95, "batch": None}
    limit.add([(name, "tpot", 0.030)] * (LEAST + running), slos)
    limit.update({"chat": running}, slos, ["default", "chat"], at)
    return limit.limit


@pytest.mark.parametrize("goals", [{"chat": P95, "batch": None}, {"chat": None, "batch": None}])
def test_a_limit_ends_when_no_request_has_a_goal(goals: dict[str, Slo | None]) -> None:
    """The class is gone, or its goal: the others would wait for nothing."""
    limit = RunningLimit(MOST)
    assert missed(limit, 40) == 34
    for at in (1.0, FORGET_S, FORGET_S + 1.0):
        assert limit.limit == 34
        limit.add([("batch", "tpot", 0.500)] * 100, goals)
        limit.update({"chat": 0, "batch": 34}, goals, ["chat"], at)
    assert limit.limit is None


def test_a_long_reply_holds_the_limit_that_keeps_its_goal() -> None:
    limit, goals = RunningLimit(MOST), {"chat": P95, "batch": None}
    missed(limit, 40)
    for at in range(0, 3600, 60):
        limit.update({"chat": 1, "batch": 33}, goals, [], float(at))
    assert limit.limit == 34


def test_a_limit_that_was_not_reached_falls_from_what_runs() -> None:
    """It rose by one each time that few requests kept their goal."""
    limit = RunningLimit(1024)
    missed(limit, 40)
    play(limit, asked=20, ms_of_one=0.1, seconds=2000)
    assert limit.limit is not None
    assert limit.limit > 300
    limit.add([("chat", "tpot", 0.030)] * LEAST, {"chat": P95})
    limit.update({"chat": 20}, {"chat": P95}, ["chat"], 2000.0)
    assert limit.limit == 17


def test_the_most_that_ran_counts_not_a_moment_in_which_few_decode() -> None:
    limit = RunningLimit(MOST)
    limit.update({"chat": 40}, {"chat": P95}, ["chat"], 0.0)
    limit.add([("chat", "tpot", 0.030)] * LEAST, {"chat": P95})
    limit.update({"chat": 3}, {"chat": P95}, ["chat"], 1.0)
    assert limit.limit == 34


def test_a_class_that_no_policy_names_has_the_goal_of_default() -> None:
    assert missed(RunningLimit(MOST), 40, name="unknown") == 34


def test_a_limit_that_begins_again_passes_nothing_by() -> None:
    limit = RunningLimit(MOST)
    missed(limit, 40)
    limit.drop()
    limit.add([("chat", "tpot", 0.030)] * LEAST, {"chat": P95})
    limit.update({"chat": 20}, {"chat": P95}, ["chat"], 1.0)
    assert limit.limit == 17


@pytest.mark.parametrize(("name", "missed_of_100", "expected"), [("p99", 4, 34), ("p99", 0, None), ("p95", 12, 34)])
def test_a_percentile_is_judged_by_as_many_requests_as_one_of_which_may_miss_it(
    name: str, missed_of_100: int, expected: int | None
) -> None:
    """One of twenty requests beyond a p99 tells nothing, four of a hundred do."""
    limit, slos = RunningLimit(MOST), {"chat": Slo(tpot_ms={Statistic(name): 20.0})}
    for at in range(100):
        is_missed = at * missed_of_100 // 100 != (at + 1) * missed_of_100 // 100
        limit.add([("chat", "tpot", 0.030 if is_missed else 0.010)], slos)
        limit.update({"chat": 40}, slos, ["chat"], 0.0)
    assert limit.limit == expected


def test_misses_within_noise_raise_no_limit() -> None:
    limit = RunningLimit(MOST)
    missed(limit, 40)
    for at in range(40 * 20):  # 2 of 20 are beyond the one that may be, and within the noise
        limit.add([("chat", "tpot", 0.030 if at % 10 == 0 else 0.010)], {"chat": P95})
        limit.update({"chat": 34}, {"chat": P95}, [], 0.0)
    assert limit.limit == 34

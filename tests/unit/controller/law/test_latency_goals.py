"""The requests of a pool by latency goal: attainment over windows, and the budget."""

from dataclasses import replace

import pytest

from specpilot.controller.decision.latency_goals import LatencyGoals
from specpilot.controller.estimation.observation import Evidence, Snapshot
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.schedule import Cause, ClassGuidance, Guidance, Override

SLO = Slo(tpot_ms={Statistic.P95: 30.0}, ttft_ms={Statistic.MEAN: 500.0})
GUIDANCE = Guidance(classes={"default": ClassGuidance(), "chat": ClassGuidance(slo=SLO)})
STATIC = replace(GUIDANCE, override=Override(3, Cause.CONTROL_GROUP))
BUSY = {"running": {"chat": 4.0}, "slo_predicted": {"chat": 0.024}, "slo_mean_predicted": {"chat": 0.016}}


def ended(within: float, beyond: float, measure: str = "tpot", **gauges: dict[str, float]) -> Evidence:
    requests = {("chat", measure, "within"): within, ("chat", measure, "beyond"): beyond}
    return Evidence(slo_requests=requests, slo_seconds={("chat", measure): 0.02 * (within + beyond)}, **gauges)


def kept(slo: Slo = SLO) -> LatencyGoals:
    goals = LatencyGoals()
    goals.keep({"chat": slo}, {"one", "two"})
    return goals


def add(
    goals: LatencyGoals,
    evidence: Evidence,
    at: float,
    guidance: Guidance = GUIDANCE,
    engine: str = "one",
    *,
    is_chosen: bool = True,
) -> None:
    goals.add(engine, Snapshot(at, 1.0, evidence), guidance, is_chosen=is_chosen)


def attained(goals: LatencyGoals, at: float) -> float | None:
    found: float | None = goals.described(at, {})["chat"]["tpot"]["attained_ratio"]["5m"]
    return found


def test_attainment_is_by_window_and_the_budget_is_of_a_day() -> None:
    goals = kept()
    add(goals, ended(70, 30), 0.0)
    add(goals, ended(960, 40), 3000.0)
    add(goals, ended(3, 1, "ttft"), 3000.0, engine="two")
    tpot = goals.described(3100.0, {"chat": 0.9})["chat"]["tpot"]
    assert tpot["attained_ratio"] == {"5m": 0.96, "1h": pytest.approx(1030 / 1100), "1d": pytest.approx(1030 / 1100)}
    assert tpot["budget_left_ratio"] == pytest.approx(1 - 70 / 1100 / 0.05)
    assert (tpot["margin"], tpot["is_unreachable"], tpot["mean_ms"]) == (0.9, False, pytest.approx(20.0))
    assert tpot["requests_by_window"] == {"5m": 1000.0, "1h": 1100.0, "1d": 1100.0}
    assert tpot["mean_ms_by_window"] == dict.fromkeys(("5m", "1h", "1d"), pytest.approx(20.0))
    ttft = goals.described(3100.0, {"chat": 0.9})["chat"]["ttft"]
    assert ttft["attained_ratio"]["5m"] == 0.75
    assert ttft["budget_left_ratio"] is None
    assert "margin" not in ttft
    later = goals.described(3700.0, {})["chat"]["tpot"]["attained_ratio"]
    assert later == {"5m": None, "1h": 0.96, "1d": pytest.approx(1030 / 1100)}


def test_a_window_forgets_what_is_older() -> None:
    goals = kept()
    for second in range(1000):
        add(goals, ended(1, 0) if second >= 500 else ended(0, 1), float(second))
    found = goals.described(999.0, {})["chat"]["tpot"]["attained_ratio"]
    assert found == {"5m": 1.0, "1h": 0.5, "1d": 0.5}


def test_a_goal_that_changes_begins_without_evidence() -> None:
    goals = kept()
    add(goals, ended(5, 5), 0.0)
    goals.keep({"chat": Slo(tpot_ms={Statistic.P95: 31.0})}, {"one"})
    described = goals.described(0.0, {})
    assert list(described["chat"]) == ["tpot"]
    assert described["chat"]["tpot"]["attained_ratio"]["5m"] is None
    goals.keep({}, {"one"})
    assert goals.described(0.0, {}) == {}


def test_a_snapshot_counts_once_and_by_the_goal_that_its_engine_followed() -> None:
    """A canary may have another goal: what its requests met or missed is not the policy's."""
    goals = kept()
    other = Guidance(classes={"default": ClassGuidance(), "chat": ClassGuidance(slo=Slo(tpot_ms={Statistic.P95: 9.0}))})
    add(goals, ended(0, 50, **BUSY), 0.0, other)
    add(goals, ended(0, 50, **BUSY), 1.0, Guidance())
    assert attained(goals, 1.0) is None
    add(goals, ended(3, 1, **BUSY), 2.0)
    add(goals, ended(3, 9, **BUSY), 2.0)
    assert attained(goals, 2.0) == 0.75


def test_requests_that_ran_with_a_fixed_k_count_for_attainment_and_move_no_margin() -> None:
    """Those of a window of the control group, of a canary, of a fall back, and the first ones after it."""
    for guidance, is_chosen in ((STATIC, True), (GUIDANCE, False)):
        goals = kept()
        for at in range(4):
            add(goals, ended(0, 5, **BUSY), float(at), guidance, is_chosen=is_chosen)
        add(goals, ended(0, 6, **BUSY), 4.0)  # half as many again as ran
        assert attained(goals, 4.0) == 0.0
        assert goals.margins({"chat": 1.0}, {"one": ended(0, 0, **BUSY)}) == {"chat": 1.0}
        add(goals, ended(0, 5, **BUSY), 5.0)
        assert goals.margins({"chat": 1.0}, {"one": ended(0, 0, **BUSY)})["chat"] < 1.0


def test_a_window_of_one_engine_stops_no_other() -> None:
    goals = kept()
    add(goals, ended(0, 5, **BUSY), 0.0, STATIC, "two")
    add(goals, ended(0, 5, **BUSY), 0.0)
    assert goals.margins({"chat": 1.0}, {"one": ended(0, 0, **BUSY)})["chat"] < 1.0


def test_after_a_step_the_requests_that_ran_before_it_do_not_count_and_after_a_busy_time_no_more_than_run() -> None:
    goals, crowd = kept(), BUSY | {"running": {"chat": 64.0}}
    add(goals, ended(0, 5, **crowd), 0.0)
    margins = goals.margins({"chat": 1.0}, {"one": ended(0, 5, **crowd)})
    assert margins["chat"] < 1.0
    add(goals, ended(0, 60, **BUSY), 1.0)
    assert goals.margins(margins, {"one": ended(0, 0, **BUSY)}) == margins
    add(goals, ended(0, 6, **BUSY), 2.0)
    add(goals, ended(0, 5, **BUSY), 3.0)
    assert goals.margins(margins, {"one": ended(0, 0, **BUSY)})["chat"] < margins["chat"]


def test_each_request_moves_the_margin_once() -> None:
    goals, engines = kept(), {"one": Evidence(**BUSY)}
    add(goals, ended(1, 2, **BUSY), 0.0)
    [first] = goals.margins({"chat": 1.0}, engines).values()
    assert first < 1.0
    assert goals.margins({"chat": first}, engines) == {"chat": first}


def test_what_an_idle_engine_predicted_last_moves_no_margin() -> None:
    goals = kept()
    busy = {"one": Evidence(running={"chat": 8.0}, slo_predicted={"chat": 0.045})}
    idle = {"two": Evidence(slo_predicted={"chat": 0.008})}
    margins = {"chat": 1.0}
    for second in range(100):
        add(goals, ended(4, 4, running={"chat": 8.0}), float(second))
        margins = goals.margins(margins, busy | idle)
    assert margins == {"chat": 1.0}
    assert goals.described(100.0, margins)["chat"]["tpot"]["is_unreachable"]
    assert not goals.described(500.0, margins)["chat"]["tpot"]["is_unreachable"], (
        "no request has ended for five minutes"
    )


def test_the_misses_of_bursts_tighten_although_nothing_runs_when_they_have_ended() -> None:
    goals, margins = kept(), {"chat": 1.0}
    idle = {**BUSY, "running": {"chat": 0.0}}
    for second in range(20):
        burst = ended(2, 2, **idle)
        add(goals, burst, float(second))
        margins = goals.margins(margins, {"one": burst})
    assert margins["chat"] < 0.95


def test_where_every_k_is_pinned_nothing_is_predicted_and_misses_tighten_nothing() -> None:
    goals, margins = kept(), {"chat": 1.0}
    for second in range(100):
        add(goals, ended(4, 4), float(second))
        margins = goals.margins(margins, {"one": Evidence(running={"chat": 8.0})})
    assert margins == {"chat": 1.0}


def test_the_error_of_the_forecast_is_that_of_the_requests_that_the_law_served() -> None:
    goals = kept()
    add(goals, ended(5, 5, running={}, slo_mean_predicted={"chat": 0.016}), 0.0)
    add(goals, ended(5, 5, running={}, slo_mean_predicted={"chat": 0.004}), 1.0, STATIC)
    assert goals.described(1.0, {})["chat"]["tpot"]["forecast_error_ratio"] == pytest.approx(0.25)
    assert goals.described(3700.0, {})["chat"]["tpot"]["forecast_error_ratio"] is None

"""The requests of a pool by latency goal: attainment over windows, and the budget."""

import pytest

from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.law.latency_goals import LatencyGoals
from specpilot.policy.latency_goal import Slo, Statistic

SLO = Slo(tpot_ms={Statistic.P95: 30.0}, ttft_ms={Statistic.MEAN: 500.0})


def ended(within: float, beyond: float, measure: str = "tpot") -> Evidence:
    requests = {("chat", measure, "within"): within, ("chat", measure, "beyond"): beyond}
    return Evidence(slo_requests=requests, slo_seconds={("chat", measure): 0.02 * (within + beyond)})


def test_attainment_is_by_window_and_the_budget_is_of_a_day() -> None:
    goals = LatencyGoals()
    goals.keep({"chat": SLO})
    goals.add(ended(70, 30), 0.0)
    goals.add(ended(960, 40), 3000.0)
    goals.add(ended(3, 1, "ttft"), 3000.0)
    tpot = goals.described(3100.0, {"chat": 0.9})["chat"]["tpot"]
    assert tpot["attained_ratio"] == {"5m": 0.96, "1h": pytest.approx(1030 / 1100), "1d": pytest.approx(1030 / 1100)}
    assert tpot["budget_left_ratio"] == pytest.approx(1 - 70 / 1100 / 0.05)
    assert (tpot["margin"], tpot["is_unreachable"], tpot["mean_ms"]) == (0.9, False, pytest.approx(20.0))
    ttft = goals.described(3100.0, {"chat": 0.9})["chat"]["ttft"]
    assert ttft["attained_ratio"]["5m"] == 0.75
    assert ttft["budget_left_ratio"] is None
    assert "margin" not in ttft
    later = goals.described(3700.0, {})["chat"]["tpot"]["attained_ratio"]
    assert later == {"5m": None, "1h": 0.96, "1d": pytest.approx(1030 / 1100)}


def test_a_window_forgets_what_is_older() -> None:
    goals = LatencyGoals()
    goals.keep({"chat": SLO})
    for second in range(1000):
        goals.add(ended(1, 0) if second >= 500 else ended(0, 1), float(second))
    attained = goals.described(999.0, {})["chat"]["tpot"]["attained_ratio"]
    assert attained == {"5m": 1.0, "1h": 0.5, "1d": 0.5}


def test_a_goal_that_changes_begins_without_evidence() -> None:
    goals = LatencyGoals()
    goals.keep({"chat": SLO})
    goals.add(ended(5, 5), 0.0)
    goals.keep({"chat": Slo(tpot_ms={Statistic.P95: 31.0})})
    described = goals.described(0.0, {})
    assert list(described["chat"]) == ["tpot"]
    assert described["chat"]["tpot"]["attained_ratio"]["5m"] is None
    goals.keep({})
    assert goals.described(0.0, {}) == {}


def test_requests_that_ended_while_k_was_fixed_move_no_margin() -> None:
    goals = LatencyGoals()
    goals.keep({"chat": SLO})
    goals.add(ended(0, 50), 0.0)
    goals.skip()
    assert goals.margins({"chat": 1.0}, [Evidence()]) == {"chat": 1.0}
    assert goals.described(0.0, {})["chat"]["tpot"]["attained_ratio"]["5m"] == 0.0


def test_each_request_moves_the_margin_once() -> None:
    goals = LatencyGoals()
    goals.keep({"chat": SLO})
    engines = [Evidence(running={"chat": 4}, slo_predicted={"chat": 0.030})]
    goals.add(ended(1, 2), 0.0)
    [first] = goals.margins({"chat": 1.0}, engines).values()
    assert first < 1.0
    assert goals.margins({"chat": first}, engines) == {"chat": first}


def test_what_an_idle_engine_predicted_last_moves_no_margin() -> None:
    goals = LatencyGoals()
    goals.keep({"chat": SLO})
    busy = Evidence(running={"chat": 8.0}, slo_predicted={"chat": 0.045})
    idle = Evidence(slo_predicted={"chat": 0.008})
    margins = {"chat": 1.0}
    for second in range(100):
        goals.add(ended(4, 4), float(second))
        margins = goals.margins(margins, [busy, idle])
    assert margins == {"chat": 1.0}
    assert goals.described(100.0, margins)["chat"]["tpot"]["is_unreachable"]


def test_where_every_k_is_pinned_nothing_is_predicted_and_misses_tighten_nothing() -> None:
    goals = LatencyGoals()
    goals.keep({"chat": SLO})
    margins = {"chat": 1.0}
    for second in range(100):
        goals.add(ended(4, 4), float(second))
        margins = goals.margins(margins, [Evidence(running={"chat": 8.0})])
    assert margins == {"chat": 1.0}

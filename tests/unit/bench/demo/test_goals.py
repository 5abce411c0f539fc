"""Goodput and misses of the arms, from the engines' counters."""

from specpilot.bench.demo import goals
from specpilot.bench.demo.goals import Met
from specpilot.bench.demo.system import Reading, reading

CHAT, JSON = ("chat", "tpot"), ("json", "tpot")


def page(within: int, beyond: int) -> str:
    labels = 'traffic_class="chat",measure="tpot",engine="0"'
    return "".join(
        f'specpilot_engine_slo_requests_total{{{labels},result="{result}"}} {count}\n'
        for result, count in (("within", within), ("beyond", beyond))
    )


def test_what_ended_in_a_phase_is_counted_over_all_engines() -> None:
    first = reading([page(10, 5), page(0, 0)], at=100.0)
    last = reading([page(16, 6), page(3, 1)], at=110.0)
    assert goals.met([first, reading([], at=105.0), last]) == {CHAT: Met(9.0, 2.0, 10.0)}


def test_a_goal_that_appears_within_a_phase_counts_from_zero() -> None:
    assert goals.met([Reading(0.0, 0.0, {}, {}, {}), reading([page(2, 1)], at=2.0)]) == {CHAT: Met(2.0, 1.0, 2.0)}


def test_without_goals_there_is_nothing() -> None:
    nothing = Reading(0.0, 0.0, {}, {}, {})
    assert goals.met([nothing, nothing]) == {}


def test_adaptive_k_is_beside_the_single_k_with_the_most_goodput() -> None:
    plays = {
        "adaptive": [{CHAT: Met(18.0, 2.0, 10.0), JSON: Met(27.0, 3.0, 10.0)}, {CHAT: Met(22.0, 0.0, 10.0)}],
        "K=0": [{CHAT: Met(40.0, 0.0, 20.0), JSON: Met(0.0, 10.0, 20.0)}],
        "K=7": [{CHAT: Met(0.0, 20.0, 20.0), JSON: Met(60.0, 0.0, 20.0)}],
    }
    phases = {"both": {arm: goals.added(each) for arm, each in plays.items()}}
    assert goals.goodput(phases["both"]["adaptive"], "tpot") == 40 / 20 + 27 / 10
    assert goals.summary(phases, "adaptive") == {
        "tpot": {
            "both": {
                "best_single_k": "K=7",
                "goodput_vs_best_single_k": 1.567,
                "missed": round(5 / 72, 3),
                "missed_by_best_single_k": 0.25,
            }
        }
    }
    assert "K=7" in (table := goals.table(phases))
    assert "chat 0.95, json 0.90" in table


def test_a_single_k_without_goodput_has_no_ratio() -> None:
    phases = {"hard": {"adaptive": {CHAT: Met(1.0, 9.0, 10.0)}, "K=3": {CHAT: Met(0.0, 9.0, 10.0)}}}
    assert goals.summary(phases, "adaptive")["tpot"]["hard"] == {
        "best_single_k": "K=3",
        "goodput_vs_best_single_k": None,
        "missed": 0.9,
        "missed_by_best_single_k": 1.0,
    }

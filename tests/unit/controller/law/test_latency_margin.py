"""The margin of a goal against plants by formula: the share of misses is the goal's, whatever the error."""

import numpy as np
import pytest

from specpilot.controller.decision.latency_margin import MOST_MARGIN, Ended, Margin, bound_ms, margins_of
from specpilot.policy.latency_goal import Goal, Slo, Statistic
from specpilot.policy.schedule import ClassGuidance, Guidance

GOAL_S = 0.030


class Plant:
    """Requests whose mean latency is what the bound allows times `error`, within the machine's limits."""

    def __init__(self, statistic: str, *, error: float, spread: float, seed: int = 0) -> None:
        self.margin, self.at = Margin(Goal(Statistic(statistic), 1000 * GOAL_S)), 1.0
        self.error, self.spread = error, spread
        self.fastest_s, self.slowest_s, self.mean = 0.0, 1.0, 0.8
        self._rng = np.random.default_rng(seed)

    def run(self, ticks: int, per_tick: int = 5) -> tuple[float, float, list[float]]:
        """Return the share of misses, the mean latency, and the margins."""
        latencies, margins = [], []
        for _ in range(ticks):
            predicted_s = min(max(self.at * GOAL_S, self.fastest_s), self.slowest_s)
            drawn = predicted_s * self.error * np.exp(self._rng.normal(0, self.spread, per_tick))
            ended = Ended(per_tick, int((drawn > GOAL_S).sum()), float(drawn.sum()))
            self.at = self.margin.step(self.at, ended, [predicted_s], [self.mean * predicted_s])
            latencies += [*drawn]
            margins.append(self.at)
        return float(np.mean(np.array(latencies) > GOAL_S)), float(np.mean(latencies)), margins


@pytest.mark.parametrize("statistic", ["p50", "p90", "p95", "p99"])
@pytest.mark.parametrize(("error", "spread"), [(1.0, 0.1), (1.3, 0.05), (0.7, 0.2)])
def test_the_share_of_misses_is_the_goals_whatever_the_plant(statistic: str, error: float, spread: float) -> None:
    plant = Plant(statistic, error=error, spread=spread)
    plant.run(400)
    missed, _, margins = plant.run(3000)
    allowed = 1 - (Statistic(statistic).ratio or 0.0)
    assert missed == pytest.approx(allowed, abs=max(0.02, 0.2 * allowed))
    assert max(margins) / min(margins) < 1.2, "no oscillation"


def test_the_mean_is_kept_too() -> None:
    plant = Plant("mean", error=1.2, spread=0.2)
    plant.run(200)
    _, mean_s, margins = plant.run(1000)
    assert mean_s == pytest.approx(GOAL_S, rel=0.02)
    assert max(margins) / min(margins) < 1.25


def test_a_slowdown_that_no_prediction_knows_is_made_up_for() -> None:
    plant = Plant("p95", error=1.0, spread=0.1)
    plant.run(600)
    plant.error = 1.3
    plant.run(60)  # 30 s
    assert plant.run(200)[0] < 0.08


def test_while_the_bound_is_not_what_limits_k_the_margin_stays() -> None:
    """Otherwise it would be at its limit when the load returns."""
    plant = Plant("p95", error=1.0, spread=0.1)
    plant.slowest_s = 0.5 * GOAL_S
    assert plant.run(500)[2][-1] == 1.0
    plant.slowest_s = 1.0
    assert plant.run(30)[0] < 0.5
    free = Plant("p95", error=0.1, spread=0.1)
    assert free.run(3000)[2][-1] == MOST_MARGIN


def test_where_no_choice_keeps_a_goal_it_is_unreachable_and_its_margin_returns_to_one() -> None:
    """A margin below 1 would make the engines give it up at a load at which they could keep it."""
    plant = Plant("p95", error=1.1, spread=0.1)
    plant.run(200)
    assert plant.at < 0.95
    plant.fastest_s = 1.5 * GOAL_S
    assert plant.run(100)[2][-1] == 1.0
    assert plant.margin.is_unreachable
    plant.fastest_s = 0.0
    plant.run(2)
    assert not plant.margin.is_unreachable


@pytest.mark.parametrize("fastest", [0.8, 0.9, 0.95, 1.0, 1.2])
def test_a_goal_whose_mean_alone_can_be_kept_stays_unreachable(fastest: float) -> None:
    """Its margin moves up and down where the bound breaks; an alert needs five minutes without a gap."""
    plant = Plant("p95", error=1.2, spread=0.15)
    plant.fastest_s = fastest * GOAL_S
    plant.run(200)
    for _ in range(600):
        plant.run(1)
        assert plant.margin.is_unreachable


@pytest.mark.parametrize("statistic", ["p50", "p95", "mean"])
def test_a_goal_that_is_met_again_is_not_unreachable(statistic: str) -> None:
    plant = Plant(statistic, error=1.2, spread=0.15)
    plant.fastest_s = 1.2 * GOAL_S
    plant.run(200)
    assert plant.margin.is_unreachable
    plant.fastest_s, plant.slowest_s = 0.0, 0.6 * GOAL_S
    plant.run(40)
    assert not plant.margin.is_unreachable


def test_misses_that_the_engines_foresaw_tighten_nothing() -> None:
    """The choice has given the class up for other goals."""
    plant = Plant("p95", error=1.0, spread=0.1)
    plant.run(200)
    assert plant.at < 0.95
    plant.mean, plant.error = 1.2, 1.1
    missed, _, margins = plant.run(200)
    assert missed > 0.5
    assert margins[-1] == max(margins) == 1.0


def test_the_margin_in_force_is_in_the_schedule() -> None:
    slo, other = Slo(tpot_ms={Statistic.P95: 30.0}), Slo(tpot_ms={Statistic.P99: 30.0})
    guidance = Guidance(classes={"default": ClassGuidance(tpot_bound_ms=bound_ms(slo, 0.913), slo=slo)})
    assert margins_of(guidance, {"default": slo}) == {"default": 0.913}
    assert margins_of(guidance, {"default": other, "chat": slo}) == {"default": 1.0, "chat": 1.0}
    assert margins_of(None, {"default": slo}) == {"default": 1.0}
    assert margins_of(Guidance(classes={"default": ClassGuidance(slo=slo)}), {"default": slo}) == {"default": 1.0}
    assert margins_of(guidance, {"default": Slo(ttft_ms={Statistic.P95: 1.0})}) == {}
    assert bound_ms(None, 0.5) is None


@pytest.mark.parametrize("margin", [0.3, 0.333, 0.917, 1.001, 2.999])
@pytest.mark.parametrize("ms", [0.7, 7.77, 30.0, 12345.6])
def test_a_margin_survives_the_schedule(ms: float, margin: float) -> None:
    slo = Slo(tpot_ms={Statistic.P95: ms})
    guidance = Guidance(classes={"default": ClassGuidance(tpot_bound_ms=bound_ms(slo, margin), slo=slo)})
    assert margins_of(guidance, {"default": slo}) == {"default": margin}

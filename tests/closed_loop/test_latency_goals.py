"""Goals on a percentile of TPOT: engines predict a mean, and the controller's margin makes the percentile hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from specpilot.engine_adapter.law import price_fit
from specpilot.policy import engine_metrics as names
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Policy
from tests.simulation.engine import K_MAX, MODEL, Engine
from tests.simulation.h200_plant import FULL, H200Plant, graphs
from tests.simulation.loop import Run, simulate
from tests.simulation.step_times import mostly_verification_s
from tests.simulation.traffic import Phase, Source

SETTLE_S = 20
ON_CPU = [Source("chat", 4, "chat"), Source("json", 12, "json")]


def classes(**ms: float) -> dict[str, ClassPolicy]:
    """Return the classes with these goals on the 95th percentile of TPOT."""
    goals = {name: ClassPolicy(slo=Slo(tpot_ms={Statistic.P95: value})) for name, value in ms.items()}
    return {"chat": ClassPolicy(), "json": ClassPolicy()} | goals


class Played(NamedTuple):
    """A run, and the requests within and beyond the goal by class at the end of each second."""

    run: Run
    requests: Sequence[Mapping[tuple[str, ...], float]]

    def grown(self, begin: int, end: int, name: str | None = None) -> tuple[float, float]:
        """Return the requests of a class, or of all, that ended in these seconds within their goal and beyond it."""
        within, beyond = (
            sum(
                count - self.requests[begin].get(labels, 0.0)
                for labels, count in self.requests[end].items()
                if labels[-1] == result and name in {None, labels[0]}
            )
            for result in (names.WITHIN, names.BEYOND)
        )
        return within, beyond

    def within(self, name: str, begin: int, end: int) -> float:
        """Return the share of the requests that ended in these seconds and met the goal."""
        within, beyond = self.grown(begin, end, name)
        return within / (within + beyond)

    def throughput(self, begin: int, end: int) -> float:
        """Return the tokens per second in these seconds."""
        return float(np.mean([second.throughput for second in self.run.seconds[begin:end]]))

    def margins(self, name: str, begin: int, end: int) -> list[float]:
        """Return the margin of a class in each of these seconds."""
        evidence = [second.result.evidence for second in self.run.seconds[begin:end]]
        return [item["slo"][name]["tpot"]["margin"] for item in evidence]


def played(phases: Sequence[Phase], goals: Mapping[str, ClassPolicy], seed: int = 0, **machine: Any) -> Played:
    requests: list[Mapping[tuple[str, ...], float]] = []

    def note(_: int, fleet: Sequence[Engine]) -> None:
        values = fleet[0].values
        requests.append({item.labels: value for item, value in values.items() if item.metric == names.SLO_REQUESTS})

    run = simulate(
        phases, policy=Policy(MODEL, control_group_ratio=0.0, classes=goals), seed=seed, disturb=note, **machine
    )
    note(0, run.fleet)
    return Played(run, requests)


def best_single_k(goals: Mapping[str, ClassPolicy]) -> Played:
    """Return a run of the single K for all with the most tokens per second."""
    runs = [
        played([Phase(2 * SETTLE_S, ON_CPU)], {name: replace(item, pin=k) for name, item in goals.items()})
        for k in range(1, K_MAX + 1)
    ]
    return max(runs, key=lambda item: item.throughput(5, 2 * SETTLE_S))


@pytest.mark.extended("loop: latency goals")
def test_a_goal_that_the_best_single_k_misses_is_kept_at_hardly_less_throughput() -> None:
    goals, end = classes(chat=9.0), 100
    single = best_single_k(goals)
    runs = [played([Phase(end, ON_CPU)], goals, seed) for seed in range(2)]
    within = np.mean([run.within("chat", SETTLE_S, end) for run in runs])
    assert within == pytest.approx(0.95, abs=0.025)
    assert 1 - within <= (1 - single.within("chat", 5, 2 * SETTLE_S)) / 3
    reached = np.mean([run.throughput(SETTLE_S, end) for run in runs])
    assert reached >= 0.95 * single.throughput(5, 2 * SETTLE_S)


@pytest.mark.extended("loop: latency goals")
@pytest.mark.parametrize(
    ("goals", "least"),
    [(classes(chat=6.5), {"chat": 0.93}), (classes(chat=7.0, json=2.3), {"chat": 0.7, "json": 0.85})],
)
def test_on_a_gpu_too_and_goals_that_no_k_keeps_together_do_not_collapse(
    goals: Mapping[str, ClassPolicy], least: Mapping[str, float]
) -> None:
    """K = 4 has the most tokens per second; 0.86 and 0.94 of chat and 0.69 of JSON are within these goals with it."""
    loads, full = [Source("chat", 16, "chat"), Source("json", 48, "json")], graphs(FULL, largest=1024)
    h200 = {"plant": H200Plant(full), "graphs": full, "max_num_seqs": 128, "noise": 0.005}
    pinned = {name: replace(item, pin=4) for name, item in goals.items()}
    single = played([Phase(20, loads)], pinned, **h200).throughput(5, 20)
    runs = [played([Phase(60, loads)], goals, seed, **h200) for seed in range(2)]
    for name, ratio in least.items():
        assert np.mean([run.within(name, SETTLE_S, 60) for run in runs]) >= ratio
    assert np.mean([run.throughput(SETTLE_S, 60) for run in runs]) >= 0.95 * single


def test_after_a_slowdown_and_in_bursts_the_goal_holds_again_within_half_a_minute() -> None:
    slow_s, again_s = 60, 90
    bursts = [Phase(8, [Source("chat", n, "chat"), ON_CPU[1]]) for n in (8, 4, 8, 4)]
    phases = [Phase(slow_s, ON_CPU), Phase(60, ON_CPU, slowdown=1.3), *bursts]
    runs = [played(phases, classes(chat=10.0), seed) for seed in range(2)]
    assert np.mean([run.within("chat", slow_s + 1, again_s) for run in runs]) >= 0.88
    # some 80 requests a run do not tell 8 % of misses from 5 %
    assert np.mean([run.within("chat", again_s, 120) for run in runs]) >= 0.9
    assert np.mean([run.within("chat", 124, 152) for run in runs]) >= 0.93
    for run in runs:
        settled = run.margins("chat", SETTLE_S, slow_s)
        assert max(settled) / min(settled) < 1.2, "no oscillation"


def test_two_classes_whose_goals_pull_apart_keep_both_within_two_percent() -> None:
    """JSON is fast with long drafts, which make chat's steps longer."""
    end = 100
    runs = [played([Phase(end, ON_CPU)], classes(chat=10.0, json=5.0), seed) for seed in range(2)]
    for name in ("chat", "json"):
        assert np.mean([run.within(name, SETTLE_S, end) for run in runs]) >= 0.93


def test_a_goal_that_no_k_keeps_is_said_to_be_unreachable() -> None:
    run = played([Phase(20, ON_CPU)], classes(chat=3.5))
    newest = run.run.seconds[-1].result.evidence["slo"]["chat"]["tpot"]
    assert newest["is_unreachable"]
    assert newest["attained_ratio"]["5m"] < 0.6


def test_without_a_goal_nothing_of_it_runs() -> None:
    run = played([Phase(5, ON_CPU)], classes())
    assert all("slo" not in second.result.evidence for second in run.run.seconds)
    assert not any(run.requests)
    guidance = run.run.seconds[-1].result.guidance
    assert guidance is not None
    assert all(item.tpot_bound_ms is item.slo is None for item in guidance.classes.values())


def test_an_slo_holds_while_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of every kind take longer, as beside another process: the slowdown factor corrects the costs at once.

    The goal is on the mean over requests, and its margin is moved by at most 5 % in these seconds. A class's bands
    share its goal, so K leaves no slack: per token 2 % more time at 3 % more throughput (four seeds) than with a bound
    for each band.
    """
    sources, slow_from_s, slow_s, settles_s = [Source(0.3, 8, "chat"), Source(0.9, 8, "json")], 40, 20, 3
    phases = [Phase(slow_from_s, sources), Phase(slow_s, sources, slowdown=1.3)]
    bound = Policy(
        MODEL,
        control_group_ratio=0.0,
        classes={"chat": ClassPolicy(slo=Slo(tpot_ms={Statistic.MEAN: 20.0})), "json": ClassPolicy()},
    )

    def slow_itl_s() -> float:
        run = simulate(phases, policy=bound, step_s=mostly_verification_s)
        found = [item.result.evidence for item in run.seconds[slow_from_s + settles_s : slow_from_s + slow_s]]
        return sum(item["step_s"] / item["classes"]["chat"]["measured_length"] for item in found) / len(found)

    assert slow_itl_s() < 1.07 * 0.020
    monkeypatch.setattr(price_fit, "SLOWDOWN_SHARE", 0.0)
    assert slow_itl_s() > 1.1 * 0.020, "without the factor the bound is not kept"

"""An operator wants low latency, of all requests or of one class: that may cost throughput."""

import pytest

from specpilot.engine_adapter.law import price_fit
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Policy
from specpilot.policy.schedule import Objective
from tests.simulation.engine import MODEL
from tests.simulation.loop import Run, simulate
from tests.simulation.step_times import mostly_verification_s
from tests.simulation.traffic import Phase, Source

CHANGED_S, ENDS_S = 40, 100


def played(later: Policy, seed: int) -> Run:
    before = Policy(MODEL, control_group_ratio=0.0, classes={"chat": ClassPolicy(), "json": ClassPolicy(weight=1.01)})
    phase = Phase(ENDS_S, [Source(0.3, 8, "chat"), Source(0.9, 8, "json")])
    return simulate([phase], policy=before, later=(CHANGED_S, later), step_s=mostly_verification_s, seed=seed)


def mean_step_s(run: Run, begin: int, end: int) -> float:
    found = [second.result.evidence["step_s"] for second in run.seconds[begin:end]]
    return sum(found) / len(found)


def chat_itl_s(run: Run, begin: int, end: int) -> float:
    """What chat's requests waited for a token."""
    found = [second.result.evidence for second in run.seconds[begin:end]]
    return sum(item["step_s"] / item["classes"]["chat"]["measured_length"] for item in found) / len(found)


@pytest.mark.parametrize("seed", range(2))
def test_an_slo_holds_for_low_bands_although_it_costs_throughput(seed: int) -> None:
    chat = ClassPolicy(slo=Slo(tpot_ms={Statistic.MEAN: 17.0}))
    run = played(Policy(MODEL, control_group_ratio=0.0, classes={"chat": chat, "json": ClassPolicy()}), seed)
    assert chat_itl_s(run, CHANGED_S - 10, CHANGED_S) > 1.05 * 0.017
    assert chat_itl_s(run, CHANGED_S + 10, ENDS_S) < 1.02 * 0.017


def test_an_slo_holds_while_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of every kind take longer, as beside another process: the slowdown factor corrects the costs at once.

    The goal is on the mean over requests, and its margin is moved by at most 5 % in these seconds. A class's bands
    share its goal, so K leaves no slack: per token 2 % more time at 3 % more throughput (four seeds) than with a bound
    for each band.
    """
    sources, slow_s, settles_s = [Source(0.3, 8, "chat"), Source(0.9, 8, "json")], 20, 3
    phases = [Phase(CHANGED_S, sources), Phase(slow_s, sources, slowdown=1.3)]
    bound = Policy(
        MODEL,
        control_group_ratio=0.0,
        classes={"chat": ClassPolicy(slo=Slo(tpot_ms={Statistic.MEAN: 20.0})), "json": ClassPolicy()},
    )

    def slow_itl_s() -> float:
        run = simulate(phases, policy=bound, step_s=mostly_verification_s)
        return chat_itl_s(run, CHANGED_S + settles_s, CHANGED_S + slow_s)

    assert slow_itl_s() < 1.07 * 0.020
    monkeypatch.setattr(price_fit, "SLOWDOWN_SHARE", 0.0)
    assert slow_itl_s() > 1.1 * 0.020, "without the factor the bound is not kept"


@pytest.mark.parametrize("seed", range(2))
def test_an_objective_of_latency_makes_steps_shorter(seed: int) -> None:
    classes = {"chat": ClassPolicy(), "json": ClassPolicy(weight=1.01)}
    run = played(Policy(MODEL, control_group_ratio=0.0, objective=Objective.LATENCY, classes=classes), seed)
    before, after = mean_step_s(run, CHANGED_S - 10, CHANGED_S), mean_step_s(run, CHANGED_S + 10, ENDS_S)
    assert after < 0.95 * before

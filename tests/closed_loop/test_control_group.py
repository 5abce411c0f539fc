"""The control group measures adaptive K against the static K, and a law that loses falls back."""

import math

import pytest

from specpilot.controller.decision.control_group import ControlGroup
from specpilot.controller.decision.reason import Reason
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Policy
from specpilot.policy.schedule import Cause, Override
from tests.closed_loop.single_k import of_single_k
from tests.simulation.engine import MODEL, Engine
from tests.simulation.loop import Run, simulate, uniform
from tests.simulation.step_times import mostly_verification_s
from tests.simulation.traffic import Phase, Source

OFTEN = Policy(MODEL, control_group_ratio=0.2)


@pytest.mark.extended("loop: measured gain")
def test_the_gain_is_measured_with_an_interval_that_holds_the_truth() -> None:
    phase = Phase(400, [Source("json", 8, prompt_tokens=1)])  # what prefilling takes is not K's, and not in the gain
    run = simulate([phase], policy=OFTEN)
    found = run.seconds[-1].result.evidence["control_group"]
    truth = of_single_k(phase, 7, seconds=20) / of_single_k(phase, 3, seconds=20) - 1
    assert found["windows"] >= 10
    assert Reason.FALLEN_BACK not in run.reasons
    assert found["gain_ratio"]["low"] - 0.01 <= truth <= found["gain_ratio"]["high"] + 0.01
    assert found["gain_ratio"]["high"] - found["gain_ratio"]["low"] <= 0.08


def test_the_static_k_runs_in_the_windows_that_are_drawn_and_in_no_other_second() -> None:
    """How many are drawn is tested by itself."""
    run = simulate([Phase(200, [Source("json", 8)])], policy=OFTEN)
    plan = ControlGroup()
    drawn = [bool(plan.draw(("engine-0",), second.at, OFTEN.control_group_ratio).engines) for second in run.seconds]
    assert [second.result.reason is Reason.CONTROL_GROUP for second in run.seconds] == drawn
    assert any(drawn)


def shifting(phase_s: int) -> list[Phase]:
    """Return a load that changes its kind and its concurrency."""
    kinds = (("json", 8), ("chat_hot", 12), ("code", 4), ("json", 24), ("chat", 8))
    return [Phase(phase_s, [Source(kind, running)]) for kind, running in kinds]


def log_throughput(run: Run) -> float:
    """The mean logarithm of a second's tokens."""
    return sum(math.log(second.throughput) for second in run.seconds) / len(run.seconds)


@pytest.mark.extended("loop: shifting load")
@pytest.mark.timeout(400)  # some 60 s on a quiet core
def test_over_a_shifting_load_the_gain_is_that_of_adaptive_k_played_beside_the_static_k() -> None:
    """As `bench demo` does: the same load once for each. In a phase n is given, so that both measures gain the same."""
    share, engines = 0.3, 3  # each engine has windows of its own: fewer depend much on which phases are drawn
    run = simulate(shifting(60), policy=Policy(MODEL, control_group_ratio=share), engines=engines)
    adaptive = log_throughput(simulate(shifting(60)))
    static = log_throughput(simulate(shifting(15), start=uniform(3), is_steered=False))
    found = run.seconds[-1].result.evidence["control_group"]
    assert found["windows"] >= 45
    assert found["throughput_gain_ratio"]["low"] > 0
    for measure in ("throughput", "itl"):
        bounds = found[f"{measure}_gain_ratio"]
        assert bounds["low"] <= math.expm1(adaptive - static) <= bounds["high"], measure
    assert log_throughput(run) >= (1 - share) * adaptive + share * static - 0.01


def lie(_: int, fleet: list[Engine]) -> None:
    """Let the engines' evidence claim that all is accepted: the law goes deep, and tokens per second show the loss."""
    for engine in fleet:
        engine.claims = dict.fromkeys(range(1, 8), 0.99)


def test_no_static_k_comes_into_force_that_breaks_an_slo_which_the_law_keeps() -> None:
    """A static K that is faster, and too slow for a token of one class."""
    chat = ClassPolicy(slo=Slo(tpot_ms={Statistic.MEAN: 17.0}))
    policy = Policy(
        MODEL, static_k=7, control_group_ratio=0.3, classes={"chat": chat, "json": ClassPolicy(weight=1.01)}
    )
    phase = Phase(90, [Source(0.3, 8, "chat"), Source(0.9, 8, "json")])
    run = simulate([phase], policy=policy, step_s=mostly_verification_s)
    assert not {Reason.CONTROL_GROUP, Reason.FALLEN_BACK} & {second.result.reason for second in run.seconds[20:]}
    free = Policy(MODEL, static_k=7, control_group_ratio=0.3, classes={"json": ClassPolicy(weight=1.01)})
    assert Reason.CONTROL_GROUP in simulate([phase], policy=free, step_s=mostly_verification_s).reasons


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.extended("loop: fall back"))])
def test_a_law_that_is_lied_to_falls_back_to_the_static_k_and_keeps_it_while_nothing_runs(seed: int) -> None:
    busy = Phase(300, [Source("chat_hot", 12)])
    policy = Policy(MODEL, control_group_ratio=0.2, static_k=0)
    run = simulate([busy, Phase(20, []), Phase(5, busy.sources)], policy=policy, disturb=lie, seed=seed)
    back = [second.at for second in run.of_phase(0) if second.result.reason is Reason.FALLEN_BACK]
    assert back
    assert back[0] <= 150
    after = [second for second in run.of_phase(0) if second.at > back[0] + 5]
    share = sum(second.result.reason is Reason.FALLEN_BACK for second in after) / len(after)
    assert share >= 0.8
    static = of_single_k(busy, 0)
    assert sum(second.throughput for second in after) / len(after) >= 0.9 * static
    idle = [second.result for second in run.of_phase(1) if second.result.reason is Reason.IDLE]
    assert len(idle) >= 15
    for result in (*idle, run.of_phase(2)[0].result):
        assert result.guidance is not None
        assert result.guidance.override == Override(0, Cause.FALLEN_BACK)

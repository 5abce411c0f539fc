"""The canary's plan and judgement, on thousands of simulated experiments whose truth is known."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from specpilot.controller.decision.context import PoolContext
from specpilot.controller.experiments.canary import checkpoints, described, ended, intervals, judge, plan_of
from specpilot.controller.pools import in_window
from specpilot.policy.canary import BLOCKS_LIMIT, Arm, Block, Canary, Experiment, Gain, Lost, Outcome
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.schedule import Cause, Override

CANARY = Canary(Policy("m"), window_s=20.0, min_duration_s=240.0, max_duration_s=1600.0)


def experiment(canary: Canary = CANARY, seed: int = 0) -> Experiment:
    return Experiment(1, f"id-{seed}", canary, 0, 1000.0)


def with_gains(*gains: float, itl: float | None = None) -> Experiment:
    blocks = tuple(Block(at, {"p": Gain(10.0, gain, gain if itl is None else itl)}) for at, gain in enumerate(gains))
    return replace(experiment(), blocks=blocks)


def test_the_canary_has_windows_from_its_start_to_the_end_of_its_last_block() -> None:
    context, tried = PoolContext("m", "p", Policy("m"), 7, 3, None), replace(experiment(), started_at=1000.0)
    ends = 1000.0 + CANARY.max_blocks * CANARY.block_s
    arms = {
        at: in_window(context, tried, at).window
        for at in (999.9, 1000.0, *(ends + 20.0 * number for number in range(9)))
    }
    assert arms.pop(999.9) is None
    assert arms.pop(1000.0) is not None
    assert {window and window.arm for window in arms.values()} == {Arm.PRESENT}
    assert in_window(context, replace(tried, outcome=Outcome.ABORTED), 1010.0) is context


def test_policies_that_do_not_let_engines_choose_are_tried_as_their_static_k() -> None:
    """A canary of mode act against a present policy of mode off, and the reverse."""
    context = PoolContext("m", "p", Policy("m", mode=Mode.OFF, static_k=2, classes={"code": ClassPolicy()}), 7, 3, None)
    tried = experiment(replace(CANARY, policy=Policy("m", mode=Mode.ADVISE, k_max=1, static_k=9)))
    windows = [in_window(context, tried, 1000.0 + at * CANARY.window_s) for at in range(4)]
    tried_now = [(found.window, replace(found, policy=found.policy_in_force).guidance()) for found in windows]
    overrides = {window.arm: guidance.override for window, guidance in tried_now if window}
    assert overrides == {Arm.PRESENT: Override(2, Cause.OFF), Arm.CANARY: Override(7, Cause.ADVISE)}  # at most K_max


def test_checkpoints_double_and_end_with_the_end() -> None:
    assert checkpoints(CANARY) == [6, 12, 24, 40]
    assert checkpoints(replace(CANARY, min_duration_s=1600.0)) == [40]
    assert checkpoints(replace(CANARY, min_duration_s=0.0))[0] == 3


# Truth is known: windows whose noise is drift, sudden steps of load and a strongly correlated disturbance.


def noise(rng: np.random.Generator, windows: int) -> np.ndarray:
    white = rng.normal(size=windows) * 0.05
    correlated = np.zeros(windows)
    for at in range(1, windows):
        correlated[at] = 0.9 * correlated[at - 1] + white[at]
    steps = np.cumsum(rng.normal(size=windows) * 0.3 * (rng.random(windows) < 0.05))
    drift = rng.normal() * np.linspace(0, 1, windows)
    return correlated + steps + drift + 0.02 * rng.normal(size=windows)


def white_noise(rng: np.random.Generator, windows: int) -> np.ndarray:
    return 0.05 * rng.normal(size=windows)


def play(seed: int, gain: float, canary: Canary = CANARY, make: Callable[..., np.ndarray] = noise) -> Experiment:
    """Run an experiment to its end: `gain` is the true log ratio of throughput, and of latency."""
    rng = np.random.default_rng(seed)
    subject = experiment(canary, seed)
    logs = make(rng, canary.max_blocks * canary.windows).reshape(canary.max_blocks, canary.windows)
    for block in range(canary.max_blocks):
        at = 1000.0 + block * canary.block_s
        slots = range(canary.windows)
        chosen = next(slot for slot in slots if plan_of(subject).is_drawn("p", at + (slot + 0.5) * canary.window_s))
        found = gain + logs[block, chosen] - np.delete(logs[block], chosen).mean()
        subject = replace(
            subject, blocks=(*subject.blocks, Block(block, {"p": Gain(10.0, float(found), float(found))}))
        )
        outcome = judge(subject, 0)
        if outcome is not None:
            return ended(subject, outcome, at + canary.block_s)
    raise AssertionError("it never ended")


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_without_a_difference_at_most_the_stated_share_is_promoted(share: float) -> None:
    canary = replace(CANARY, share_ratio=share, max_duration_s=1600.0 * 0.5 / share, min_duration_s=240 * 0.5 / share)
    found = Counter(play(seed, 0.0, canary).outcome for seed in range(1000))
    assert found[Outcome.BETTER] <= 50
    assert found[Outcome.INCONCLUSIVE] + found[Outcome.WORSE] == 1000 - found[Outcome.BETTER]


def test_a_true_gain_of_a_tenth_is_promoted() -> None:
    quiet = [play(seed, math.log(1.1), make=white_noise) for seed in range(200)]
    assert sum(item.outcome is Outcome.BETTER for item in quiet) >= 196
    assert np.median([len(item.blocks) for item in quiet]) <= 12
    rough = Counter(play(seed, math.log(1.1)).outcome for seed in range(200))
    assert rough[Outcome.BETTER] >= 150
    assert rough[Outcome.WORSE] <= 2


def test_a_loss_of_a_third_ends_after_few_blocks() -> None:
    found = [play(seed, math.log(0.67), make=white_noise) for seed in range(200)]
    assert {item.outcome for item in found} == {Outcome.WORSE}
    assert np.quantile([len(item.blocks) for item in found], 0.9) <= 5


def test_a_gain_below_the_minimum_is_not_promoted() -> None:
    canary = replace(CANARY, minimum_gain_ratio=0.05)
    found = Counter(play(seed, math.log(1.05), canary, white_noise).outcome for seed in range(300))
    assert found[Outcome.BETTER] <= 15


def test_one_measure_may_gain_if_the_other_does_not_lose() -> None:
    def gains(throughput: float, itl: float) -> Experiment:
        wobble = [0.001 * (-1) ** at for at in range(6)]
        return replace(
            experiment(),
            blocks=tuple(Block(at, {"p": Gain(1.0, throughput + wobble[at], itl + wobble[at])}) for at in range(6)),
        )

    assert judge(gains(0.0, 0.1), 0) is Outcome.BETTER
    assert judge(gains(0.1, 0.0), 0) is Outcome.BETTER
    assert judge(gains(0.1, -0.1), 0) is Outcome.WORSE
    assert judge(gains(0.1, -0.019), 0) is None


def test_pools_weigh_by_their_busy_time() -> None:
    blocks = tuple(Block(at, {"a": Gain(30.0, 0.1, 0.1), "b": Gain(10.0, -0.1, -0.1)}) for at in range(3))
    found = intervals(replace(experiment(), blocks=blocks))
    assert found is not None
    assert found[0].mean == pytest.approx(0.05)


def test_another_version_of_the_policy_ends_it() -> None:
    assert judge(with_gains(0.1), 1) is Outcome.POLICY_CHANGED
    assert judge(with_gains(0.1), 0) is None


def test_the_end_names_its_cause() -> None:
    def after(*gains: float, **lost: int) -> Outcome | None:
        return judge(replace(with_gains(*gains), lost={Lost(name): count for name, count in lost.items()}), 0)

    assert after(no_traffic=40) is Outcome.NO_TRAFFIC
    assert after(no_traffic=39, interrupted=1) is Outcome.INCONCLUSIVE
    assert after(0.1, 0.1, no_traffic=38) is Outcome.INCONCLUSIVE
    assert after(0.3, -0.3, 0.3, -0.3, no_traffic=36) is Outcome.INCONCLUSIVE
    assert after(0.1, no_traffic=38) is None


def test_the_numbers_are_told_as_ratios() -> None:
    found = described(with_gains(0.09, 0.1, 0.11), Arm.CANARY)
    assert found["throughput_gain_ratio"]["mean"] == pytest.approx(math.expm1(0.1), rel=1e-3)
    assert (
        found["throughput_gain_ratio"]["low"]
        < found["throughput_gain_ratio"]["mean"]
        < found["throughput_gain_ratio"]["high"]
    )
    assert described(with_gains(0.1), None)["itl_gain_ratio"] is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"share_ratio": 0.9}, "share_ratio\n.*less than or equal to 0.5"),
        ({"window_s": 1.0, "error_ratio": 0.9}, "error_ratio\n.*less than or equal to 0.2"),
        ({"min_duration_s": 2000.0}, "min_duration_s"),
        ({"max_duration_s": 100.0, "min_duration_s": 0.0}, "3 blocks take 120 s"),
        ({"max_duration_s": 100_000.0}, f"at most {BLOCKS_LIMIT}"),
    ],
    ids=str,
)
def test_a_canary_that_cannot_be_run_names_its_faults(change: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(CANARY, **change)

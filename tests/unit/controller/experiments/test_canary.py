"""The canary's plan and judgement, on thousands of simulated experiments whose truth is known."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.experiments.canary import checkpoints, described, ended, intervals, judge, window_at
from specpilot.policy.canary import BLOCKS_LIMIT, Arm, Block, Canary, Experiment, Gain, Lost, Outcome
from specpilot.policy.model_policy import Policy

CANARY = Canary(Policy("m"), window_s=20.0, min_duration_s=240.0, max_duration_s=1600.0)


def experiment(canary: Canary = CANARY, seed: int = 0) -> Experiment:
    return Experiment(1, f"id-{seed}", canary, 0, 1000.0)


def with_gains(*gains: float, itl: float | None = None) -> Experiment:
    blocks = tuple(Block(at, {"p": Gain(10.0, gain, gain if itl is None else itl)}) for at, gain in enumerate(gains))
    return replace(experiment(), blocks=blocks)


@given(st.integers(0, 10**6), st.integers(0, 20), st.sampled_from([0.5, 0.33, 0.25, 0.1]))
def test_every_block_gives_the_canary_one_window(seed: int, block: int, share: float) -> None:
    canary = replace(CANARY, share_ratio=share, max_duration_s=7200.0)
    subject = experiment(canary, seed)
    turns = [
        window_at(subject, "p", 1000.0 + block * canary.block_s + (slot + 0.5) * canary.window_s)
        for slot in range(canary.windows)
    ]
    assert [item.slot for item in turns if item] == list(range(canary.windows))
    assert {item.block for item in turns if item} == {block}
    assert Counter(item.arm for item in turns if item)[Arm.CANARY] == 1


def test_the_window_is_drawn_anew_for_every_block_and_pool() -> None:
    canary = replace(CANARY, share_ratio=0.25, max_duration_s=40_000.0)
    counts = Counter(
        item.slot
        for block in range(400)
        for pool in ("a", "b")
        for slot in range(4)
        if (item := window_at(experiment(canary), pool, 1000.0 + block * canary.block_s + slot * 20 + 1))
        and item.arm is Arm.CANARY
    )
    assert all(150 < counts[slot] < 250 for slot in range(4))


def test_no_turn_before_the_beginning_and_after_the_end() -> None:
    assert window_at(experiment(), "p", 999.9) is None
    assert window_at(experiment(), "p", 1000.0 + 40 * CANARY.block_s) is None
    assert window_at(replace(experiment(), outcome=Outcome.ABORTED), "p", 1010.0) is None


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


def play(seed: int, gain: float, canary: Canary = CANARY, make: Callable[..., np.ndarray] = noise) -> Experiment:
    """Run an experiment to its end: `gain` is the true log ratio of throughput, and of latency."""
    rng = np.random.default_rng(seed)
    subject = experiment(canary, seed)
    logs = make(rng, canary.max_blocks * canary.windows).reshape(canary.max_blocks, canary.windows)
    for block in range(canary.max_blocks):
        at = 1000.0 + block * canary.block_s
        arms = [window_at(subject, "p", at + (slot + 0.5) * canary.window_s) for slot in range(canary.windows)]
        chosen = next(item.slot for item in arms if item and item.arm is Arm.CANARY)
        found = gain + logs[block, chosen] - np.delete(logs[block], chosen).mean()
        subject = replace(
            subject, blocks=(*subject.blocks, Block(block, {"p": Gain(10.0, float(found), float(found))}))
        )
        outcome = judge(subject, 0, at + canary.block_s)
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
    quiet = [
        play(seed, math.log(1.1), make=lambda rng, windows: 0.05 * rng.normal(size=windows)) for seed in range(200)
    ]
    assert sum(item.outcome is Outcome.BETTER for item in quiet) >= 196
    assert np.median([len(item.blocks) for item in quiet]) <= 12
    rough = Counter(play(seed, math.log(1.1)).outcome for seed in range(200))
    assert rough[Outcome.BETTER] >= 150
    assert rough[Outcome.WORSE] <= 2


def test_a_loss_of_a_third_ends_after_few_blocks() -> None:
    found = [
        play(seed, math.log(0.67), make=lambda rng, windows: 0.05 * rng.normal(size=windows)) for seed in range(200)
    ]
    assert {item.outcome for item in found} == {Outcome.WORSE}
    assert np.quantile([len(item.blocks) for item in found], 0.9) <= 5


def test_a_gain_below_the_minimum_is_not_promoted() -> None:
    canary = replace(CANARY, minimum_gain_ratio=0.05)
    found = Counter(
        play(seed, math.log(1.05), canary, lambda rng, windows: 0.05 * rng.normal(size=windows)).outcome
        for seed in range(300)
    )
    assert found[Outcome.BETTER] <= 15


def test_one_measure_may_gain_if_the_other_does_not_lose() -> None:
    def gains(throughput: float, itl: float) -> Experiment:
        wobble = [0.001 * (-1) ** at for at in range(6)]
        return replace(
            experiment(),
            blocks=tuple(Block(at, {"p": Gain(1.0, throughput + wobble[at], itl + wobble[at])}) for at in range(6)),
        )

    assert judge(gains(0.0, 0.1), 0, 1241.0) is Outcome.BETTER
    assert judge(gains(0.1, 0.0), 0, 1241.0) is Outcome.BETTER
    assert judge(gains(0.1, -0.1), 0, 1241.0) is Outcome.WORSE
    assert judge(gains(0.1, -0.019), 0, 1241.0) is None


def test_pools_weigh_by_their_busy_time() -> None:
    blocks = tuple(Block(at, {"a": Gain(30.0, 0.1, 0.1), "b": Gain(10.0, -0.1, -0.1)}) for at in range(3))
    found = intervals(replace(experiment(), blocks=blocks))
    assert found is not None
    assert found[0].mean == pytest.approx(0.05)


def test_another_version_of_the_policy_ends_it() -> None:
    assert judge(with_gains(0.1), 1, 1001.0) is Outcome.POLICY_CHANGED
    assert judge(with_gains(0.1), 0, 1001.0) is None


def test_the_end_names_its_cause() -> None:
    end = 1000.0 + CANARY.max_duration_s
    assert judge(experiment(), 0, end) is Outcome.NO_TRAFFIC
    assert judge(replace(experiment(), lost={Lost.NO_TRAFFIC: 40}), 0, end) is Outcome.NO_TRAFFIC
    assert judge(replace(experiment(), lost={Lost.INTERRUPTED: 40}), 0, end) is Outcome.INCONCLUSIVE
    assert judge(with_gains(0.1, 0.1), 0, end) is Outcome.INCONCLUSIVE
    assert judge(with_gains(0.3, -0.3, 0.3, -0.3), 0, end) is Outcome.INCONCLUSIVE


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
        ({"share_ratio": 0.9}, "share_ratio is 0.9"),
        ({"window_s": 1.0, "error_ratio": 0.9}, "error_ratio is 0.9"),
        ({"min_duration_s": 2000.0}, "min_duration_s"),
        ({"max_duration_s": 100.0, "min_duration_s": 0.0}, "3 blocks take 120 s"),
        ({"max_duration_s": 100_000.0}, f"at most {BLOCKS_LIMIT}"),
    ],
    ids=str,
)
def test_a_canary_that_cannot_be_run_names_its_faults(change: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(CANARY, **change)

"""The canary's plan and judgement: whose turn it is, and whether the new policy is better.

Design. A switchback: the policies take turns on all engines of a pool, in blocks of windows, the canary's window drawn
at random in every block. Both policies meet the same engines; slow drift cancels within a block; one engine is enough.

Statistic. d_b is the logarithm of the canary's measure over the present policy's, in block b (`blocks`). Ticks follow
one another closely and resemble each other, blocks do not need to be independent: if the canary makes no difference,
then d_b has mean 0 given all other noise, as its window was drawn at random, and with independent draws d_b and d_c are
uncorrelated however the noise is. So

    mean(d) +- t(1 - e, B - 1) s(d) / sqrt(B)

is the interval for the mean log ratio over B blocks (batch means, paired; Student's t is the usual approximation of
this randomisation test). Sources: Cochran and Cox, Experimental Designs; Bojinov, Simchi-Levi and Zhao, Design and
Analysis of Switchback Experiments, 2023.

Looking often. Each look is one more chance to be wrong. A promotion is considered at few looks only, when the blocks
that count reach the least number, twice it, four times it and so on, and at the end; with L looks and two measures
every bound errs with e = error_ratio / (2 L), so that by the union bound the promotion of a policy that is not better
has a probability of at most error_ratio. To roll back is safe, so that harm is looked for after every block, by the
same interval.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.policy.canary import FEWEST_BLOCKS, Arm, Canary, Experiment, Lost, Outcome


@dataclass(frozen=True, slots=True)
class Turn:
    """The window that a moment lies in: its block, its place in it, its arm, and the age of the block in seconds."""

    block: int
    slot: int
    arm: Arm
    block_age_s: float


def turn(experiment: Experiment, pool: str, at: float) -> Turn | None:
    """Return whose window `at` (Unix seconds) is in `pool`; `None` when no experiment runs then."""
    canary, elapsed = experiment.canary, at - experiment.started_at
    if not experiment.is_running or elapsed < 0:
        return None
    window = int(elapsed / canary.window_s)
    block, slot = divmod(window, canary.windows)
    if block >= canary.max_blocks:
        return None
    drawn = int.from_bytes(sha256(f"{experiment.experiment_id} {pool} {block}".encode()).digest()[:8]) % canary.windows
    return Turn(block, slot, Arm.CANARY if slot == drawn else Arm.PRESENT, elapsed - block * canary.block_s)


def looks(canary: Canary) -> list[int]:
    """Return the numbers of blocks at which a promotion is considered; the last stands for the end."""
    count = max(FEWEST_BLOCKS, math.ceil(canary.min_duration_s / canary.block_s))
    found = []
    while count < canary.max_blocks:
        found.append(count)
        count *= 2
    return [*found, canary.max_blocks]


def intervals(experiment: Experiment) -> tuple[Interval, Interval] | None:
    """Return the intervals of the log gains in throughput and in latency; `None` while the blocks are too few."""
    if len(experiment.blocks) < FEWEST_BLOCKS:
        return None
    tail = experiment.canary.error_ratio / (2 * len(looks(experiment.canary)))
    return interval(_fleet(experiment, "throughput"), tail), interval(_fleet(experiment, "itl"), tail)


def judge(experiment: Experiment, policy_version: int, at: float) -> Outcome | None:
    """Return how it ends at `at`, with the model's policy at `policy_version`; `None` while it shall go on."""
    if policy_version != experiment.base_version:
        return Outcome.POLICY_CHANGED
    canary, count, found = experiment.canary, len(experiment.blocks), intervals(experiment)
    is_over = at >= experiment.started_at + canary.max_blocks * canary.block_s
    least, tolerated = math.log1p(canary.minimum_gain_ratio), math.log1p(-canary.tolerance_ratio)
    if found and min(bounds.high for bounds in found) < tolerated:
        return Outcome.WORSE
    if found and (is_over or count in looks(canary)):
        low = sorted(bounds.low for bounds in found)
        if low[1] > least and low[0] >= tolerated:
            return Outcome.BETTER
    if not is_over:
        return None
    is_empty = not count and set(experiment.lost) <= {Lost.NO_TRAFFIC}
    return Outcome.NO_TRAFFIC if is_empty else Outcome.INCONCLUSIVE


def described(experiment: Experiment, arm: Arm | None) -> dict[str, Any]:
    """Return the experiment's numbers as evidence, ready for JSON; gains as ratios minus 1."""
    canary, found = experiment.canary, intervals(experiment)
    return {
        "experiment_id": experiment.experiment_id,
        "arm": arm.value if arm else None,
        "outcome": experiment.outcome.value if experiment.outcome else None,
        "blocks": len(experiment.blocks),
        "blocks_at_most": canary.max_blocks,
        "lost_blocks": {cause.value: number for cause, number in experiment.lost.items()},
        "throughput_gain_ratio": _ratios(found[0]) if found else None,
        "itl_gain_ratio": _ratios(found[1]) if found else None,
    }


def ended(experiment: Experiment, outcome: Outcome, at: float) -> Experiment:
    """Return `experiment` as it ends with `outcome` at `at`, its numbers with it."""
    found = replace(experiment, outcome=outcome, ended_at=at)
    return replace(found, evidence=described(found, None))


def _ratios(bounds: Interval) -> Mapping[str, float]:
    return {name: float(f"{value:.4g}") for name, value in bounds.ratios().items()}


def _fleet(experiment: Experiment, measure: str) -> list[float]:
    """The gain of each block over all pools, weighted by their busy seconds."""
    return [
        math.fsum(gain.busy_s * getattr(gain, measure) for gain in block.pools.values())
        / math.fsum(gain.busy_s for gain in block.pools.values())
        for block in experiment.blocks
    ]

"""The plan of a canary (the policy of each window) and its test (whether the new policy is better).

Design. A switchback: the policies alternate on all engines of a pool, in blocks of windows, with the canary's window
drawn at random in every block. Both policies run on the same engines, slow drift cancels within a block, and one engine
is enough.

Statistic. d_b is the logarithm of the canary's measure over the present policy's, in block b (`blocks`). The blocks
need not be independent. Under the hypothesis that the canary makes no difference, the random draw of the window gives
d_b the mean 0 for any noise, and independent draws make d_b and d_c uncorrelated for any noise. So

    mean(d) +- t(1 - e, B - 1) s(d) / sqrt(B)

is the interval for the mean log ratio over B blocks (batch means, paired; Student's t is the usual approximation of
this randomisation test). Sources: Cochran and Cox, Experimental Designs; Bojinov, Simchi-Levi and Zhao, Design and
Analysis of Switchback Experiments, 2023.

Repeated tests. Each test adds to the probability of an error. So a promotion is tested at few checkpoints only: when
the number of blocks reaches its least value, twice that, four times that and so on, and at the end. With L checkpoints
and two measures every bound errs with e = error_ratio / (2 L), so that by the union bound a policy that is not better
is promoted with a probability of at most error_ratio. A roll-back is safe, so harm is tested after every block, with
the same interval.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.policy.canary import FEWEST_BLOCKS, Arm, Canary, Experiment, Lost, Outcome


@dataclass(frozen=True, slots=True)
class CanaryWindow:
    """A window of a canary: its block, its place in the block, its arm, and the age of the block in seconds."""

    block: int
    slot: int
    arm: Arm
    block_age_s: float


def window_at(experiment: Experiment, pool: str, at: float) -> CanaryWindow | None:
    """Return the window of `pool` at `at` (Unix seconds); `None` when the experiment does not run then."""
    canary, elapsed = experiment.canary, at - experiment.started_at
    if not experiment.is_running or elapsed < 0:
        return None
    window = int(elapsed / canary.window_s)
    block, slot = divmod(window, canary.windows)
    if block >= canary.max_blocks:
        return None
    drawn = int.from_bytes(sha256(f"{experiment.experiment_id} {pool} {block}".encode()).digest()[:8]) % canary.windows
    return CanaryWindow(block, slot, Arm.CANARY if slot == drawn else Arm.PRESENT, elapsed - block * canary.block_s)


def checkpoints(canary: Canary) -> list[int]:
    """Return the numbers of blocks at which a promotion is tested; the last is the end."""
    count = max(FEWEST_BLOCKS, math.ceil(canary.min_duration_s / canary.block_s))
    counts = []
    while count < canary.max_blocks:
        counts.append(count)
        count *= 2
    return [*counts, canary.max_blocks]


def intervals(experiment: Experiment) -> tuple[Interval, Interval] | None:
    """Return the intervals of the log gains in throughput and in latency; `None` while the blocks are too few."""
    if len(experiment.blocks) < FEWEST_BLOCKS:
        return None
    tail = _tail(experiment.canary)
    return interval(_fleet(experiment, "throughput"), tail), interval(_fleet(experiment, "itl"), tail)


def judge(experiment: Experiment, policy_version: int, at: float) -> Outcome | None:
    """Return the outcome at `at`, with the model's policy at `policy_version`; `None` while it goes on."""
    if policy_version != experiment.base_version:
        return Outcome.POLICY_CHANGED
    canary, count, found = experiment.canary, len(experiment.blocks), intervals(experiment)
    is_over = at >= experiment.started_at + canary.max_blocks * canary.block_s
    least, tolerated = math.log1p(canary.minimum_gain_ratio), math.log1p(-canary.tolerance_ratio)
    if found and min(bounds.high for bounds in found) < tolerated:
        return Outcome.WORSE
    if found and (is_over or count in checkpoints(canary)):
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
    corrected = interval(_fleet(experiment, "corrected"), _tail(canary)) if found else None
    return {
        "experiment_id": experiment.experiment_id,
        "arm": arm.value if arm else None,
        "outcome": experiment.outcome.value if experiment.outcome else None,
        "blocks": len(experiment.blocks),
        "blocks_at_most": canary.max_blocks,
        "lost_blocks": {cause.value: number for cause, number in experiment.lost.items()},
        "throughput_gain_ratio": _ratios(found[0]) if found else None,
        "itl_gain_ratio": _ratios(found[1]) if found else None,
        "corrected_gain_ratio": _ratios(corrected) if corrected else None,
    }


def ended(experiment: Experiment, outcome: Outcome, at: float) -> Experiment:
    """Return `experiment` ended with `outcome` at `at`, with its numbers as evidence."""
    found = replace(experiment, outcome=outcome, ended_at=at)
    return replace(found, evidence=described(found, None))


def _tail(canary: Canary) -> float:
    """Return the error of one side of an interval, so that all tests of both measures have `error_ratio` together."""
    return canary.error_ratio / (2 * len(checkpoints(canary)))


def _ratios(bounds: Interval) -> Mapping[str, float]:
    return {name: float(f"{value:.4g}") for name, value in bounds.ratios().items()}


def _fleet(experiment: Experiment, measure: str) -> list[float]:
    """Return the gain of each block over all pools, weighted by their busy seconds."""
    return [
        math.fsum(gain.busy_s * getattr(gain, measure) for gain in block.pools.values())
        / math.fsum(gain.busy_s for gain in block.pools.values())
        for block in experiment.blocks
    ]

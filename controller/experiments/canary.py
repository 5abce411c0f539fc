"""The plan of a canary and its test: whether the new policy is better than the present one.

A canary is a switchback experiment (`switchback`) that ends. Its units are pools: in the drawn window of each block all
engines of a pool choose K by the canary's policy. The windows of all classes have equal weights.

Repeated tests. Each test adds to the probability of an error. So a promotion is tested at few checkpoints only: when
the number of blocks reaches its least value, twice that, four times that and so on, and at the end. With L checkpoints
and two measures every bound errs with e = error_ratio / (2 L), so that by the union bound a policy that is not better
is promoted with a probability of at most error_ratio. A roll-back is safe, so harm is tested after every block, with
the same interval.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specpilot.controller.estimation.switchback import Plan
from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.policy.canary import FEWEST_BLOCKS, Arm, Canary, Experiment, Lost, Outcome


def plan_of(experiment: Experiment) -> Plan:
    """Return the windows of the experiment."""
    canary = experiment.canary
    return Plan(experiment.experiment_id, canary.windows, canary.window_s, experiment.started_at)


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


def judge(experiment: Experiment, policy_version: int) -> Outcome | None:
    """Return the outcome, with the model's policy at `policy_version`; `None` while the experiment goes on."""
    if policy_version != experiment.base_version:
        return Outcome.POLICY_CHANGED
    canary, count, gains = experiment.canary, len(experiment.blocks), intervals(experiment)
    is_over = experiment.closed >= canary.max_blocks
    least, tolerated = math.log1p(canary.minimum_gain_ratio), math.log1p(-canary.tolerance_ratio)
    if gains and min(bounds.high for bounds in gains) < tolerated:
        return Outcome.WORSE
    if gains and (is_over or count in checkpoints(canary)):
        low = sorted(bounds.low for bounds in gains)
        if low[1] > least and low[0] >= tolerated:
            return Outcome.BETTER
    if not is_over:
        return None
    is_empty = not count and set(experiment.lost) <= {Lost.NO_TRAFFIC}
    return Outcome.NO_TRAFFIC if is_empty else Outcome.INCONCLUSIVE


def described(experiment: Experiment, arm: Arm | None) -> dict[str, Any]:
    """Return the experiment's numbers as evidence, ready for JSON; gains as ratios minus 1."""
    canary, gains = experiment.canary, intervals(experiment)
    return {
        "experiment_id": experiment.experiment_id,
        "arm": arm.value if arm else None,
        "outcome": experiment.outcome.value if experiment.outcome else None,
        "blocks": len(experiment.blocks),
        "blocks_at_most": canary.max_blocks,
        "lost_blocks": {cause.value: number for cause, number in experiment.lost.items()},
        "throughput_gain_ratio": _ratios(gains[0]) if gains else None,
        "itl_gain_ratio": _ratios(gains[1]) if gains else None,
    }


def ended(experiment: Experiment, outcome: Outcome, at: float) -> Experiment:
    """Return `experiment` ended with `outcome` at `at`, with its numbers as evidence."""
    experiment = replace(experiment, outcome=outcome, ended_at=at)
    return replace(experiment, evidence=described(experiment, None))


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

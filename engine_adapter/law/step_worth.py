"""Defines what the choice of K maximises: the worth of a step. Pure; one choice at a time, or many together.

    worth = R prod_c (LATE + (1 - LATE) A_c)^sqrt(s_c),    R = V / T,    V = sum_g w_g n_g AL_g,    l_g = (T + P) / AL_g
    A_c = the mean over the decodes of goal c of 1 / (1 + (l_g / b_c)^SHARPNESS)

g: groups; w: weight; n: decodes; AL: acceptance length, the mean tokens per decode and step; T: seconds of the step, P:
further seconds of prompts in the mean step; l: latency, the mean seconds per token of a decode; c: goals, each of the
requests with one bound b and one weight; s: the goal's share of the decodes with a goal, counted by weight. A is the
share of a goal's decodes that are expected within their bound (`policy.latency_goal.within_ratio`): the latencies of
single requests lie around l, so half of them do at l = b. Without bounds the worth is R.

So a goal is not given up while K can keep it, unless keeping it costs several times the throughput; some percent of
misses are traded for as many percent of throughput, which the controller's margin corrects. A goal that is missed by
far costs a constant factor, so it does not hold the others back. Goals that no K keeps together are weighed against
each other: the exponent s would keep as many requests within their goals as possible, and give up small classes, the
exponent 1 would count goals, and large classes would miss theirs. The square root lies between
(docs/measurements/control.md).

With objective `latency` R is 1 / (T sum_g w_g n_g / AL_g): the weighted mean speed of a request.

`law.choice.Chooser` finds the K of all groups with the largest R, `law.goal_choice` those with the largest worth.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.law.prices import Prices
from specpilot.policy.latency_goal import SHARPNESS
from specpilot.policy.schedule import Objective

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]

LATE = 0.1
"""The factor of a goal that all decodes miss. With 0, a goal out of reach would stop all drafts."""


class Group(NamedTuple):
    """Decodes that get one K: how many, the band of their acceptance, their weight, and the bounds on K.

    `tpot_bound_s` bounds their mean inter-token latency; 0: no bound.
    `extra_token_s`: seconds of each of their draft tokens beyond those at the mean context (`law.contexts`).
    A group without decodes does not change K of the others; its K is for a decode that joins it later.
    """

    decodes: int
    band: int
    weight: float
    low: int
    high: int
    tpot_bound_s: float = 0.0
    extra_token_s: float = 0.0


class Step(NamedTuple):
    """A step: its seconds, later catching up included, AL of each group, and the further seconds of prompts.

    K changes nothing about `prompts_s` (`Prices`), so only latencies contain it.
    """

    seconds: float
    lengths: Vector
    prompts_s: float = 0.0

    @property
    def latencies(self) -> Vector:
        """The mean seconds per token of each group's decodes."""
        mean: Vector = (self.seconds + self.prompts_s) / self.lengths
        return mean


def step_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> Step:
    """Return the step in which each group has its K of `ks`; `lengths` [bands, K_max + 1] is AL by K."""
    seconds, by_group, prompts_s = steps_of(groups, lengths, prices, np.array([ks]))
    return Step(float(seconds[0]), by_group[0], prompts_s)


def steps_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Ints) -> tuple[Vector, Vector, float]:
    """Return seconds [steps], AL [steps, groups] and `prompts_s` of steps with these `ks` [steps, groups]."""
    decodes = np.array([group.decodes for group in groups])
    n, k_max = int(decodes.sum()), lengths.shape[1] - 1
    tokens, drafted, width = n + ks @ decodes, (ks > 0) @ decodes, (ks * (decodes > 0)).max(axis=1)
    seconds = prices.steps_s(n, tokens, prices.slots(n, width, drafted), width)
    if prices.has_graphs:
        seconds += np.where(tokens == n * (1 + width), prices.uniform_extra_s(n, k_max)[width], 0.0)
    seconds += ks @ (decodes * np.array([group.extra_token_s for group in groups]))
    seconds = np.where(width, seconds + catch_up_s(prices, n, drafted.astype(np.float64)), prices.plain_s(n))
    return seconds, lengths[[group.band for group in groups], ks], prices.prompts_s


def worth_of_step(groups: Sequence[Group], step: Step, objective: Objective = Objective.THROUGHPUT) -> float:
    """Return the worth of a step, by the formula above."""
    return float(worth_of_steps(groups, np.array([step.seconds]), step.lengths[None], step.prompts_s, objective)[0])


def worth_of_steps(
    groups: Sequence[Group], seconds: Vector, lengths: Vector, prompts_s: float, objective: Objective
) -> Vector:
    """Return the worth of steps of these `seconds` [steps], and AL `lengths` [steps, groups]."""
    values = lengths if objective is Objective.THROUGHPUT else -1.0 / lengths
    value = values @ np.array([group.decodes * group.weight for group in groups])
    return rate(value, seconds, objective) * goals_factor(groups, seconds, lengths, prompts_s)


def goals_factor(groups: Sequence[Group], seconds: Vector, lengths: Vector, prompts_s: float) -> Vector:
    """Return what goals leave of R in these steps: the product in the formula above."""
    step_s = seconds[:, None] + prompts_s
    of_goal: dict[tuple[float, float], list[int]] = {}
    for at, group in enumerate(groups):
        if group.tpot_bound_s and group.decodes:
            of_goal.setdefault((group.tpot_bound_s, group.weight), []).append(at)
    decodes = np.array([group.decodes for group in groups])
    whole = sum(weight * decodes[places].sum() for (_, weight), places in of_goal.items())
    factor = np.ones(seconds.shape)
    for (bound_s, weight), places in of_goal.items():
        within, count = 1.0 / (1.0 + (step_s / lengths[:, places] / bound_s) ** SHARPNESS), decodes[places]
        kept_ratio = (within @ count) / count.sum()
        factor *= (LATE + (1.0 - LATE) * kept_ratio) ** math.sqrt(weight * count.sum() / whole)
    return factor


def rate(value: Vector, seconds: Vector, objective: Objective) -> Vector:
    """Return R of steps with this V; with objective `latency` V is -sum_g w_g n_g / AL_g."""
    per_s: Vector = value / seconds if objective is Objective.THROUGHPUT else -1.0 / (value * seconds)
    return per_s


def keeps_slos(groups: Sequence[Group], step: Step, tolerance: float = 1.0) -> bool:
    """Return whether a step keeps the latency bound of every group with decodes, times `tolerance`."""
    bound = [at for at, group in enumerate(groups) if group.tpot_bound_s and group.decodes]
    return all(step.latencies[at] <= tolerance * groups[at].tpot_bound_s for at in bound)


def tokens_of(groups: Sequence[Group], step: Step) -> float:
    """Return the weighted tokens that a step yields."""
    return sum(group.decodes * group.weight * float(al) for group, al in zip(groups, step.lengths, strict=True))


def catch_up_s(prices: Prices, n: int, drafted: Vector) -> Vector:
    """Return the seconds of later catching up after a step that drafts for `drafted` of its `n` decodes.

    Each decode left out is charged `prices.catch_up_s(n) / n`, in proportion to the share of decodes drafted for.
    """
    seconds: Vector = (n - drafted) * drafted * (prices.catch_up_s(n) / n**2)
    return seconds


class Worth(NamedTuple):
    """A draft position of one group: its worth and its cost, in weighted tokens per decode."""

    position: int
    tokens: float
    cost_tokens: float


def worth_of(
    groups: Sequence[Group],
    lengths: Vector,
    prices: Prices,
    ks: Sequence[int],
    between: Callable[[], None] = lambda: None,
) -> list[list[Worth]]:
    """Return, for each group, the last draft position that `ks` takes and the next one. They explain K.

    Position k is worth w S_k tokens. Its cost in tokens is the time that it adds to the step, times the batch's tokens
    per second under `ks`, divided by the decodes of the group. Without bounds, and for throughput, a position is taken
    if and only if it is worth more than it costs, with few exceptions. The list is empty for a group without decodes.
    At K = 0 there is no last position, at K_max no next one. `between` is called after each group.
    """
    k_max = lengths.shape[1] - 1
    present = step_of(groups, lengths, prices, ks)
    tokens_per_s = tokens_of(groups, present) / present.seconds
    worths: list[list[Worth]] = []
    for at, (group, k) in enumerate(zip(groups, ks, strict=True)):
        positions = [position for position in (k, k + 1) if 1 <= position <= k_max and group.decodes]
        seconds = {
            depth: step_of(groups, lengths, prices, [*ks[:at], depth, *ks[at + 1 :]]).seconds
            for depth in {depth for position in positions for depth in (position - 1, position)}
        }
        survival = np.diff(lengths[group.band])
        worths.append([
            Worth(
                position,
                group.weight * float(survival[position - 1]),
                (seconds[position] - seconds[position - 1]) * tokens_per_s / group.decodes,
            )
            for position in positions
        ])  # fmt: skip
        between()
    return worths

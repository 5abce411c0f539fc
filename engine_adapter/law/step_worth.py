"""Defines what the choice of K maximises: the worth of a step, or of several in turn. Pure; one choice at a time.

    worth = R * prod_g (b_g / l_g)^(P s_g),    R = V / T,    V = sum_g w_g n_g AL_g,    l_g = T / AL_g

g: groups; w: weight; n: decodes; AL: acceptance length, the mean tokens per decode and step; T: seconds of the step;
l: latency, the mean seconds per token of a decode; b: its bound. The product is over the groups with l > b. s is the
group's share of the decodes with its bound, times its weight over the largest weight that has a bound, times its hope.
So 1 % of latency beyond the bound of a whole class costs as much as P % of throughput: a goal that K can keep is kept,
unless that costs several times more throughput, and two goals that no K keeps together are weighed against each other.

Hope is 1 where the fastest choice, which looks at bounds alone, keeps the bound of the group, and falls to 0 where even
that exceeds it by `HOPELESS`: requests that miss their goal anyway do not hold the others back.

With objective `latency` R is 1 / (T sum_g w_g n_g / AL_g): the weighted mean speed of a request.

`law.choice.Chooser` finds the K of all groups with the largest worth of a step. Steps of two kinds in turn (`mean`) may
be worth more than any single one: where each step that drafts exceeds a bound, one K = 0 among several keeps it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.law.prices import Prices
from specpilot.policy.schedule import Objective

Vector = NDArray[np.float64]

PRICE = 16.0
"""P. With a larger value a goal is kept at a larger loss of throughput."""

HOPELESS = 1.25
"""Latency by the fastest choice, over the bound, from which on a group's bound has no price."""


class Group(NamedTuple):
    """Decodes that get one K: how many, the band of their acceptance, their weight, and the bounds on K.

    `itl_slo_s` bounds their mean inter-token latency; 0: no bound. `hope` is the part of the bound's price that counts.
    `extra_token_s`: seconds of each of their draft tokens beyond those at the mean context (`law.contexts`).
    A group without decodes does not change K of the others; its K is for a decode that joins it later.
    """

    decodes: int
    band: int
    weight: float
    low: int
    high: int
    itl_slo_s: float = 0.0
    hope: float = 1.0
    extra_token_s: float = 0.0


class Step(NamedTuple):
    """A step, or the mean of several: its seconds, later catching up included, and AL of each group."""

    seconds: float
    lengths: Vector


def step_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> Step:
    """Return the step in which each group has its K of `ks`; `lengths` [bands, K_max + 1] is AL by K."""
    counts = [(group.decodes, k) for group, k in zip(groups, ks, strict=True) if group.decodes]
    n, width = sum(count for count, _ in counts), max(k for _, k in counts)
    tokens, drafted = n + sum(count * k for count, k in counts), sum(count for count, k in counts if k)
    seconds = prices.step_s(n, tokens, prices.slots(n, width, drafted), is_uniform=tokens == n * (1 + width))
    seconds += sum(group.decodes * k * group.extra_token_s for group, k in zip(groups, ks, strict=True))
    if drafted:
        seconds += float(catch_up_s(prices, n, np.array(drafted)))
    return Step(seconds, lengths[[group.band for group in groups], ks])


def step_in_turn(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> Step:
    """Return a step that takes turns with others: if it drafts nothing, all decodes have to catch up later."""
    step, n = step_of(groups, lengths, prices, ks), sum(group.decodes for group in groups)
    if any(k for group, k in zip(groups, ks, strict=True) if group.decodes):
        return step
    return step._replace(seconds=step.seconds + prices.catch_up_s(n))


def mean(one: Step, other: Step, share: float) -> Step:
    """Return the mean of two kinds of steps, a `share` of which are the `other` one."""
    seconds = (1 - share) * one.seconds + share * other.seconds
    return Step(seconds, (1 - share) * one.lengths + share * other.lengths)


def worth_of_step(
    groups: Sequence[Group], step: Step, objective: Objective = Objective.THROUGHPUT, price: float = PRICE
) -> float:
    """Return the worth of a step, by the formula above."""
    return float(worths(groups, np.array(step.seconds), step.lengths, objective, price))


def worths(
    groups: Sequence[Group], seconds: Vector, lengths: Vector, objective: Objective, price: float = PRICE
) -> Vector:
    """Return the worth of steps of these `seconds` [steps], and AL `lengths` [steps, groups]."""
    values = lengths if objective is Objective.THROUGHPUT else -1.0 / lengths
    value = values @ np.array([group.decodes * group.weight for group in groups])
    cost = np.zeros(seconds.shape)
    for at, share in goal_shares(groups, [group.decodes for group in groups]):
        excess = seconds / lengths[..., at] / groups[at].itl_slo_s
        cost += share * np.log(np.maximum(excess, 1.0))
    worth: Vector = rate(value, seconds, objective) * np.exp(-price * cost)
    return worth


def rate(value: Vector, seconds: Vector, objective: Objective) -> Vector:
    """Return R of steps with this V; with objective `latency` V is -sum_g w_g n_g / AL_g."""
    per_s: Vector = value / seconds if objective is Objective.THROUGHPUT else -1.0 / (value * seconds)
    return per_s


def goal_shares(groups: Sequence[Group], decodes: Sequence[int]) -> list[tuple[int, float]]:
    """Return the place of each group with a bound and a decode, and its s."""
    bound = [(at, group) for at, group in enumerate(groups) if group.itl_slo_s and decodes[at]]
    most = max((group.weight for group in groups if group.itl_slo_s), default=1.0)
    whole: dict[float, int] = {}
    for at, group in bound:
        whole[group.itl_slo_s] = whole.get(group.itl_slo_s, 0) + decodes[at]
    return [(at, group.hope * group.weight / most * decodes[at] / whole[group.itl_slo_s]) for at, group in bound]


def hopes(groups: Sequence[Group], fastest: Step) -> list[float]:
    """Return the hope of each group, by the step of the fastest choice; 1 for a group without a bound."""
    excess = [
        fastest.seconds / length / group.itl_slo_s if group.itl_slo_s else 1.0
        for group, length in zip(groups, fastest.lengths, strict=True)
    ]
    return [min(max(float(HOPELESS - item) / (HOPELESS - 1.0), 0.0), 1.0) for item in excess]


def keeps_slos(groups: Sequence[Group], step: Step, tolerance: float = 1.0) -> bool:
    """Return whether a step keeps the latency bound of every group with decodes, times `tolerance`."""
    bound = [at for at, group in enumerate(groups) if group.itl_slo_s and group.decodes]
    return all(step.seconds <= tolerance * groups[at].itl_slo_s * step.lengths[at] for at in bound)


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

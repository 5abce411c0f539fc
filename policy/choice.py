"""Chooses K for each group of running decodes, for the most weighted tokens per second. Pure.

    rate = V / T,    V = sum_g w_g n_g AL_g(K_g) / sum_g w_g n_g

For each width of the drafter the draft positions of all groups are sorted by worth over cost, and the best prefix of
this order wins. Along a draft survival falls and the cost of a position stays the same. So a prefix of the order
contains a prefix of each group's draft. A position costs one token to verify for each decode of its group. The first
position also costs the group's slots. If the first positions of a group are worth their cost only together, each of
them gets the ratio of their sum of worth to their sum of cost.

A step that drafts for only some decodes is also charged for the later catching up of the others (`Prices.left_s`). The
time of catching up with a present backlog is not charged: it is spent once, in a few steps, while the drafts gain over
the rest of the reply.

Some groups have a bound on their mean inter-token latency. Then the best rate among the choices that keep all bounds
wins. If no choice keeps all bounds, the choice with the smallest worst ratio of latency to bound wins. With objective
`latency`, V is the weighted harmonic mean of AL instead of the arithmetic mean. A group whose smallest K is above 0
drafts in any case, so its slots are not part of the cost of its first position.

All widths and prefixes are evaluated together in about twenty numpy operations. This number does not grow with the
number of groups. The order of the positions depends on the total number of decodes, not on their distribution over the
groups, so `Chooser` caches it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.policy.prices import Prices
from specpilot.policy.schedule import Objective

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
NEAR_WIDTHS = 1
"""A quick choice compares the last width and this many widths on either side of it. With 1, a choice among 24 groups
takes 120 to 145 µs; comparing all seven widths takes 200 to 250 µs."""

KEPT_POSITIONS = 100_000
"""Positions of the orders that one chooser keeps; they bound its memory, 8 bytes each. An order of 24 groups and K_max
7 has 500 to 1,200."""


class Group(NamedTuple):
    """Decodes that get one K: how many, the band of their acceptance, their weight, and the bounds on K.

    `itl_slo_s` bounds their mean inter-token latency; 0: no bound. A group without decodes does not change K of the
    others; its K is for a decode that joins it later.
    """

    decodes: int
    band: int
    weight: float
    low: int
    high: int
    itl_slo_s: float = 0.0


def choose(
    groups: Sequence[Group],
    lengths: Vector,
    prices: Prices,
    objective: Objective = Objective.THROUGHPUT,
    near: int | None = None,
) -> list[int]:
    """Return K of each group; `lengths` [bands, K_max + 1] is AL by K.

    At least one group must have decodes. With `near`, only the widths from `near - NEAR_WIDTHS` to `near + NEAR_WIDTHS`
    and K = 0 for all are compared.
    """
    chooser = Chooser(groups, lengths, prices, objective)
    return chooser.choose([group.decodes for group in groups], near)


class Chooser:
    """Chooses K repeatedly for the same groups. Only their numbers of decodes change from call to call.

    Everything else is computed once, so a later choice takes less time than the first.
    """

    def __init__(
        self, groups: Sequence[Group], lengths: Vector, prices: Prices, objective: Objective = Objective.THROUGHPUT
    ) -> None:
        self._groups, self._prices, self._objective, self._lengths = groups, prices, objective, lengths
        k_max = self._k_max = lengths.shape[1] - 1
        bands, low, high = np.array([(group.band, group.low, group.high) for group in groups]).T
        weight = np.array([group.weight for group in groups])
        values = (lengths if objective is Objective.THROUGHPUT else -1.0 / lengths)[bands]
        at = np.arange(len(groups))
        self._low, self._low_k = low, low.tolist()
        self._is_fixed = k_max == 0 or bool((low >= high).all())
        self._widest, self._deepest = int(low.max()), int(high.max())
        self._is_bound = self._widest > 0 or bool((high < k_max).any())
        self._is_open = (low == 0).astype(np.float64)  # 0: the group always drafts
        self._values, self._low_value = values, weight * values[at, low]
        self._slos = [place for place, group in enumerate(groups) if group.itl_slo_s]
        k = np.arange(1, k_max + 1)
        self._gain = weight[:, None] * np.diff(values)  # the worth of each position for one decode [groups, K]
        self._depth = np.broadcast_to(k, self._gain.shape).astype(np.float64)
        has_room = (k <= k[:, None])[:, None] & np.ones((1, len(groups), 1), dtype=bool)  # [widths, groups, K]
        if self._is_bound:
            has_room &= (k <= high[:, None]) & (k > low[:, None])
            self._gain *= k > low[:, None]
            self._depth = np.maximum(self._depth - low[:, None], 1.0)
        self._has_room, self._number = has_room, has_room.sum(axis=(1, 2))  # `_number`: positions of each width
        self._is_beyond = np.where(np.arange(len(groups) * k_max) < self._number[:, None], 0.0, -np.inf)
        self._gains = self._gain.cumsum(axis=1)
        self._k = k
        self._group_of = np.repeat(at, k_max)
        adds = np.ones((3, *self._gain.shape))
        adds[1], adds[2] = self._is_open[:, None] * (k == 1), self._gain
        self._adds: Vector = adds.reshape(3, -1)
        self._orders: dict[tuple[int, int, int], Ints] = {}

    def choose(self, decodes: Sequence[int], near: int | None = None) -> list[int]:
        """Return K of each group with these numbers of decodes, not all 0. `near`: as in the function `choose`."""
        if self._is_fixed:
            return list(self._low_k)
        prices, n = self._prices, sum(decodes)
        count = np.array(decodes, dtype=np.float64)
        lowest = self._lowest(n, count, decodes)
        narrow, wide = self._range(near)
        order = self._orders.get((n, narrow, wide))
        if order is None:
            if sum([kept.size for kept in self._orders.values()]) > KEPT_POSITIONS:
                self._orders.clear()
            order = self._orders[n, narrow, wide] = self._order(n, narrow, wide)

        # Tokens, value and seconds of the step with each prefix of that order
        chosen = slice(narrow - 1, wide)
        widths = self._k[chosen]
        tokens, drafted, value = (count[self._group_of] * self._adds)[:, order].cumsum(axis=2)
        drafted += lowest.drafted
        sizes = np.minimum(tokens + lowest.tokens, n * (1 + self._k_max)).astype(int)
        seconds = prices.steps_s(n, sizes, (drafted * widths[:, None]).astype(int))
        if prices.has_graphs:
            last = np.arange(len(widths)), self._number[chosen] - 1
            is_uniform = sizes[last] == n * (1 + widths)
            seconds[last] += np.where(is_uniform, prices.uniform_extra_s(n, self._k_max)[widths], 0.0)
        seconds += _later_s(prices, n, drafted)
        score = _score(value + lowest.value, seconds, self._objective)
        if self._slos:
            limits_s = self._limits_s(decodes, self._group_of[order])
            score = np.where(seconds <= limits_s, score, -seconds / limits_s)
        score += self._is_beyond[chosen]
        at = int(score.argmax())
        if score.flat[at] <= lowest.score(self._objective):
            return list(self._low_k)
        row, taken = divmod(at, score.shape[1])
        added = np.bincount(self._group_of[order[row, : taken + 1]], minlength=len(count))
        found: list[int] = (self._low + added).tolist()
        return found

    def _order(self, n: int, narrow: int, wide: int) -> Ints:
        """Return the positions of these widths by worth over cost, in a step of `n` decodes.

        Positions of one draft keep their order.
        """
        chosen = slice(narrow - 1, wide)
        widths, has_room = self._k[chosen], self._has_room[chosen]
        token_s = self._prices.token_s(n, self._k_max)[chosen][:, None, None]
        opening_s = (widths * self._prices.slot_s)[:, None] * self._is_open
        together = self._gains / (token_s * self._depth + opening_s[..., None]) * has_room
        first, best = together.argmax(axis=2), together.max(axis=2)
        alone = self._gain / token_s
        density = np.where(has_room, np.where(self._k <= first[..., None] + 1, best[..., None], alone), -np.inf)
        return (-density).reshape(len(widths), -1).argsort(axis=1, kind="stable")

    def _range(self, near: int | None) -> tuple[int, int]:
        """Return the smallest and the largest width to compare; none exceeds the largest K that a group may have."""
        narrow, wide = 1, self._k_max
        if near is not None:
            narrow, wide = min(near, self._deepest) - NEAR_WIDTHS, min(near + NEAR_WIDTHS, self._k_max)
        return max(1, self._widest, narrow), max(self._widest, wide)

    def _lowest(self, n: int, count: Vector, decodes: Sequence[int]) -> "_Outcome":
        """Return the step in which every group has its smallest K."""
        if self._widest or self._slos:
            groups = [group._replace(decodes=own) for group, own in zip(self._groups, decodes, strict=True)]
            return _outcome(groups, self._values, self._prices)
        return _Outcome(n, 0, float(count @ self._low_value), self._prices.plain_s(n), np.inf)

    def _limits_s(self, decodes: Sequence[int], owner: Ints) -> Vector:
        """Return the longest seconds of a step that keep all SLOs, by width and number of positions taken."""
        found: Vector = np.full(owner.shape, np.inf)
        for at in self._slos:
            if decodes[at]:
                k = np.minimum(int(self._low[at]) + (owner == at).cumsum(axis=1), self._k_max)
                group = self._groups[at]
                found = np.minimum(found, group.itl_slo_s * self._lengths[group.band][k])
        return found


def step_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> tuple[float, float]:
    """Return the weighted tokens that a step of these K by group yields, and its seconds."""
    found = _outcome_of(groups, lengths, prices, ks)
    return found.value, found.seconds


class Worth(NamedTuple):
    """A draft position of one group: its worth and its cost, in weighted tokens per decode."""

    position: int
    tokens: float
    cost_tokens: float


def worth_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> list[list[Worth]]:
    """Return, for each group, the last draft position that `ks` takes and the next one. They explain K.

    Position k is worth w S_k tokens. Its cost in tokens is the time that it adds to the step, times the batch's tokens
    per second under `ks`, divided by the decodes of the group. Without bounds, and for throughput, a position that is
    worth more than it costs is taken. The list is empty for a group without decodes. At K = 0 there is no last
    position, at K_max no next one.
    """
    k_max = lengths.shape[1] - 1
    present = _outcome_of(groups, lengths, prices, ks)
    found: list[list[Worth]] = []
    for at, (group, k) in enumerate(zip(groups, ks, strict=True)):
        positions = [position for position in (k, k + 1) if 1 <= position <= k_max and group.decodes]
        seconds = {
            depth: _outcome_of(groups, lengths, prices, [*ks[:at], depth, *ks[at + 1 :]]).seconds
            for depth in {depth for position in positions for depth in (position - 1, position)}
        }
        survival = np.diff(lengths[group.band])
        found.append([
            Worth(
                position,
                group.weight * float(survival[position - 1]),
                (seconds[position] - seconds[position - 1]) * present.value / present.seconds / group.decodes,
            )
            for position in positions
        ])  # fmt: skip
    return found


def _outcome_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> "_Outcome":
    chosen = [group._replace(low=k) for group, k in zip(groups, ks, strict=True)]
    return _outcome(chosen, lengths[[group.band for group in groups]], prices)


class _Outcome(NamedTuple):
    """A step in which each group has one K. `limit_s` is the longest time that keeps every SLO."""

    tokens: int
    drafted: int
    value: float
    seconds: float
    limit_s: float

    def score(self, objective: Objective) -> float:
        """Return the rate; if the step breaks an SLO, minus the ratio of its seconds to the limit."""
        if self.seconds > self.limit_s:
            return -self.seconds / self.limit_s
        return float(_score(np.array(self.value), np.array(self.seconds), objective))


def _outcome(groups: Sequence[Group], values: Vector, prices: Prices) -> _Outcome:
    n, width = sum(group.decodes for group in groups), max(group.low for group in groups)
    tokens, value, limit_s = n, 0.0, np.inf
    drafted = 0
    for group, own in zip(groups, values, strict=True):
        count, _, weight, low, _, itl_slo_s = group
        tokens += count * low
        value += count * weight * own[low]
        if low and count:
            drafted += count
        if itl_slo_s and count:
            limit_s = min(limit_s, itl_slo_s * abs(own[low]) ** (1 if own[low] > 0 else -1))
    seconds = prices.step_s(n, tokens, width * drafted, is_uniform=tokens == n * (1 + width))
    if drafted:
        seconds += float(_later_s(prices, n, np.array(drafted)))
    return _Outcome(tokens, drafted, value, seconds, limit_s)


def _later_s(prices: Prices, n: int, drafted: Vector) -> Vector:
    """Return the seconds of later catching up after a step that drafts for `drafted` of its `n` decodes."""
    found: Vector = (n - drafted) * drafted * (prices.left_out_s(n) / n**2)
    return found


def _score(value: Vector, seconds: Vector, objective: Objective) -> Vector:
    found: Vector = value / seconds if objective is Objective.THROUGHPUT else -1.0 / (value * seconds)
    return found

"""Chooses K for each group of running decodes, for the most weighted tokens per second. Pure.

    rate = V / T,    V = sum_g w_g n_g AL_g(K_g) / sum_g w_g n_g

g: groups; w: weight; n: decodes; AL(K): acceptance length, the mean tokens per decode and step with K drafted tokens;
T: seconds of the step (`law.prices`).

For each width of the drafter the draft positions of all groups are sorted by worth over cost, and the best prefix of
this list wins. A position costs one token to verify for each decode of its group. The first position of a draft also
costs the group's slots, unless all decodes have slots anyway (`Prices.slots`). Survival falls from position to position
of a draft. So several positions together may have a better ratio of worth to cost than the first alone. Then all
positions up to the depth with the best ratio get this ratio, and the positions of each draft keep their order in the
list. A prefix of the list is therefore a K for each group.

A step that drafts for only some decodes is also charged for the later catching up of the others
(`Prices.catch_up_s`). The time of catching up with a present backlog is not charged: it is spent once, in a few steps,
while the drafts gain over the rest of the reply.

Some groups have a bound on their mean inter-token latency. Then the best rate among the choices that keep all bounds
wins. If no choice keeps all bounds, the choice with the smallest worst ratio of latency to bound wins. With objective
`latency`, V is the weighted harmonic mean of AL instead of the arithmetic mean. A group whose smallest K is above 0
drafts in any case, so its slots are not part of the cost of its first position.

Where all decodes of a step need one K (`Graphs.need_one_k`), the candidates are 0 to K_max for all groups, each within
its group's bounds.

All widths and prefixes are evaluated together in about twenty numpy operations. Without latency bounds and lower bounds
on K this number does not grow with the number of groups. The order of the positions depends on the total number of
decodes, not on their distribution over the groups, so `Chooser` caches it. A thread beside that of the engine's steps
evaluates a few widths at a time, and lets the other thread run in between.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.engine_adapter.law.prices import Prices
from specpilot.policy.schedule import Objective

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
NEAR_WIDTHS = 1
"""A quick choice compares the last width and this many widths on either side of it. With 1, a choice among 24 groups
takes half the time of one that compares all seven widths."""

MOST_POSITIONS = 100_000
"""Most positions in the orders that a chooser caches, 8 bytes each. An order of 24 groups and K_max 7 has 340 to
1,200."""

POSITIONS_AT_ONCE = 1_000
"""Largest number of positions that are evaluated together by a thread beside that of the engine's steps: some tenths of
a millisecond."""


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


class Chooser:
    """Chooses K repeatedly for the same groups; `lengths` [bands, K_max + 1] is AL by K.

    Only the groups' numbers of decodes change from call to call. Everything else is computed once, so a later choice
    takes less time than the first.
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
        self._low, self._low_k, self._high = low, low.tolist(), high
        self._is_fixed = k_max == 0 or bool((low >= high).all())
        self._least_width = int(low.max())  # that the bounds allow
        self._is_bound = self._least_width > 0 or bool((high < k_max).any())
        self._opens = (low == 0).astype(np.float64)  # 1: the first position costs slots; 0: the group drafts anyway
        self._values, self._low_value = values, weight * values[at, low]
        self._slos = [place for place, group in enumerate(groups) if group.itl_slo_s]
        k = np.arange(1, k_max + 1)
        self._gain = weight[:, None] * np.diff(values)  # the worth of each position for one decode [groups, K]
        self._depth = np.broadcast_to(k, self._gain.shape).astype(np.float64)  # positions from the smallest K to k
        has_room = (k <= k[:, None])[:, None] & np.ones((1, len(groups), 1), dtype=bool)  # [widths, groups, K]
        if self._is_bound:
            has_room &= (k <= high[:, None]) & (k > low[:, None])
            self._gain *= k > low[:, None]
            self._depth = np.maximum(self._depth - low[:, None], 1.0)
        self._has_room, self._number = has_room, has_room.sum(axis=(1, 2))  # `_number`: positions of each width
        # Added to the score of each prefix [widths, positions]: excludes prefixes with positions that have no room
        self._penalty = np.where(np.arange(len(groups) * k_max) < self._number[:, None], 0.0, -np.inf)
        self._gains = self._gain.cumsum(axis=1)
        self._k = k
        self._group_of = np.repeat(at, k_max)
        # What each position adds for one decode: tokens to verify, decodes drafted for, value
        adds = np.ones((3, *self._gain.shape))
        adds[1], adds[2] = self._opens[:, None] * (k == 1), self._gain
        self._adds: Vector = adds.reshape(3, -1)
        self._orders: dict[tuple[int, int, int], tuple[Ints, Vector]] = {}

    def choose(
        self, decodes: Sequence[int], near_width: int | None = None, between: Callable[[], None] | None = None
    ) -> list[int]:
        """Return K of each group; `decodes` are not all 0.

        With `near_width`, the candidates are the widths within `NEAR_WIDTHS` of it, and the smallest K for each group.
        With `between`, some widths are evaluated at a time, and it is called between them.
        """
        if self._is_fixed:
            return list(self._low_k)
        if self._prices.need_one_k:
            each: list[list[int]] = [np.clip(k, self._low, self._high).tolist() for k in range(self._k_max + 1)]
            return max(each, key=lambda ks: self._outcome_at(decodes, ks).score(self._objective))
        count = np.array(decodes, dtype=np.float64)
        lowest = self._lowest(sum(decodes), count, decodes)
        narrow, wide = self._range(near_width, count)
        best, drafted = lowest.score(self._objective), None
        at_once = wide if between is None else max(1, POSITIONS_AT_ONCE // self._group_of.size)
        for first in range(narrow, wide + 1, at_once):
            score, groups = self._best(decodes, count, lowest, first, min(first + at_once - 1, wide))
            if score > best:
                best, drafted = score, groups
            if between is not None:
                between()
        if drafted is None:
            return list(self._low_k)
        ks: list[int] = (self._low + np.bincount(drafted, minlength=len(count))).tolist()
        return ks

    def _best(
        self, decodes: Sequence[int], count: Vector, lowest: "_Outcome", narrow: int, wide: int
    ) -> tuple[float, Ints]:
        """Return the best score of these widths, and the group of each position that it takes."""
        prices, n = self._prices, sum(decodes)
        cached = self._orders.get((n, narrow, wide))
        if cached is None:
            if sum([order.size for order, _ in self._orders.values()]) > MOST_POSITIONS:
                self._orders.clear()
            cached = self._orders[n, narrow, wide] = self._order(n, narrow, wide)
        order, density = cached

        # Tokens, value and seconds of the step with each prefix of that order
        chosen = slice(narrow - 1, wide)
        widths = self._k[chosen]
        tokens, drafted, value = (count[self._group_of] * self._adds)[:, order].cumsum(axis=2)
        drafted += lowest.drafted
        sizes = np.minimum(tokens + lowest.tokens, n * (1 + self._k_max)).astype(int)
        seconds = prices.steps_s(n, sizes, prices.slots(n, widths[:, None], drafted.astype(int)))
        if prices.has_graphs:
            last = np.arange(len(widths)), self._number[chosen] - 1
            is_uniform = sizes[last] == n * (1 + widths)
            seconds[last] += np.where(is_uniform, prices.uniform_extra_s(n, self._k_max)[widths], 0.0)
        seconds += _catch_up_s(prices, n, drafted)
        score = _score(value + lowest.value, seconds, self._objective)
        if self._slos:
            limits_s = self._limits_s(decodes, self._group_of[order])
            score = np.where(seconds <= limits_s, score, -seconds / limits_s)
        score += self._penalty[chosen]
        at = int(score.argmax())
        row, last_taken = divmod(at, score.shape[1])
        rate = abs(float(value[row, last_taken]) + lowest.value) / float(seconds[row, last_taken])
        groups, end = self._group_of[order[row]], last_taken + 1
        end += _number_that_would_pay(count[groups[end:]], density[row, end:], rate)
        return float(score.flat[at]), groups[:end]

    def _order(self, n: int, narrow: int, wide: int) -> tuple[Ints, Vector]:
        """Return the positions of these widths by worth over cost, in a step of `n` decodes, and this ratio of each.

        Positions of one draft keep their order.
        """
        chosen = slice(narrow - 1, wide)
        widths, has_room = self._k[chosen], self._has_room[chosen]
        token_s = self._prices.token_s(n, self._k_max)[chosen][:, None, None]
        slot_s = self._prices.slot_s if self._prices.least_width is None else 0.0
        opening_s = (widths * slot_s)[:, None] * self._opens
        together = self._gains / (token_s * self._depth + opening_s[..., None]) * has_room
        first, best = together.argmax(axis=2), together.max(axis=2)
        alone = self._gain / token_s
        density = np.where(has_room, np.where(self._k <= first[..., None] + 1, best[..., None], alone), -np.inf)
        density = density.reshape(len(widths), -1)
        order = (-density).argsort(axis=1, kind="stable")
        return order, np.take_along_axis(density, order, axis=1)

    def _range(self, near_width: int | None, count: Vector) -> tuple[int, int]:
        """Return the smallest and the largest width to compare, neither below a lower bound of a group with decodes."""
        least = int(self._low[count > 0].max()) if self._least_width else 0
        narrow, wide = 1, self._k_max
        if near_width is not None:
            most = int(self._high[count > 0].max())
            narrow, wide = min(near_width, most) - NEAR_WIDTHS, min(near_width + NEAR_WIDTHS, self._k_max)
        return max(1, least, narrow), max(least, wide)

    def _lowest(self, n: int, count: Vector, decodes: Sequence[int]) -> "_Outcome":
        """Return the step in which every group has its smallest K."""
        if self._least_width or self._slos:
            return self._outcome_at(decodes, self._low_k)
        return _Outcome(n, 0, float(count @ self._low_value), self._prices.plain_s(n), np.inf)

    def _outcome_at(self, decodes: Sequence[int], ks: Sequence[int]) -> "_Outcome":
        """Return the step of these K by group."""
        groups = [group._replace(decodes=n, low=k) for group, n, k in zip(self._groups, decodes, ks, strict=True)]
        return _outcome(groups, self._values, self._prices)

    def _limits_s(self, decodes: Sequence[int], owner: Ints) -> Vector:
        """Return the longest seconds of a step that keep all SLOs, by width and number of positions taken."""
        limits_s: Vector = np.full(owner.shape, np.inf)
        for at in self._slos:
            if decodes[at]:
                k = np.minimum(int(self._low[at]) + (owner == at).cumsum(axis=1), self._k_max)
                group = self._groups[at]
                limits_s = np.minimum(limits_s, group.itl_slo_s * self._lengths[group.band][k])
        return limits_s


def step_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> tuple[float, float]:
    """Return the weighted tokens that a step of these K by group yields, and its seconds."""
    outcome = _outcome_of(groups, lengths, prices, ks)
    return outcome.value, outcome.seconds


class Worth(NamedTuple):
    """A draft position of one group: its worth and its cost, in weighted tokens per decode."""

    position: int
    tokens: float
    cost_tokens: float


def keeps_slos(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> bool:
    """Return whether a step of these K by group keeps the latency bound of every group with decodes."""
    outcome = _outcome_of(groups, lengths, prices, ks)
    return outcome.seconds <= outcome.limit_s


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
    present = _outcome_of(groups, lengths, prices, ks)
    worths: list[list[Worth]] = []
    for at, (group, k) in enumerate(zip(groups, ks, strict=True)):
        positions = [position for position in (k, k + 1) if 1 <= position <= k_max and group.decodes]
        seconds = {
            depth: _outcome_of(groups, lengths, prices, [*ks[:at], depth, *ks[at + 1 :]]).seconds
            for depth in {depth for position in positions for depth in (position - 1, position)}
        }
        survival = np.diff(lengths[group.band])
        worths.append([
            Worth(
                position,
                group.weight * float(survival[position - 1]),
                (seconds[position] - seconds[position - 1]) * present.value / present.seconds / group.decodes,
            )
            for position in positions
        ])  # fmt: skip
        between()
    return worths


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
    n, width = sum(group.decodes for group in groups), max(group.low for group in groups if group.decodes)
    tokens, value, limit_s = n, 0.0, np.inf
    drafted = 0
    for group, values_of_k in zip(groups, values, strict=True):
        count, _, weight, low, _, itl_slo_s = group
        tokens += count * low
        value += count * weight * values_of_k[low]
        if low and count:
            drafted += count
        if itl_slo_s and count:
            length = values_of_k[low] if values_of_k[low] > 0 else -1.0 / values_of_k[low]  # objective `latency`: -1/AL
            limit_s = min(limit_s, itl_slo_s * length)
    seconds = prices.step_s(n, tokens, prices.slots(n, width, drafted), is_uniform=tokens == n * (1 + width))
    if drafted:
        seconds += float(_catch_up_s(prices, n, np.array(drafted)))
    return _Outcome(tokens, drafted, value, seconds, limit_s)


def _number_that_would_pay(decodes: Vector, density: Vector, rate: float) -> int:
    """Return how many of the positions that follow the best prefix would pay for a decode that joins their group.

    They are the positions of groups without decodes, which do not change the rate, up to the next position of a group
    with decodes: that one does not pay, nor does a position with the same ratio of worth to cost.
    """
    present = decodes.nonzero()[0]
    following = int(present[0]) if present.size else len(decodes)
    least = max(rate, float(density[following])) if present.size else rate
    return int((density[:following] > least).sum())


def _catch_up_s(prices: Prices, n: int, drafted: Vector) -> Vector:
    """Return the seconds of later catching up after a step that drafts for `drafted` of its `n` decodes.

    Each decode left out is charged `prices.catch_up_s(n) / n`, in proportion to the share of decodes drafted for.
    """
    seconds: Vector = (n - drafted) * drafted * (prices.catch_up_s(n) / n**2)
    return seconds


def _score(value: Vector, seconds: Vector, objective: Objective) -> Vector:
    score: Vector = value / seconds if objective is Objective.THROUGHPUT else -1.0 / (value * seconds)
    return score

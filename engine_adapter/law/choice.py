"""Chooses K for each group of running decodes: the step with the largest R (`law.step_worth` defines it). Pure.

For each width of the drafter the draft positions of all groups are sorted by worth over cost, and the best prefix of
this list wins. A position costs one token to verify for each decode of its group, which takes longer for a long context
(`law.contexts`). The first position of a draft also costs the group's slots, unless all decodes have slots anyway
(`Prices.slots`). Survival falls from position to position of a draft. So several positions together may have a better
ratio of worth to cost than the first alone. Then all positions up to the depth with the best ratio get this ratio, and
the positions of each draft keep their order in the list. A prefix of the list is therefore a K for each group.

A step that drafts for only some decodes is also charged for the later catching up of the others
(`Prices.catch_up_s`). The time of catching up with a present backlog is not charged: it is spent once, in a few steps,
while the drafts gain over the rest of the reply.

Bounds on latency are not looked at (`law.goal_choice`). A group whose smallest K is above 0 drafts in any case, so its
slots are not part of the cost of its first position.

Where all decodes of a step need one K (`Graphs.need_one_k`), the candidates are 0 to K_max for all groups, each within
its group's bounds.

All widths and prefixes are evaluated together in about twenty numpy operations. Without lower bounds on K
this number does not grow with the number of groups. The order of the positions depends on the total number of
decodes, not on their distribution over the groups, so `Chooser` caches it. A thread beside that of the engine's steps
evaluates a few widths at a time, and lets the other thread run in between.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from specpilot.engine_adapter.law.prices import LEAST_TOKEN_S, Prices
from specpilot.engine_adapter.law.step_worth import (
    Group,
    Ints,
    Vector,
    catch_up_s,
    rate,
    step_of,
    worth_of_step,
)
from specpilot.policy.schedule import Objective

NEAR_WIDTHS = 1
"""A quick choice compares the last width and this many widths on either side of it. With 1, a choice among 24 groups
takes half the time of one that compares all seven widths."""

MOST_POSITIONS = 100_000
"""Most positions in the orders that a chooser caches, 8 bytes each. An order of 24 groups and K_max 7 has 340 to
1,200."""

POSITIONS_AT_ONCE = 1_000
"""Largest number of positions that are evaluated together by a thread beside that of the engine's steps: some tenths of
a millisecond."""


class _Lowest(NamedTuple):
    """The step in which every group has its smallest K: its tokens, decodes drafted for, V, and R.

    `extra_s`: seconds that its draft tokens take beyond those at the mean context.
    """

    tokens: int
    drafted: int
    value: float
    rate: float
    extra_s: float = 0.0


class Chooser:
    """Chooses K repeatedly for the same groups; `lengths` [bands, K_max + 1] is AL by K.

    Only the groups' numbers of decodes change from call to call. Everything else is computed once, so a later choice
    takes less time than the first.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        lengths: Vector,
        prices: Prices,
        objective: Objective = Objective.THROUGHPUT,
    ) -> None:
        self._groups = [group._replace(tpot_bound_s=0.0) for group in groups]
        self._prices, self._objective, self._lengths = prices, objective, lengths
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
        self._low_value = weight * values[at, low]
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
        self._extra_s = np.array([group.extra_token_s for group in groups])
        # What each position adds for one decode: tokens to verify, decodes drafted for, value, and extra seconds if any
        adds = np.ones((3 + bool(self._extra_s.any()), *self._gain.shape))
        adds[1], adds[2], adds[3:] = self._opens[:, None] * (k == 1), self._gain, self._extra_s[:, None]
        self._adds: Vector = adds.reshape(len(adds), -1)
        self._orders: dict[tuple[int, int, int], tuple[Ints, Vector]] = {}

    def choose(
        self,
        decodes: Sequence[int],
        near_width: int | None = None,
        between: Callable[[], None] | None = None,
    ) -> list[int]:
        """Return K of each group; `decodes` are not all 0.

        With `near_width`, the candidates are the widths within `NEAR_WIDTHS` of it, and the smallest K for each group.
        With `between`, some widths are evaluated at a time, and it is called between them.
        """
        if self._is_fixed:
            return list(self._low_k)
        if self._prices.need_one_k:
            each_k: list[list[int]] = [np.clip(k, self._low, self._high).tolist() for k in range(self._k_max + 1)]
            return max(each_k, key=lambda ks: self._rate_at(decodes, ks))
        count = np.array(decodes, dtype=np.float64)
        lowest = self._lowest(sum(decodes), count, decodes)
        narrow, wide = self._range(near_width, count)
        best, drafted = lowest.rate, None
        at_once = wide if between is None else max(1, POSITIONS_AT_ONCE // self._group_of.size)
        for first in range(narrow, wide + 1, at_once):
            worth, groups = self._best(decodes, count, lowest, first, min(first + at_once - 1, wide))
            if worth > best:
                best, drafted = worth, groups
            if between is not None:
                between()
        if drafted is None:
            return list(self._low_k)
        ks: list[int] = (self._low + np.bincount(drafted, minlength=len(count))).tolist()
        return ks

    def _best(
        self, decodes: Sequence[int], count: Vector, lowest: _Lowest, narrow: int, wide: int
    ) -> tuple[float, Ints]:
        """Return the largest worth of these widths, and the group of each position that it takes."""
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
        tokens, drafted, value, *extra = (count[self._group_of] * self._adds)[:, order].cumsum(axis=2)
        drafted += lowest.drafted
        sizes = np.minimum(tokens + lowest.tokens, n * (1 + self._k_max)).astype(int)
        seconds = prices.steps_s(n, sizes, prices.slots(n, widths[:, None], drafted.astype(int)), widths[:, None])
        if prices.has_graphs:
            last = np.arange(len(widths)), self._number[chosen] - 1
            is_uniform = sizes[last] == n * (1 + widths)
            seconds[last] += np.where(is_uniform, prices.uniform_extra_s(n, self._k_max)[widths], 0.0)
        seconds += catch_up_s(prices, n, drafted)
        if extra:
            seconds += extra[0] + lowest.extra_s
        worth = rate(value + lowest.value, seconds, self._objective)
        worth += self._penalty[chosen]
        at = int(worth.argmax())
        row, last_taken = divmod(at, worth.shape[1])
        per_s = abs(float(value[row, last_taken]) + lowest.value) / float(seconds[row, last_taken])
        groups, end = self._group_of[order[row]], last_taken + 1
        end += _number_that_would_pay(count[groups[end:]], density[row, end:], per_s)
        return float(worth.flat[at]), groups[:end]

    def _order(self, n: int, narrow: int, wide: int) -> tuple[Ints, Vector]:
        """Return the positions of these widths by worth over cost, in a step of `n` decodes, and this ratio of each.

        Positions of one draft keep their order.
        """
        chosen = slice(narrow - 1, wide)
        widths, has_room = self._k[chosen], self._has_room[chosen]
        token_s = self._prices.token_s(n, self._k_max)[chosen][:, None, None]
        if len(self._adds) > 3:  # noqa: PLR2004 - with extra seconds
            token_s = np.maximum(token_s + self._extra_s[:, None], LEAST_TOKEN_S)
        slot_s = self._prices.slot_s if self._prices.least_width is None else 0.0
        opening_s = (np.maximum(widths, self._prices.narrowest) * slot_s)[:, None] * self._opens
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

    def _lowest(self, n: int, count: Vector, decodes: Sequence[int]) -> _Lowest:
        """Return the step in which every group has its smallest K."""
        value = float(count @ self._low_value)
        if not self._least_width:
            plain = rate(np.array(value), np.array(self._prices.plain_s(n)), self._objective)
            return _Lowest(n, 0, value, float(plain))
        drafted, extra_s = int(count[self._low > 0].sum()), float(count * self._low @ self._extra_s)
        return _Lowest(n + int(count @ self._low), drafted, value, self._rate_at(decodes, self._low_k), extra_s)

    def _rate_at(self, decodes: Sequence[int], ks: Sequence[int]) -> float:
        """Return R of the step of these K by group."""
        groups = [group._replace(decodes=number) for group, number in zip(self._groups, decodes, strict=True)]
        return worth_of_step(groups, step_of(groups, self._lengths, self._prices, ks), self._objective)


def _number_that_would_pay(decodes: Vector, density: Vector, rate: float) -> int:
    """Return how many of the positions that follow the best prefix would pay for a decode that joins their group.

    They are the positions of groups without decodes, which do not change the rate, up to the next position of a group
    with decodes: that one does not pay, nor does a position with the same ratio of worth to cost.
    """
    present = decodes.nonzero()[0]
    following = int(present[0]) if present.size else len(decodes)
    least = max(rate, float(density[following])) if present.size else rate
    return int((density[:following] > least).sum())

"""K of each group of decodes for the batch that is there: what yields the most weighted tokens per second. Pure.

    rate = V / T,    V = sum_g w_g n_g AL_g(K_g) / sum_g w_g n_g

For each width of the drafter the draft positions of all groups are sorted by value over price, and the best prefix of
that order wins. Survival only falls along a draft and prices do not, so a prefix of the order is a prefix of each
draft. A position costs a token to verify for each decode of its group; the first one also the group's slots. Positions
that are only worth it together get the value over price that they have together. A step that drafts for some is charged
with what it leaves out (`Prices.left_s`). Catching up with a backlog is not charged: it is over in some steps, and a
draft pays over the rest of the reply.

Where the mean inter-token latency of a group is bounded, the best rate among what keeps all bounds wins; where nothing
does, the smallest worst excess. For latency V is the harmonic mean of AL in place of the arithmetic one. A group that
has to draft (its least K is not 0) has its slots paid in any case.

Everything is evaluated for all widths and all prefixes at once: some twenty operations of numpy, whose number does not
grow with the groups. The order of the positions depends on the number of decodes alone, not on their groups, so
`Chooser` keeps it from one choice to the next.
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
"""How far from the last width a quick choice goes. More takes longer: 24 groups take 120 to 145 µs in place of 200 to
250 for all seven widths."""


class Group(NamedTuple):
    """Decodes that get one K: how many, the band of their acceptance, their weight, and the bounds on K.

    `itl_slo_s` bounds their mean inter-token latency; 0: no bound. A group without decodes changes nothing for the
    others; its K is that of a decode that joins it.
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
    """Return K of each group; `lengths` [bands, K_max + 1] is AL by K. One group at least has decodes.

    With `near` only drafters of about that width are compared, up to `NEAR_WIDTHS` less and more, and none.
    """
    chooser = Chooser(groups, lengths, prices, objective)
    return chooser.choose([group.decodes for group in groups], near)


class _Order(NamedTuple):
    """The draft positions of each width, the best value over price first, forbidden ones last.

    `group` is the group of a position [widths, positions]. `adds` is what it adds to a step for each decode of its
    group [3, widths, positions]: a token, a decode drafted for (the first position of a draft), and value.
    """

    group: Ints
    adds: Vector


class Chooser:
    """Chooses K of the same groups again and again, of which only the numbers of decodes change.

    What does not depend on them is computed once, so that each choice costs less than choosing from nothing.
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
        self._is_open = (low == 0).astype(np.float64)  # 0: the group drafts in any case
        self._values, self._low_value = values, weight * values[at, low]
        self._slos = [place for place, group in enumerate(groups) if group.itl_slo_s]
        k = np.arange(1, k_max + 1)
        self._gain = weight[:, None] * np.diff(values)  # of one decode [groups, K]
        self._depth = np.broadcast_to(k, self._gain.shape).astype(np.float64)
        has_room = (k <= k[:, None])[:, None] & np.ones((1, len(groups), 1), dtype=bool)  # [widths, groups, K]
        if self._is_bound:
            has_room &= (k <= high[:, None]) & (k > low[:, None])
            self._gain *= k > low[:, None]
            self._depth = np.maximum(self._depth - low[:, None], 1.0)
        self._has_room, self._number = has_room, has_room.sum(axis=(1, 2))  # and how many positions each width has
        self._is_beyond = np.where(np.arange(len(groups) * k_max) < self._number[:, None], 0.0, -np.inf)
        self._gains = self._gain.cumsum(axis=1)
        self._k = k
        self._orders: dict[tuple[int, int, int], _Order] = {}

    def choose(self, decodes: Sequence[int], near: int | None = None) -> list[int]:
        """Return K of each group, with these numbers of decodes; one at least is above 0. `near`: as in `choose`."""
        if self._is_fixed:
            return list(self._low_k)
        prices, n = self._prices, sum(decodes)
        count = np.array(decodes, dtype=np.float64)
        lowest = self._lowest(n, count, decodes)
        narrow, wide = self._range(near)
        order = self._orders.get((n, narrow, wide))
        if order is None:
            order = self._orders[n, narrow, wide] = self._order(n, narrow, wide)

        # What the step comes to with each prefix of that order
        chosen = slice(narrow - 1, wide)
        widths = self._k[chosen]
        tokens, drafted, value = (count[order.group] * order.adds).cumsum(axis=2)
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
            limits_s = self._limits_s(decodes, order.group)
            score = np.where(seconds <= limits_s, score, -seconds / limits_s)
        score += self._is_beyond[chosen]
        at = int(score.argmax())
        if score.flat[at] <= lowest.score(self._objective):
            return list(self._low_k)
        row, taken = divmod(at, score.shape[1])
        added = np.bincount(order.group[row, : taken + 1], minlength=len(count))
        found: list[int] = (self._low + added).tolist()
        return found

    def _order(self, n: int, narrow: int, wide: int) -> _Order:
        """Return the order of the positions of these widths in a step of `n` decodes; a draft's stay in their order."""
        chosen = slice(narrow - 1, wide)
        widths, has_room = self._k[chosen], self._has_room[chosen]
        token_s = self._prices.token_s(n, self._k_max)[chosen][:, None, None]
        opening_s = (widths * self._prices.slot_s)[:, None] * self._is_open
        together = self._gains / (token_s * self._depth + opening_s[..., None]) * has_room
        first, best = together.argmax(axis=2), together.max(axis=2)
        alone = self._gain / token_s
        density = np.where(has_room, np.where(self._k <= first[..., None] + 1, best[..., None], alone), -np.inf)
        order = (-density).reshape(len(widths), -1).argsort(axis=1, kind="stable")
        adds = np.ones((3, *self._gain.shape))
        adds[1] = self._is_open[:, None] * (self._k == 1)
        adds[2] = self._gain
        return _Order(order // self._k_max, adds.reshape(3, -1)[:, order])

    def _range(self, near: int | None) -> tuple[int, int]:
        """Return the narrowest and the widest drafter that is compared; no drafter is wider than the deepest draft."""
        narrow, wide = 1, self._k_max
        if near is not None:
            narrow, wide = min(near, self._deepest) - NEAR_WIDTHS, min(near + NEAR_WIDTHS, self._k_max)
        return max(1, self._widest, narrow), max(self._widest, wide)

    def _lowest(self, n: int, count: Vector, decodes: Sequence[int]) -> "_Outcome":
        """Return the outcome of the least K of all groups."""
        if self._widest or self._slos:
            groups = [group._replace(decodes=own) for group, own in zip(self._groups, decodes, strict=True)]
            return _outcome(groups, self._values, self._prices)
        return _Outcome(n, 0, float(count @ self._low_value), self._prices.plain_s(n), np.inf)

    def _limits_s(self, decodes: Sequence[int], owner: Ints) -> Vector:
        """Return how long a step may take after so many positions [widths, positions]."""
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
    """A draft position of one group: its worth, and its cost, in weighted tokens a decode."""

    position: int
    tokens: float
    cost_tokens: float


def worth_of(groups: Sequence[Group], lengths: Vector, prices: Prices, ks: Sequence[int]) -> list[list[Worth]]:
    """Return, for each group, the last draft position that it takes under `ks` and the next one: why K is what it is.

    Position k is worth w S_k tokens. It costs the seconds by which it lengthens the step, at the tokens per second of
    the batch under `ks`, divided among the decodes of the group. Without bounds, and for throughput, a position that
    is worth more than it costs is taken. A group without decodes has none; K = 0 has no last position, K_max no next.
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
    """A step of the groups with one K each: tokens to verify, decodes drafted for, value, seconds, and their limit."""

    tokens: int
    drafted: int
    value: float
    seconds: float
    limit_s: float

    def score(self, objective: Objective) -> float:
        """Return its rate; where it breaks a bound, its excess, negative."""
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
    """Return what a step that drafts for so many of its decodes leaves out for later."""
    found: Vector = (n - drafted) * drafted * (prices.left_out_s(n) / n**2)
    return found


def _score(value: Vector, seconds: Vector, objective: Objective) -> Vector:
    found: Vector = value / seconds if objective is Objective.THROUGHPUT else -1.0 / (value * seconds)
    return found

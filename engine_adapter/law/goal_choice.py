"""Chooses K for each group of running decodes where latency goals limit it: the largest worth (`law.step_worth`). Pure.

With goals the worth of a draft position depends on all other K, so no sorted list of positions has the best choice as a
prefix, as in `law.choice`. Instead the choice climbs: from the K of all groups, K of one group changes to any value
within its bounds, the change that is worth most first, as long as the worth rises. It may end where no single change
helps although several together would, so it climbs from several K and the best end wins.

All changes are evaluated together in some thirty numpy operations; a climb takes two to six of them.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

import numpy as np

from specpilot.engine_adapter.law.prices import Prices
from specpilot.engine_adapter.law.step_worth import Group, Ints, Vector, goals_factor, steps_of, worth_of_steps
from specpilot.policy.schedule import Objective

_LEAST_GAIN = 1e-6
"""Smallest relative rise of the worth: less is rounding."""


class GoalChooser:
    """Chooses K for these groups, all with decodes; `lengths` [bands, K_max + 1] is AL by K.

    `between` is called between two parts of the computation.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        lengths: Vector,
        prices: Prices,
        objective: Objective,
        between: Callable[[], None] | None = None,
    ) -> None:
        self._groups, self._lengths, self._prices, self._objective = groups, lengths, prices, objective
        self._between = between
        self._low, self._high = np.array([(group.low, group.high) for group in groups]).T
        each = np.arange(lengths.shape[1])
        group, k = (item.ravel() for item in np.meshgrid(range(len(groups)), each, indexing="ij"))
        is_allowed = (self._low[group] <= k) & (k <= self._high[group])
        self._group, self._k = group[is_allowed], k[is_allowed]  # of each change
        self._one_k: Ints = np.clip(each[:, None], self._low, self._high)

    def best(self, *starts: Sequence[int]) -> list[int]:
        """Return K of each group: the best end of climbs from `starts` and from the best one K for all."""
        return self._best(self._worths, starts)

    def fastest(self, start: Sequence[int]) -> list[int]:
        """Return the K that keep the goals best, whatever the throughput."""
        return self._best(self._goals_factors, [start])

    def nearby(self, ks: Sequence[int]) -> list[int]:
        """Return the end of a climb from `ks` alone, which takes less time."""
        return self.best() if self._prices.need_one_k else _plain(self._climb(np.array(ks), self._worths)[1])

    def _best(self, worth_of: Callable[[Ints], Vector], starts: Sequence[Sequence[int]]) -> list[int]:
        """Return the best end by this worth; where all decodes of a step need one K, the best one K."""
        one_k = self._one_k[int(worth_of(self._one_k).argmax())]
        if self._prices.need_one_k:
            return _plain(one_k)
        return _plain(max((self._climb(np.array(ks), worth_of) for ks in (one_k, *starts)), key=itemgetter(0))[1])

    def _climb(self, ks: Ints, worth_of: Callable[[Ints], Vector]) -> tuple[float, Ints]:
        """Return the worth and K of the end of a climb."""
        worth, each = float(worth_of(ks[None])[0]), np.arange(len(self._k))
        while True:
            changed = np.repeat(ks[None], len(self._k), axis=0)
            changed[each, self._group] = self._k
            values = worth_of(changed)
            best = int(values.argmax())
            if values[best] > worth * (1 + _LEAST_GAIN):  # false for NaN, with which the climb would not end
                worth, ks = float(values[best]), changed[best]
            else:
                return worth, ks
            if self._between is not None:
                self._between()

    def _worths(self, ks: Ints) -> Vector:
        return worth_of_steps(self._groups, *steps_of(self._groups, self._lengths, self._prices, ks), self._objective)

    def _goals_factors(self, ks: Ints) -> Vector:
        return goals_factor(self._groups, *steps_of(self._groups, self._lengths, self._prices, ks))


def _plain(ks: Ints) -> list[int]:
    plain: list[int] = ks.tolist()
    return plain

"""Estimates the K that engines choose, with the same `Chooser` as theirs and exported prices and counts. Pure.

Requests without a verified draft are not treated separately here, unlike in the engine.

K is estimated for one engine of the pool: of the busy engines that export prices, the one whose running decodes are
nearest to the mean. Its mix of requests is averaged over some seconds (`MIX_HALF_LIFE_S`), because one scrape covers
only 0.5 to 2 s.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.rows import bounds_of, k_of, loads, row_at
from specpilot.policy.bands import BANDS, row_of
from specpilot.policy.choice import Chooser, Group, step_of
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.prices import PriceList
from specpilot.policy.schedule import Ranges

Vector = NDArray[np.float64]
MIX_HALF_LIFE_S = 2.0
_QUIET_S = 5 * MIX_HALF_LIFE_S
"""Seconds without a decode after which an engine counts as idle. Without steps both sums of its mix decay at the same
rate, so their ratio would report the last load for ever."""
_MS = 1000.0


@dataclass(slots=True)
class Mix:
    """The decodes of one engine by (class, band), and its steps, as sums with a half-life of `MIX_HALF_LIFE_S`.

    `prices` is the price list that it exported last, `quiet_s` the time since its last decode.
    """

    decodes: dict[tuple[str, int], float] = field(default_factory=dict)
    steps: float = 0.0
    prices: PriceList | None = None
    quiet_s: float = 0.0

    def add(self, evidence: Evidence, elapsed_s: float, prices: PriceList | None) -> None:
        """Add the evidence of one scrape."""
        keep = 0.5 ** (elapsed_s / MIX_HALF_LIFE_S)
        self.steps = self.steps * keep + evidence.decode_steps
        self.decodes = {key: count * keep for key, count in self.decodes.items()}
        for key, count in evidence.drafts_of.items():
            self.decodes[key] = self.decodes.get(key, 0.0) + count
        self.quiet_s = 0.0 if evidence.drafts else self.quiet_s + elapsed_s
        self.prices = prices

    @property
    def running(self) -> float:
        """Mean number of decodes in a step; 0 without steps, or without a decode for `_QUIET_S`."""
        return sum(self.decodes.values()) / self.steps if self.steps and self.quiet_s < _QUIET_S else 0.0


def mean_running(mixes: Mapping[str, Mix]) -> float:
    """Return the mean number of decodes in a step over all engines that run any; 0 if none does."""
    busy = [mix.running for mix in mixes.values() if mix.running > 0]
    return sum(busy) / len(busy) if busy else 0.0


def shares(mixes: Mapping[str, Mix]) -> dict[tuple[str, int], float]:
    """Return the share of each (class, band) in the running decodes of all engines."""
    busy = [mix for mix in mixes.values() if mix.running > 0]
    counts: dict[tuple[str, int], float] = {}
    for mix in busy:
        for key, count in mix.decodes.items():
            counts[key] = counts.get(key, 0.0) + count
    whole = sum(counts.values())
    return {key: count / whole for key, count in sorted(counts.items()) if count}


def representative(mixes: Mapping[str, Mix]) -> Mix | None:
    """Return the mix of the engine for which K is estimated; `None` if no engine with prices runs requests."""
    mean = mean_running(mixes)
    priced = [mix for _, mix in sorted(mixes.items()) if mix.running > 0 and mix.prices is not None]
    return min(priced, key=lambda mix: abs(math.log(mix.running / mean)), default=None)


class Estimate:
    """The choice of one engine with this `mix` and AL (`lengths`), by the policy of `context`."""

    def __init__(self, context: PoolContext, mix: Mix, lengths: Vector) -> None:
        assert mix.prices is not None
        bounds = bounds_of(context)
        self._names = list(bounds)
        self._lengths = lengths
        self._slowdown = mix.prices.slowdown
        self._most = max(1, context.max_num_seqs)
        self._prices = mix.prices.prices(self._most * (1 + context.k_max), context.graphs)
        self._loads = loads(self._most, context.k_max, context.graphs)
        self._objective = context.policy.objective
        self._running = max(1, min(round(mix.running), context.max_num_seqs))
        places = {name: at for at, name in enumerate(self._names)}
        known = set(context.policy.class_names)
        whole = sum(mix.decodes.values())
        shares: dict[tuple[str, int], float] = {}
        for (name, band), count in mix.decodes.items():
            owner = name if name in known else DEFAULT_CLASS
            shares[owner, band] = shares.get((owner, band), 0.0) + count / whole
        self._of_row: list[int] = []  # by group: the index of its row in `_names`
        self._share: list[float] = []
        self._group: list[Group] = []
        group_of: dict[tuple[int, int], int] = {}  # classes with the requirements of `default` share its rows
        for name in sorted(known):
            class_policy = context.policy.of_class(name)
            slo_s = (class_policy.itl_slo_ms or 0.0) / _MS / self._slowdown
            low, high = context.bounds(name)
            for band in range(BANDS):
                row = row_of(places, name, band)
                at = group_of.setdefault((row, band), len(self._group))
                if at == len(self._group):
                    self._of_row.append(row)
                    self._share.append(0.0)
                    self._group.append(Group(0, band, class_policy.weight, low, high, slo_s))
                self._share[at] += shares.get((name, band), 0.0)

    def rows(self) -> Ranges:
        """Return K by row and number of running decodes, for the present mix."""
        chooser = Chooser(self._group, self._lengths, self._prices, self._objective)
        chosen = [self._by_row(chooser.choose(self._counts(decodes))) for decodes in self._loads]
        return {
            name: row_at(self._loads, [ks[at] for ks in chosen], self._loads[-1]) for at, name in enumerate(self._names)
        }

    def throughput(self, rows: Ranges) -> tuple[float, float]:
        """Return the weighted tokens per second of the engine with K of these rows, and the seconds of its step."""
        tokens, seconds = step_of(self._groups(self._running), self._lengths, self._prices, self._ks(rows))
        return tokens / seconds / self._slowdown, seconds * self._slowdown

    def keeps_slos(self, rows: Ranges) -> bool:
        """Return whether these rows are predicted to keep every SLO of the present load."""
        groups, ks = self._groups(self._running), self._ks(rows)
        _, seconds = step_of(groups, self._lengths, self._prices, ks)
        return all(
            seconds <= group.itl_slo_s * self._lengths[group.band, k]
            for group, k in zip(groups, ks, strict=True)
            if group.decodes and group.itl_slo_s
        )

    def _groups(self, n: int) -> list[Group]:
        """Return the groups of `n` decodes of the present mix."""
        return [group._replace(decodes=count) for group, count in zip(self._group, self._counts(n), strict=True)]

    def _counts(self, n: int) -> list[int]:
        """Distribute `n` decodes over the groups by their shares, as whole numbers that add up to `n`."""
        exact = np.array(self._share) * n
        counts = np.floor(exact).astype(int)
        for at in np.argsort(counts - exact, kind="stable")[: n - int(counts.sum())]:
            counts[at] += 1
        whole: list[int] = counts.tolist()
        return whole

    def _ks(self, rows: Ranges) -> list[int]:
        """Return K of each group at the present load."""
        k, k_max = k_of(rows, self._names, self._running), self._lengths.shape[1] - 1
        return [min(k[row], k_max) for row in self._of_row]

    def _by_row(self, ks: Sequence[int]) -> list[int]:
        """Return K by row from K by group; a row without a group gets the K of the largest group."""
        by_row = [ks[int(np.argmax(self._share))]] * len(self._names)
        for row, k in zip(self._of_row, ks, strict=True):
            by_row[row] = k
        return by_row

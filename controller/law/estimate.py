"""An estimate of the engines' own choice of K: the same function, over what an engine exports. Pure.

One engine stands for its pool: of those that export prices, the one whose running decodes are nearest to the mean. What
its requests are is averaged over some seconds (`MIX_HALF_LIFE_S`), because a scrape has only those of one second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.k_table import KTable, Ranges
from specpilot.controller.law.rows import Rows
from specpilot.policy.bands import BANDS, row_of
from specpilot.policy.choice import Group, choose, step_of
from specpilot.policy.prices import PriceList
from specpilot.policy.types import DEFAULT_CLASS

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
MIX_HALF_LIFE_S = 2.0
_QUIET_S = 5 * MIX_HALF_LIFE_S
"""Seconds without a decode after which an engine runs nothing: its sums only lose weight, so their ratio would stay."""
_MS = 1000.0


@dataclass(slots=True)
class Mix:
    """The decodes of one engine by (class, band), and its steps: sums that lose half of their weight in some seconds.

    `prices` is the list that it exported last, `quiet_s` the time since its last decode.
    """

    decodes: dict[tuple[str, int], float] = field(default_factory=dict)
    steps: float = 0.0
    prices: PriceList | None = None
    quiet_s: float = 0.0

    def take(self, evidence: Evidence, elapsed_s: float, prices: PriceList | None) -> None:
        """Add the evidence of one scrape."""
        keep = 0.5 ** (elapsed_s / MIX_HALF_LIFE_S)
        self.steps = self.steps * keep + evidence.steps + evidence.catch_up_steps
        self.decodes = {key: count * keep for key, count in self.decodes.items()}
        for key, count in evidence.drafts_of.items():
            self.decodes[key] = self.decodes.get(key, 0.0) + count
        self.quiet_s = 0.0 if evidence.drafts else self.quiet_s + elapsed_s
        self.prices = prices

    @property
    def running(self) -> float:
        """The decodes of a step in the mean; 0 without steps, or without a decode for `_QUIET_S`."""
        return sum(self.decodes.values()) / self.steps if self.steps and self.quiet_s < _QUIET_S else 0.0


def representative(mixes: Mapping[str, Mix]) -> Mix | None:
    """Return the mix of the engine that stands for the pool; `None` where none with prices runs a request."""
    busy = [mix for _, mix in sorted(mixes.items()) if mix.running > 0]
    priced = [mix for mix in busy if mix.prices is not None]
    if not priced:
        return None
    mean = sum(mix.running for mix in busy) / len(busy)
    return min(priced, key=lambda mix: abs(math.log(mix.running / mean)))


class Estimate:
    """The choice of one engine with this `mix` and acceptance `lengths`, by the policy of `context`."""

    def __init__(self, context: PoolContext, mix: Mix, lengths: Vector) -> None:
        assert mix.prices is not None
        self._rows = Rows.of(context)
        self._lengths = lengths
        self._slowdown = mix.prices.slowdown
        self._prices = mix.prices.prices(max(1, context.max_num_seqs) * (1 + context.k_max), context.graphs)
        self._objective = context.policy.objective
        self._running = max(1, min(round(mix.running), context.max_num_seqs))
        places = {name: at for at, name in enumerate(self._rows.names)}
        known = set(context.policy.class_names)
        whole = sum(mix.decodes.values())
        shares: dict[tuple[str, int], float] = {}
        for (name, band), count in mix.decodes.items():
            owner = name if name in known else DEFAULT_CLASS
            shares[owner, band] = shares.get((owner, band), 0.0) + count / whole
        self._of_row: list[int] = []  # of each group
        self._share: list[float] = []
        self._group: list[Group] = []
        for name in sorted(known):
            wanted = context.policy.of_class(name)
            slo_s = (wanted.itl_slo_ms or 0.0) / _MS / self._slowdown
            for band in range(BANDS):
                row = row_of(places, name, band)
                low, high = int(self._rows.low[row]), int(self._rows.high[row])
                self._of_row.append(row)
                self._share.append(shares.get((name, band), 0.0))
                self._group.append(Group(0, band, wanted.weight, low, high, 0, slo_s))

    def table(self, n: Vector) -> KTable:
        """Return K by row at each of the loads `n`, for the present mix."""
        k = [
            self._by_row(choose(self._groups(decodes), self._lengths, self._prices, self._objective))
            for decodes in n.astype(int).tolist()
        ]
        return KTable(self._rows.names, n, np.array(k))

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
        """Return the groups of `n` decodes of the present mix: whole numbers that add up to `n`."""
        wanted = np.array(self._share) * n
        counts = np.floor(wanted).astype(int)
        for at in np.argsort(counts - wanted, kind="stable")[: n - int(counts.sum())]:
            counts[at] += 1
        return [group._replace(decodes=count) for group, count in zip(self._group, counts.tolist(), strict=True)]

    def _ks(self, rows: Ranges) -> list[int]:
        table = KTable.of_ranges(rows, self._rows.names, np.array([float(self._running)]))
        k_max = self._lengths.shape[1] - 1
        return [min(int(table.k[0, row]), k_max) for row in self._of_row]

    def _by_row(self, ks: Sequence[int]) -> Ints:
        """Return K by row from K by group; where the row `default` serves nobody it has the K of most decodes."""
        found = np.full(len(self._rows.names), ks[int(np.argmax(self._share))], dtype=np.int64)
        found[self._of_row] = ks
        return found

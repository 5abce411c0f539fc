"""Schedules as tables: for each number of running decodes n of a grid, the K of each named row.

Tables are compared by the names of their rows, never by shape. A row that one of them lacks is resolved in it by the
engines' rule (`policy.bands.row_of`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot.policy.bands import row_of, row_parts
from specpilot.policy.types import DEFAULT_CLASS, KRange

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
Ranges = Mapping[str, tuple[KRange, ...]]
_EACH_UP_TO = 16
_STEP = 1.15


def grid(max_num_seqs: int, cliffs: Collection[int] = ()) -> Vector:
    """Return the grid of running decodes: each number up to 16, then steps of about 15 %.

    It includes `cliffs`, at which the cost of a K jumps.
    """
    points = list(range(1, min(max_num_seqs, _EACH_UP_TO) + 1))
    while points[-1] < max_num_seqs:
        points.append(min(max_num_seqs, int(points[-1] * _STEP) + 1))
    points = sorted({*points, *(cliff for cliff in cliffs if cliff <= max_num_seqs)})
    return np.array(points, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class KTable:
    """K [n, names]: `k[i]` holds from n[i] running decodes up to n[i + 1] - 1."""

    names: tuple[str, ...]
    n: Vector
    k: Ints

    @classmethod
    def uniform(cls, names: Sequence[str], n: Vector, k: int) -> "KTable":
        """Return the table with `k` in every row."""
        return cls(tuple(names), n, np.full((len(n), len(names)), k, dtype=np.int64))

    @classmethod
    def of_ranges(cls, ranges: Ranges, names: Sequence[str], n: Vector) -> "KTable":
        """Return the table of a schedule's `ranges` for the rows `names`."""
        columns = [[k_at(_row(ranges, name), int(decodes)) for decodes in n] for name in names]
        return cls(tuple(names), n, np.array(columns, dtype=np.int64).T.reshape(len(n), len(names)))

    def with_k(self, k: Ints) -> "KTable":
        """Return the table of the same rows with other values."""
        return KTable(self.names, self.n, k)

    def clipped(self, low: Ints, high: Ints) -> "KTable":
        """Return the table with each row's K [names] within `low` and `high`."""
        return self.with_k(np.clip(self.k, low[None, :], high[None, :]))

    def same_as(self, other: "KTable") -> bool:
        """Return whether both have the same K, by name."""
        return self.names == other.names and np.array_equal(self.n, other.n) and np.array_equal(self.k, other.k)

    def indices_at(self, decodes: Vector) -> NDArray[np.int64]:
        """Return the index into `n` for each of `decodes`, which are means and need not be whole."""
        found: NDArray[np.int64] = np.clip(
            np.searchsorted(self.n, np.round(decodes), side="right") - 1, 0, len(self.n) - 1
        ).astype(np.int64)
        return found

    def to_ranges(self) -> dict[str, tuple[KRange, ...]]:
        """Return the shortest equivalent ranges."""
        lows = self.n.astype(int).tolist()
        highs = [low - 1 for low in lows[1:]] + [lows[-1]]
        found: dict[str, tuple[KRange, ...]] = {}
        for column, name in enumerate(self.names):
            ranges: list[KRange] = []
            for lo, hi, k in zip(lows, highs, self.k[:, column].tolist(), strict=True):
                if ranges and ranges[-1].k == k:
                    ranges[-1] = KRange(ranges[-1].lo, hi, k)
                else:
                    ranges.append(KRange(lo, hi, k))
            found[name] = tuple(ranges)
        return found


def k_at(ranges: Sequence[Sequence[int]], decodes: int) -> int:
    """Return the K that `ranges` (lo, hi, K) give at `decodes` running decodes; above the last one its K holds."""
    for _, hi, k in ranges:
        if decodes <= hi:
            return k
    return ranges[-1][2]


def _row(ranges: Ranges, name: str) -> tuple[KRange, ...]:
    """Return the row of a schedule that applies to `name`."""
    traffic_class, band = row_parts(name)
    return ranges.get(name, ranges[DEFAULT_CLASS]) if band is None else row_of(ranges, traffic_class, band)

"""Schedules as matrices: rows are numbers of running decodes (the grid), columns are classes, entries are K."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from policy.types import DEFAULT_CLASS, KRange, Schedule

Vector = NDArray[np.float64]
Matrix = NDArray[np.int64]


def of_schedule(schedule: Schedule, names: Sequence[str], n: Vector) -> Matrix:
    """Return the K that `schedule` gives each class at each n; a class it does not name has that of `default`."""
    columns = [
        [k_at(schedule.classes.get(name, schedule.classes[DEFAULT_CLASS]), int(decodes)) for decodes in n]
        for name in names
    ]
    return np.array(columns, dtype=np.int64).T


def k_at(ranges: Sequence[KRange], decodes: int) -> int:
    """Return the K that `ranges` gives at `decodes` running decodes; above the last range its K holds."""
    for _, hi, k in ranges:
        if decodes <= hi:
            return k
    return ranges[-1].k


def to_ranges(names: Sequence[str], n: Vector, k: Matrix) -> Mapping[str, tuple[KRange, ...]]:
    """Return the shortest ranges that say the same; a row stands for every n up to the next row's."""
    classes: dict[str, tuple[KRange, ...]] = {}
    for column, name in enumerate(names):
        found: list[KRange] = []
        for row, lo in enumerate(n):
            hi = int(n[row + 1]) - 1 if row + 1 < len(n) else int(lo)
            value = int(k[row, column])
            if found and found[-1].k == value:
                found[-1] = KRange(found[-1].lo, hi, value)
            else:
                found.append(KRange(int(lo), hi, value))
        classes[name] = tuple(found)
    return classes


def row_of(n: Vector, decodes: float) -> int:
    """Return the row that is in force at `decodes` running decodes, a mean and so maybe no whole number."""
    return int(np.clip(np.searchsorted(n, round(decodes), side="right") - 1, 0, len(n) - 1))

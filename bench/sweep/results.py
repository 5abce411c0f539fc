"""Medians and ranges of cells over repetitions, and ratios of arms. Pure.

A ratio of two arms is the median of the ratios within each repetition, in which both were measured within minutes, so
that changes of the machine's speed cancel. Unknown figures are `None`.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specpilot.bench.sweep.plan import ADAPTIVE, EAGLE_3, NO_SPECULATION, P_EAGLE

RATE = "output_throughput"
_ORDER = (NO_SPECULATION, EAGLE_3, P_EAGLE, ADAPTIVE)


class Spread(NamedTuple):
    """Median, smallest and largest value over `repetitions`."""

    median: float
    low: float
    high: float
    repetitions: int


class ArmKey(NamedTuple):
    """An arm as in the files of cells."""

    name: str
    system: str
    k: int | None


def spread(values: Sequence[float]) -> Spread | None:
    """Return the spread of some values, `None` of none."""
    return Spread(statistics.median(values), min(values), max(values), len(values)) if values else None


class Results:
    """The cells of a sweep, by arm, data set, load and repetition."""

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        self.cells = cells
        self._by_key = {(cell["arm"], cell["dataset"], load_of(cell), cell["repetition"]): cell for cell in cells}
        arms = {ArmKey(cell["arm"], cell["system"], cell["k"]) for cell in cells}
        self.arms = sorted(arms, key=lambda arm: (_place(arm.system), arm.system, arm.k or 0))
        self.data_sets = list(dict.fromkeys(cell["dataset"] for cell in cells))
        self.loads = sorted({load_of(cell) for cell in cells}, key=lambda name: (name[0], float(name[1:])))
        self.repetitions = sorted({cell["repetition"] for cell in cells})

    def arms_of(self, system: str) -> list[ArmKey]:
        """The arms of one system, by K."""
        return [arm for arm in self.arms if arm.system == system]

    def figure(self, arm: str, data_set: str, load: str, name: str) -> Spread | None:
        """Return a figure over the repetitions in which it is known."""
        cells = (self._by_key.get((arm, data_set, load, repetition)) for repetition in self.repetitions)
        return spread([cell[name] for cell in cells if cell is not None and cell.get(name) is not None])

    def ratio(self, arm: str, other: str, data_set: str, load: str, name: str = RATE) -> Spread | None:
        """Return a figure of `arm` over that of `other`, within each repetition that has both."""
        ratios = []
        for repetition in self.repetitions:
            value = self._by_key.get((arm, data_set, load, repetition), {}).get(name)
            other_value = self._by_key.get((other, data_set, load, repetition), {}).get(name)
            if value is not None and other_value:
                ratios.append(value / other_value)
        return spread(ratios)

    def best(self, arms: Sequence[ArmKey], data_set: str, load: str) -> ArmKey | None:
        """Return the arm with the highest median throughput."""
        known = [(rate.median, arm) for arm in arms if (rate := self.figure(arm.name, data_set, load, RATE))]
        return max(known)[1] if known else None

    def over_best(self, arms: Sequence[ArmKey], others: Sequence[ArmKey], data_set: str, load: str) -> Spread | None:
        """Return the best of `arms` over the best of `others`."""
        best_arm, best_other = self.best(arms, data_set, load), self.best(others, data_set, load)
        return self.ratio(best_arm.name, best_other.name, data_set, load) if best_arm and best_other else None


def load_of(cell: Mapping[str, Any]) -> str:
    """Return `c8` for 8 in flight, `r2.5` for 2.5 a second."""
    return f"c{cell['max_concurrency']}" if cell["max_concurrency"] is not None else f"r{cell['request_rate']:g}"


def load_title(load: str) -> str:
    """Return a load's name in reports."""
    return f"{load[1:]} in flight" if load[0] == "c" else f"{load[1:]} a second"


def _place(system: str) -> int:
    return _ORDER.index(system) if system in _ORDER else len(_ORDER)

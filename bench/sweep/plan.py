"""The cells of a sweep and their order. Pure.

A *system* is a running server: one that the sweep starts, or an endpoint. An *arm* is a system at a K. A *cell* is one
arm at one load with one data set in one repetition. Compared cells are close in time: for each repetition, data set and
load all arms follow one another, and each repetition begins with another arm, so that a machine that becomes slower or
faster affects all arms equally. If only one engine fits on the machine, the engines run one after the other with all of
their cells instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

NO_SPECULATION = "none"
EAGLE_3 = "eagle3"
P_EAGLE = "p-eagle"
ADAPTIVE = "adaptive"
SYSTEMS = (NO_SPECULATION, EAGLE_3, P_EAGLE, ADAPTIVE)
"""The systems that the sweep can start; endpoints with these names have the same roles in the report."""

STEPPED = (EAGLE_3, P_EAGLE)
"""Systems with an arm for each K, if the server allows to set K."""

ROUNDS = 3
"""Least requests of a cell for each one in flight: with fewer, most of a cell is its beginning and end."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """A system at K draft tokens; `k` is `None` when the sweep does not set it. `goal_ms`: a goal on mean TPOT."""

    system: str
    k: int | None = None
    goal_ms: float | None = None

    @property
    def name(self) -> str:
        """`p-eagle-k7`, `adaptive-goal20`, or the system's name alone."""
        goal = "" if self.goal_ms is None else f"-goal{self.goal_ms:g}"
        return self.system + ("" if self.k is None else f"-k{self.k}") + goal


class Load(NamedTuple):
    """A load: requests in flight (closed loop), or requests a second (open loop)."""

    concurrency: int | None = None
    request_rate: float | None = None

    @property
    def name(self) -> str:
        """`c8` or `r2.5`."""
        return f"c{self.concurrency}" if self.concurrency is not None else f"r{self.request_rate:g}"

    def requests(self, at_least: int) -> int:
        """Return the number of requests of a cell: `at_least`, and `ROUNDS` for each in flight."""
        return max(at_least, ROUNDS * (self.concurrency or 1))


class Cell(NamedTuple):
    """One measurement; repetitions count from 1."""

    arm: Arm
    data_set: str
    load: Load
    repetition: int

    @property
    def name(self) -> str:
        """The name of its file, without the suffix."""
        return f"{self.arm.name}__{self.data_set}__{self.load.name}__{self.repetition}"


def plan(
    arms: Sequence[Arm],
    data_sets: Sequence[str],
    loads: Sequence[Load],
    repetitions: int,
    *,
    one_at_a_time: bool = False,
) -> list[Cell]:
    """Return all cells in the order of their measurement."""
    cells = []
    for repetition in range(repetitions):
        if one_at_a_time:
            groups = [list(group) for _, group in groupby(arms, key=lambda arm: arm.system)]
            for group in _turned(groups, repetition, repetitions):
                cells += [
                    Cell(arm, data, load, repetition + 1) for data in data_sets for load in loads for arm in group
                ]
            continue
        for index, (data, load) in enumerate((data, load) for data in data_sets for load in loads):
            turned = _turned(arms, repetition, repetitions)
            # Every other block is reversed, so that no arm always follows the same one.
            ordered = turned if (index + repetition) % 2 == 0 else list(reversed(turned))
            cells += [Cell(arm, data, load, repetition + 1) for arm in ordered]
    return cells


def _turned(items: Sequence[T], repetition: int, repetitions: int) -> list[T]:
    """Return the items rotated, with another first one in each repetition."""
    first = repetition * len(items) // repetitions
    return [*items[first:], *items[:first]]

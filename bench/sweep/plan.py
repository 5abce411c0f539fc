"""What a sweep measures, in which order, and about how long that takes. Pure.

A *system* is a server that runs: one of our own, or an endpoint. An *arm* is a system at a K. A *cell* is one arm at
one load with one data set in one repetition. Cells that are compared stand beside one another in time: for each
repetition, data set and load every arm has its turn, and each repetition begins with another arm, so that a machine
that grows slower or faster treats all alike. Where only one engine fits on the machine, each has its turn with all of
its cells instead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, TypeVar

from specpilot.bench.data.conversation import Conversation

NO_SPECULATION = "none"
EAGLE_3 = "eagle3"
P_EAGLE = "p-eagle"
ADAPTIVE = "adaptive"
SYSTEMS = (NO_SPECULATION, EAGLE_3, P_EAGLE, ADAPTIVE)
"""The systems that the sweep can start itself; endpoints that bear these names have their roles in the report."""

STEPPED = (EAGLE_3, P_EAGLE)
"""Systems that have an arm for each K, where the server lets K be set."""

DEMO_TOKENS_PER_SECOND = 1400.0
DEMO_HALF_AT = 6.4
"""The demo pair on two cores yields `1400 n / (n + 6.4)` output tokens per second with `n` in flight, in the mean over
all arms and data sets: fitted to a sweep of 180 cells in 10 minutes, and to within a third of any one load."""

ROUNDS = 3
"""Conversations of a cell for each one in flight, at least: else most of a cell is its beginning and end."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Arm:
    """A system at K draft tokens; `k` is `None` where nobody sets it."""

    system: str
    k: int | None = None

    @property
    def name(self) -> str:
        """`p-eagle-k7`, or the system's name alone."""
        return self.system if self.k is None else f"{self.system}-k{self.k}"


class Load(NamedTuple):
    """How much is asked at once: conversations in flight (closed loop), or beginning each second (open loop)."""

    concurrency: int | None = None
    request_rate: float | None = None

    @property
    def name(self) -> str:
        """`c8` or `r2.5`."""
        return f"c{self.concurrency}" if self.concurrency is not None else f"r{self.request_rate:g}"


class Cell(NamedTuple):
    """One measurement; repetitions count from 1."""

    arm: Arm
    data_set: str
    load: Load
    repetition: int

    @property
    def name(self) -> str:
        """What its file is called, without the suffix."""
        return f"{self.arm.name}__{self.data_set}__{self.load.name}__{self.repetition}"


def plan(
    arms: Sequence[Arm],
    data_sets: Sequence[str],
    loads: Sequence[Load],
    repetitions: int,
    *,
    one_at_a_time: bool = False,
) -> list[Cell]:
    """Return every cell in the order in which they are measured."""
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
            # every other block runs backwards, so that no arm always follows the same one
            ordered = turned if (index + repetition) % 2 == 0 else list(reversed(turned))
            cells += [Cell(arm, data, load, repetition + 1) for arm in ordered]
    return cells


def conversations_in(load: Load, num_prompts: int, data: Sequence[Conversation]) -> int:
    """Return how many conversations a cell has: `num_prompts` requests in the mean, and `ROUNDS` for each in flight."""
    turns = sum(len(conversation.turns) for conversation in data)
    return max(math.ceil(num_prompts * len(data) / turns), ROUNDS * (load.concurrency or 1))


def expected_s(cell: Cell, conversations: int, turns: float, output_tokens: int, settle_s: float) -> float:
    """Return the seconds that a cell of so many conversations, each of `turns` in the mean, takes.

    They are those of the demo pair on two cores. Elsewhere only the ratio of two cells' seconds means something.
    """
    settled_s = settle_s if cell.arm.system == ADAPTIVE else 0.0
    if cell.load.request_rate is not None:
        return settled_s + conversations / cell.load.request_rate
    in_flight = cell.load.concurrency or 1
    tokens = conversations * turns * output_tokens
    return settled_s + tokens * (in_flight + DEMO_HALF_AT) / (DEMO_TOKENS_PER_SECOND * in_flight)


def _turned(items: Sequence[T], repetition: int, repetitions: int) -> list[T]:
    """Return the items, beginning with another one in each repetition."""
    first = repetition * len(items) // repetitions
    return [*items[first:], *items[:first]]

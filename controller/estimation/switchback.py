"""A switchback experiment between two ways to choose K, the *usual* and the *alternative*, on the same engines.

The control group and canaries are such experiments. Their *units*, engines or pools, alternate in time: time is divided
into windows, and consecutive windows form a block (`Plan`). A unit runs the alternative in one window of each block,
which is drawn at random, and the usual way in the others. So one engine is enough, and both ways run on the same
engines. A window is measured in throughput and in latency, by counters alone (`window_sums`). A block yields

    d = (log measure of the drawn window) - (mean log measure of the other windows nearby)

Nearby are the windows of the same block, up to `NEAR_WINDOWS` on either side of the drawn one. Because the window is
drawn at random, the mean of d is 0 if both ways are equally good; slow drift and slow changes of traffic cancel. (In
blocks of more than four windows the first and last ones are neighbours of fewer windows. Traffic with exactly a block's
period would bias d by up to 5 % of its deviation.) Blocks share no window and are drawn independently, so the d of a
unit are uncorrelated even if the noise is correlated. Hence

    mean(d) +- t(1 - e, B - 1) s(d) / sqrt(B)

is the interval, with error e at each end, for the mean log ratio over B blocks (batch means, paired; Student's t is the
usual approximation of this randomisation test). Sources: Cochran and Cox, Experimental Designs; Bojinov, Simchi-Levi
and Zhao, Design and Analysis of Switchback Experiments, 2023.

The schedule in force, not the draw, determines the K in force. A window counts only if one way was in force throughout.
Only snapshots from `DELIVERED_S` after a window's first tick until its end count, because the schedule may not have
arrived before. Snapshots may come late, and less often than ticks.

Limit: if an open load of short requests keeps an engine busy all the time, tokens per second equal the arrival rate at
any K. Then only latency shows a difference.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from specpilot.controller.estimation.observation import Snapshot
from specpilot.controller.estimation.window_sums import ROUNDING_S, WindowSums, mean
from specpilot.policy.gain import LogGain

NEAR_WINDOWS = 3
"""Largest number of windows on either side with which a drawn one is compared."""

DELIVERED_S = 1.0
"""Seconds after a change of the K in force in which evidence does not count, because the schedule may not have
arrived."""

WINDOW_STEPS = 20.0
"""Least number of steps of a window that counts."""


class Plan(NamedTuple):
    """The windows of an experiment: `windows` in a block, of `window_s` seconds, from `begins_at` (Unix seconds) on.

    The draw is a hash of `seed`, the unit's name and the block's number. So every controller draws the same windows,
    and the draw does not depend on the traffic.
    """

    seed: str
    windows: int
    window_s: float
    begins_at: float = 0.0

    def window(self, at: float) -> int:
        """Return the number of the window at `at` (Unix seconds); the first has the number 0."""
        return math.floor((at - self.begins_at) / self.window_s)

    def window_end(self, at: float) -> float:
        """Return the end of the window at `at`."""
        return self.begins_at + (self.window(at) + 1) * self.window_s

    def is_drawn(self, unit: str, at: float) -> bool:
        """Return whether the window at `at` is the drawn one of its block, for this unit."""
        block, slot = divmod(self.window(at), self.windows)
        return int.from_bytes(sha256(f"{self.seed} {unit} {block}".encode()).digest()[:8]) % self.windows == slot


class Draw(NamedTuple):
    """The engines in a drawn window, and its end in Unix seconds; `None` without such an engine."""

    engines: tuple[str, ...] = ()
    until: float | None = None


class UnitState(NamedTuple):
    """The state of a unit at a tick: its newest snapshot, `None` before the first.

    `seen_at`: the snapshot's end in Unix seconds. `is_drawn`: the alternative was in force until now; `None`: neither
    way was.
    """

    snapshot: Snapshot | None
    seen_at: float
    is_drawn: bool | None


class BlockGain(NamedTuple):
    """The gain of the alternative in one block of a unit; `None` if one of the ways had too little traffic.

    `busy_s`: seconds of steps in the compared windows.
    """

    unit: str
    block: int
    gain: LogGain | None
    busy_s: float


@dataclass(slots=True)
class _Window:
    """A window of a unit, from its first tick (`begun_at`) on. `is_drawn`: as in `UnitState`; `None`: not known yet."""

    index: int
    begun_at: float
    is_drawn: bool | None = None
    is_mixed: bool = False
    is_compared: bool = False
    sums: WindowSums = field(default_factory=WindowSums)

    def note(self, *, is_drawn: bool | None) -> None:
        """Record the way in force at a tick."""
        self.is_mixed |= is_drawn is None or self.is_drawn not in (None, is_drawn)
        self.is_drawn = is_drawn

    def ran(self, *, is_drawn: bool) -> bool:
        """Return whether the alternative, or the usual way, and nothing else was in force."""
        return self.is_drawn is is_drawn and not self.is_mixed


@dataclass(slots=True)
class _Unit:
    """The latest windows of a unit, and the time of its newest snapshot by the snapshot's clock."""

    windows: deque[_Window]
    newest: float = -math.inf


class Switchback:
    """The running blocks of one experiment's units. Times are Unix seconds."""

    def __init__(self) -> None:
        self._units: dict[str, _Unit] = {}
        self._plan: Plan | None = None
        self._ticked_at = -math.inf

    def add_tick(
        self, plan: Plan, units: Mapping[str, UnitState], at: float, weights: Mapping[str, float] | None = None
    ) -> list[BlockGain]:
        """Add a tick at `at` with the present units; return the gains of the blocks that it completes.

        `weights` are the classes'. `at` stands still while Redis does not answer. Then no schedule is published, and
        engines end their windows by themselves, so the K in force is unknown: such a tick adds nothing.
        """
        if at == self._ticked_at:
            return []
        if plan != self._plan:
            self.pause()
            self._plan = plan
        self._ticked_at = at
        self._units = {name: unit for name, unit in self._units.items() if name in units}
        return [gain for name, state in units.items() for gain in self._add(plan, name, state, at, weights)]

    def pause(self) -> None:
        """Begin a time without comparison: drop the running blocks."""
        self._units.clear()

    def _add(
        self, plan: Plan, name: str, state: UnitState, at: float, weights: Mapping[str, float] | None
    ) -> list[BlockGain]:
        unit = self._units.setdefault(name, _Unit(deque(maxlen=2 * NEAR_WINDOWS + 2)))
        windows, index = unit.windows, plan.window(at)
        gains: list[BlockGain] = []
        if windows and index < windows[-1].index:  # the clock was set back
            windows.clear()
            unit.newest = -math.inf
        if not windows or windows[-1].index != index:
            windows.append(_Window(index, at))  # until now the K of the window before was in force
            gains = self._completed(plan, name, windows, weights)
        else:
            windows[-1].note(is_drawn=state.is_drawn)
        if state.snapshot is None or state.snapshot.at <= unit.newest:  # each is added once
            return gains
        unit.newest = state.snapshot.at
        for window in windows:
            late_by_s = state.seen_at - state.snapshot.elapsed_s - window.begun_at - DELIVERED_S
            if window.index == plan.window(state.seen_at) and late_by_s >= -ROUNDING_S:
                window.sums.add(state.snapshot)
        return gains

    def _completed(
        self, plan: Plan, name: str, windows: deque[_Window], weights: Mapping[str, float] | None
    ) -> list[BlockGain]:
        """Return the gain of each drawn window whose neighbours are over; the newest window has just begun."""
        newest, gains = windows[-1].index, []
        for drawn in windows:
            block = drawn.index // plan.windows
            is_over = newest - drawn.index > NEAR_WINDOWS or newest // plan.windows != block
            if drawn.is_compared or not is_over or not drawn.ran(is_drawn=True):
                continue
            drawn.is_compared = True
            others = [
                window
                for window in windows
                if window.index // plan.windows == block
                and abs(window.index - drawn.index) <= NEAR_WINDOWS
                and window.ran(is_drawn=False)
            ]
            if others:
                gains.append(self._gain(name, block, drawn, others, weights))
        return gains

    def _gain(
        self, name: str, block: int, drawn: _Window, others: list[_Window], weights: Mapping[str, float] | None
    ) -> BlockGain:
        alternative = drawn.sums.log_scores(WINDOW_STEPS, weights)
        usual_scores = [scores for window in others if (scores := window.sums.log_scores(WINDOW_STEPS, weights))]
        busy_s = drawn.sums.busy_s + math.fsum(window.sums.busy_s for window in others)
        gain = alternative.minus(mean(usual_scores)) if alternative is not None and usual_scores else None
        return BlockGain(name, block, gain, busy_s)

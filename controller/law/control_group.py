"""The control group: the measured gain of adaptive K over the static K on live traffic, and the fall back on a loss.

A *unit* is an engine. Time is divided into windows of `control_window_s`. In each window a unit runs the static K with
the probability `control_group_ratio` of the policy: these windows are the control group. The draw is a hash of the
unit's name and the window's number. So every controller draws the same windows, and the draw does not depend on the
traffic.

For each window of the control group,

    d = (mean log measure of the unit's adaptive windows nearby) - (log measure of the window)

Nearby are up to `control_near` windows on either side, at least one on each; both sides weigh the same. Because the
window is drawn at random, the mean of d is 0 if adaptive K has no gain, whatever the noise. Slow drift and slow changes
of traffic cancel. The gain is reported with a 95 % interval (Student's t over the newest windows of all units).

There are two measures, computed from counters alone: throughput and latency (`window_sums`). Both are reported; the
measure of the policy's objective decides (`Comparison.measure`). The corrected throughput is reported too, and decides
nothing.

Limit: if an open load of short requests keeps an engine busy all the time, tokens per second equal the arrival rate at
any K. Then only latency shows a difference.

Fall back. Adaptive K is tested after `control_least` windows, then each time there are 40 % more, and from
`control_memory` windows on after every fifth of `control_memory` new windows. The pool falls back to the static K
when a confidence interval with error e / L lies entirely below 0, where L is the number of tests within
`control_memory` windows. By the union bound the error over so many windows is at most e = `fall_back_error`. The
interval does not widen with the age of the control group. A test after every window would cost most of the power. After
a fall back the static K is in force. Drawn windows, now with the probability `fallen_back_ratio`, run the adaptive K;
d keeps its sign. The adaptive K returns when the same test shows a gain. Each change of state resets the count, and so
does a change of the comparison: of the static K, or of the policy's objective and bounds (`set_comparison`).

| state        | outside windows | in a window drawn | next state when               |
|--------------|-----------------|-------------------|-------------------------------|
| adaptive     | adaptive K      | static K          | a test shows a loss           |
| fallen back  | static K        | adaptive K        | a test shows a gain           |

The schedule in force, not the draw, determines which K ran in a window. A window in which both ran does not count. Only
snapshots from `delivered_s` after a window's first tick until its end count. Snapshots may come late, and less often
than ticks; a window has room for at least two (`Tuning.for_snapshots`).
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

from specpilot.controller.estimation.observation import Snapshot
from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.controller.estimation.window_sums import ROUNDING_S, Scores, WindowSums, mean
from specpilot.controller.tuning import Tuning
from specpilot.policy.gain import MEASURES, LogGain
from specpilot.policy.schedule import Objective

_TAIL = 0.025


def is_drawn(unit: str, window: int, ratio: float) -> bool:
    """Return whether window number `window` of the unit is drawn, with probability `ratio`."""
    drawn = int.from_bytes(sha256(f"{unit} {window}".encode()).digest()[:8])
    return drawn < ratio * 2.0**64


def judgements(least: int, memory: int) -> tuple[int, ...]:
    """Return the numbers of windows at which adaptive K is tested, from `least` to `memory`."""
    found = [least]
    while found[-1] < memory:
        found.append(min(memory, math.ceil(1.4 * found[-1])))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a control group: the static K, and the parts of a policy on which the choice of K depends.

    `weights` are the classes'; others have the weight of `default`. `bounds` are the other inputs of the choice.
    """

    static_k: int
    objective: Objective = Objective.THROUGHPUT
    weights: Mapping[str, float] = field(default_factory=dict)
    bounds: tuple[object, ...] = ()

    @property
    def measure(self) -> str:
        """The measure that decides."""
        return "itl" if self.objective is Objective.LATENCY else "throughput"

    @property
    def digest(self) -> str:
        """A short digest, the same in every controller."""
        known = (self.static_k, self.objective.value, sorted(self.weights.items()), self.bounds)
        return sha256(repr(known).encode()).hexdigest()[:16]


class Seen(NamedTuple):
    """The state of a unit at a tick: its newest snapshot (`None` before the first), and the end of that snapshot.

    `seen_at`: the end, in Unix seconds. `is_static`: the static K was in force until now.
    """

    snapshot: Snapshot | None
    seen_at: float
    is_static: bool


@dataclass(slots=True)
class _Window:
    """A window of time, from its first tick (`begun_at`). `is_static`: the static K was in force; `None` if unknown."""

    index: int
    begun_at: float
    is_static: bool | None = None
    is_mixed: bool = False
    sums: WindowSums = field(default_factory=WindowSums)

    def note(self, *, is_static: bool) -> None:
        """Record the K in force at a tick."""
        self.is_mixed |= self.is_static is not None and self.is_static is not is_static
        self.is_static = is_static

    def log_scores(self, fewest_steps: float, weights: Mapping[str, float]) -> Scores | None:
        """Return the logarithms of the measures; `None` with too few steps, or if both K were in force."""
        is_one_k = self.is_static is not None and not self.is_mixed
        return self.sums.log_scores(fewest_steps, weights) if is_one_k else None


@dataclass(slots=True)
class _Unit:
    """The latest windows of a unit, and the end of its newest snapshot."""

    windows: deque[_Window]
    seen_at: float = -math.inf


class ControlGroup:
    """The control group of one pool. Times are Unix seconds."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._near = tuning.control_near
        self._units: dict[str, _Unit] = {}
        self._ticked_at = -math.inf
        self._gains: deque[Scores] = deque(maxlen=tuning.control_memory)
        self._judgements = judgements(tuning.control_least, tuning.control_memory)
        self._taken = 0  # compared windows since the last reset
        self._comparison: Comparison | None = None
        self._lost_comparison = ""  # digest of the comparison by which the pool fell back under the last leader
        self.has_lost = False

    def drawn(self, units: Iterable[str], at: float, ratio: float) -> tuple[str, ...]:
        """Return which of the units are in a drawn window at `at`, in order."""
        share = self._tuning.fallen_back_ratio if self.has_lost and ratio > 0 else ratio
        return tuple(unit for unit in sorted(units) if is_drawn(unit, self._index(at), share))

    def window_end(self, at: float) -> float:
        """Return the end of the window at `at`."""
        return (self._index(at) + 1) * self._tuning.control_window_s

    def set_comparison(self, comparison: Comparison) -> None:
        """Set the comparison; a change resets the count."""
        if comparison != self._comparison:
            self.reset()
            self._comparison = comparison
            self.has_lost = comparison.digest == self._lost_comparison
            self._lost_comparison = ""

    def resume(self, digest: str) -> None:
        """Take over a pool that fell back under the last leader, by the comparison with this `digest`.

        If this controller's own windows, compared in stand-by, show a gain of adaptive K, the pool does not fall back.
        """
        if self._comparison is None:
            self._lost_comparison = digest
        elif digest == self._comparison.digest and not self.has_lost and not self._is_found_to_gain():
            self.reset()
            self.has_lost = True

    def take(self, seen: Mapping[str, Seen], at: float) -> list[LogGain]:
        """Add a tick at `at` with the present units; return d, in each measure, of each window that it compares.

        `at` stands still while Redis does not answer. Then no schedule is published, and engines end their windows by
        themselves, so the K in force is unknown: such a tick adds nothing.
        """
        if at == self._ticked_at:
            return []
        self._ticked_at = at
        self._units = {name: unit for name, unit in self._units.items() if name in seen}
        gains = [self._take(name, newest, at) for name, newest in seen.items()]
        return [gain for gain in gains if gain is not None]

    def _take(self, name: str, seen: Seen, at: float) -> LogGain | None:
        unit = self._units.setdefault(name, _Unit(deque(maxlen=2 * self._near + 2)))
        windows, index, gain = unit.windows, self._index(at), None
        if windows and index < windows[-1].index:  # the clock was set back
            windows.clear()
            unit.seen_at = -math.inf
        if not windows or windows[-1].index != index:
            windows.append(_Window(index, at))  # until now the K of the window before was in force
            gain = self._gain_of_middle(windows)
        else:
            windows[-1].note(is_static=seen.is_static)
        if seen.snapshot is None or seen.seen_at <= unit.seen_at:
            return gain
        unit.seen_at = seen.seen_at
        for window in windows:
            late_by_s = seen.seen_at - seen.snapshot.elapsed_s - window.begun_at - self._tuning.delivered_s
            if window.index == self._index(seen.seen_at) and late_by_s >= -ROUNDING_S:
                window.sums.take(seen.snapshot)
        return gain

    def pause(self) -> None:
        """Begin a time without comparison; the gains so far stay."""
        self._units.clear()

    def reset(self) -> None:
        """Drop all gains and windows, after a change of the comparison."""
        self.pause()
        self._gains.clear()
        self._taken = 0
        self.has_lost = False

    def described(self) -> dict[str, Any]:
        """Return the state and the gains, ready for JSON; a gain is `None` while windows are too few.

        `measure` is the measure that decides, `gain_ratio` the gain in it.
        """
        is_told = len(self._gains) >= self._tuning.control_least
        gains = {name: interval(self._gains_in(name), _TAIL).ratios() if is_told else None for name in MEASURES}
        corrected = interval([gain.corrected for gain in self._gains], _TAIL).ratios() if is_told else None
        return {
            "windows": len(self._gains),
            "has_lost": self.has_lost or bool(self._lost_comparison),
            "compared": self._comparison.digest if self._comparison else self._lost_comparison or None,
            "measure": self._measure,
            "gain_ratio": gains[self._measure],
            **{f"{name}_gain_ratio": found for name, found in gains.items()},
            "corrected_gain_ratio": corrected,
        }

    @property
    def _measure(self) -> str:
        return (self._comparison or Comparison(0)).measure

    def _gains_in(self, measure: str) -> list[float]:
        return [getattr(gain.counted, measure) for gain in self._gains]

    def _index(self, at: float) -> int:
        return math.floor(at / self._tuning.control_window_s)

    def _gain_of_middle(self, windows: Sequence[_Window]) -> LogGain | None:
        """Return d of a unit's middle window; `None` unless the tried K ran in it, and the usual K on both sides of it.

        The tried K is the static one, after a fall back the adaptive one. The newest window has just begun and is not
        used.
        """
        if len(windows) <= 2 * self._near + 1:
            return None
        middle = windows[self._near]
        tries_static = not self.has_lost
        if middle.is_static is not tries_static:
            return None
        weights, fewest = (self._comparison or Comparison(0)).weights, self._tuning.window_steps
        drawn = middle.log_scores(fewest, weights)
        sides: list[list[Scores]] = [[], []]
        for window in windows:
            scores, away = window.log_scores(fewest, weights), window.index - middle.index
            if scores is not None and window.is_static is not tries_static and abs(away) <= self._near:
                sides[away > 0].append(scores)
        if drawn is None or not all(sides):
            return None
        around, sign = mean([mean(side) for side in sides]), 1 if tries_static else -1
        pairs = zip(around.counted, drawn.counted, strict=True)
        gain = LogGain(*(sign * (other - one) for other, one in pairs))
        self._gains.append(Scores(gain, sign * (around.corrected - drawn.corrected)))
        self._taken += 1
        self._judge()
        return gain

    def _bounds(self) -> Interval:
        """Return the interval of a test; needs at least two windows."""
        return interval(self._gains_in(self._measure), self._tuning.fall_back_error / len(self._judgements))

    def _is_found_to_gain(self) -> bool:
        return len(self._gains) >= self._tuning.control_least and self._bounds().low > 0

    def _judge(self) -> None:
        memory = self._tuning.control_memory
        is_due = self._taken in self._judgements or (self._taken > memory and self._taken % (memory // 5) == 0)
        if not is_due:
            return
        bounds = self._bounds()
        gains, loses = bounds.low > 0, bounds.high < 0
        if gains if self.has_lost else loses:
            self.has_lost = not self.has_lost
            self._gains.clear()
            self._taken = 0
            self.pause()  # drawn windows now run the other K

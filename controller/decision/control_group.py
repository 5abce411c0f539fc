"""The control group: the measured gain of adaptive K over the static K on live traffic, and the fall back on a loss.

It is a switchback experiment (`switchback`) without an end. Its units are engines. In one window of each block, drawn
at random, an engine runs the static K. The policy's `control_group_ratio` is the share of these windows. The gain of
adaptive K is reported in throughput and in latency, with a 95 % interval (Student's t over the newest blocks of all
engines). The measure of the policy's objective decides (`Comparison.measure`).

Fall back. Adaptive K is tested after `LEAST_WINDOWS` drawn windows, then each time there are 40 % more, and from
`MEMORY_WINDOWS` on after each `MEMORY_WINDOWS` / 5 more. A test computes a confidence interval whose two ends have
error e / L each, where L is the number of tests within `MEMORY_WINDOWS` windows. The pool falls back to the static K
when the upper end is below 0. By the union bound the error over so many windows is at most e = `FALL_BACK_ERROR`. L is
fixed, so the interval does not widen as tests accumulate. A test after every window would cost most of the power. After
a fall back the static K is in force. Drawn windows, now with the share `FALLEN_BACK_RATIO`, run the adaptive K. The
adaptive K returns when the same test shows a gain. Each change of state resets the count, and so does a change of the
static K, or of the policy's objective, weights, bounds or SLOs (`set_comparison`).

| state        | outside drawn windows | in a drawn window | next state when       |
|--------------|-----------------------|-------------------|-----------------------|
| adaptive     | adaptive K            | static K          | a test shows a loss   |
| fallen back  | static K              | adaptive K        | a test shows a gain   |
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from specpilot.controller.estimation.switchback import Draw, Plan, Switchback, UnitState
from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.policy.gain import MEASURES, LogGain
from specpilot.policy.schedule import Objective

WINDOW_S = 4.0
"""Length of a window in seconds. The start of a window does not count (`switchback.DELIVERED_S`). In longer windows
this loss is smaller; shorter windows average over more traffic."""

MEMORY_WINDOWS = 100
"""Number of the newest drawn windows that count. At 1 % these are the last 11 hours of a pool of one engine, the last
hour of a pool of eleven."""

LEAST_WINDOWS = 5
"""Least number of drawn windows for an interval."""

FALL_BACK_ERROR = 0.05
"""Probability that an adaptive K without a loss falls back within the first `MEMORY_WINDOWS` drawn windows. Each later
test adds to this probability."""

FALLEN_BACK_RATIO = 0.05
"""Share of the time that a pool which has fallen back runs the adaptive K, to detect that it has become better."""

_TAIL = 0.025
_FEWEST_WINDOWS = 2  # of a block
_LEAST_SHARE = 1e-6  # one window in 46 days


def windows_at_tests(least: int, memory: int) -> tuple[int, ...]:
    """Return the numbers of windows at which adaptive K is tested, from `least` to `memory`."""
    numbers = [least]
    while numbers[-1] < memory:
        numbers.append(min(memory, math.ceil(1.4 * numbers[-1])))
    return tuple(numbers)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of a control group: the static K, and the parts of a policy on which the choice of K depends.

    `weights` are by class; a class not in it has the weight of `default`. `bounds` are the other inputs of the choice.
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
        inputs = (self.static_k, self.objective.value, sorted(self.weights.items()), self.bounds)
        return sha256(repr(inputs).encode()).hexdigest()[:16]


class ControlGroup:
    """The control group of one pool, whose engines are scraped each `scrape_s` seconds. Times are Unix seconds."""

    def __init__(self, scrape_s: float = 0.5) -> None:
        # A window must hold two snapshots that count. Its first tick may be `scrape_s` late, and snapshots count only
        # from DELIVERED_S after it.
        self.window_s = max(WINDOW_S, 4 * scrape_s)
        self._switchback = Switchback()
        self._gains: deque[LogGain] = deque(maxlen=MEMORY_WINDOWS)
        self._windows_at_tests = windows_at_tests(LEAST_WINDOWS, MEMORY_WINDOWS)
        self._compared = 0  # compared windows since the last reset
        self._comparison: Comparison | None = None
        self._lost_comparison = ""  # digest of the comparison by which the pool fell back under the last leader
        self.has_lost = False

    def draw(self, engines: Iterable[str], at: float, ratio: float) -> Draw:
        """Return the engines in a drawn window at `at`, in order; `ratio` is the policy's."""
        plan = self._plan(ratio)
        drawn = tuple(engine for engine in sorted(engines) if plan.is_drawn(engine, at)) if ratio > 0 else ()
        return Draw(drawn, plan.window_end(at)) if drawn else Draw()

    def set_comparison(self, comparison: Comparison) -> None:
        """Set the comparison; a change resets the count and ends a fall back."""
        if comparison != self._comparison:
            self.reset()
            self._comparison = comparison
            self.has_lost = comparison.digest == self._lost_comparison
            self._lost_comparison = ""

    def resume(self, digest: str) -> None:
        """Take over a pool that fell back under the last leader; `digest` names the comparison.

        If this controller's own windows, compared in stand-by, show a gain of adaptive K, the pool does not fall back.
        """
        if self._comparison is None:
            self._lost_comparison = digest
        elif digest == self._comparison.digest and not self.has_lost and not self._shows_a_gain():
            self.reset()
            self.has_lost = True

    def add_tick(self, engines: Mapping[str, UnitState], at: float, ratio: float) -> list[LogGain]:
        """Add a tick at `at` with the present engines; return the gain of each window that it compares.

        A gain has one value for each measure: the logarithm of the ratio of adaptive K to static K. After a fall back,
        when the drawn windows run adaptive K, it is the same ratio.
        """
        weights = (self._comparison or Comparison(0)).weights
        gains = []
        for block in self._switchback.add_tick(self._plan(ratio), engines, at, weights):
            if block.gain is None:
                continue
            gain = block.gain.times(1.0 if self.has_lost else -1.0)  # the alternative is adaptive K, or the static K
            gains.append(gain)
            self._gains.append(gain)
            self._compared += 1
            if self._test():
                break  # the other windows were drawn under the old state
        return gains

    def pause(self) -> None:
        """Begin a time without comparison; the gains so far stay."""
        self._switchback.pause()

    def reset(self) -> None:
        """Drop all gains and windows, and end a fall back."""
        self.pause()
        self._gains.clear()
        self._compared = 0
        self.has_lost = False

    def described(self) -> dict[str, Any]:
        """Return the state and the gains, ready for JSON; a gain is `None` while windows are too few.

        `measure` is the measure that decides, `gain_ratio` the gain in it.
        """
        is_reported = len(self._gains) >= LEAST_WINDOWS
        gains = {name: interval(self._gains_in(name), _TAIL).ratios() if is_reported else None for name in MEASURES}
        return {
            "windows": len(self._gains),
            "has_lost": self.has_lost or bool(self._lost_comparison),
            "compared": self._comparison.digest if self._comparison else self._lost_comparison or None,
            "measure": self._measure,
            "gain_ratio": gains[self._measure],
            **{f"{name}_gain_ratio": gain for name, gain in gains.items()},
        }

    def _plan(self, ratio: float) -> Plan:
        share = FALLEN_BACK_RATIO if self.has_lost else ratio
        windows = max(_FEWEST_WINDOWS, round(1 / max(share, _LEAST_SHARE)))
        return Plan("control group", windows, self.window_s)

    @property
    def _measure(self) -> str:
        return (self._comparison or Comparison(0)).measure

    def _gains_in(self, measure: str) -> list[float]:
        return [getattr(gain, measure) for gain in self._gains]

    def _bounds(self) -> Interval:
        """Return the interval of a test; needs at least two windows."""
        return interval(self._gains_in(self._measure), FALL_BACK_ERROR / len(self._windows_at_tests))

    def _shows_a_gain(self) -> bool:
        return len(self._gains) >= LEAST_WINDOWS and self._bounds().low > 0

    def _test(self) -> bool:
        """Test adaptive K if it is time; return whether the state changed."""
        memory = MEMORY_WINDOWS
        is_due = self._compared in self._windows_at_tests or (
            self._compared > memory and self._compared % (memory // 5) == 0
        )
        if not is_due:
            return False
        bounds = self._bounds()
        gains, loses = bounds.low > 0, bounds.high < 0
        is_changed = gains if self.has_lost else loses
        if is_changed:
            self.has_lost = not self.has_lost
            self._gains.clear()
            self._compared = 0
            self.pause()  # drawn windows now run the other K
        return is_changed

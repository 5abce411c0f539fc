"""The hold-out: what adaptive K gains over the static K, measured on live traffic; and stepping back when it loses.

Time is cut into windows of `hold_out_window_s`. In each, with a probability of the policy's `hold_out_ratio` and drawn
from the names of model and pool and the window's number, the pool runs the static K. So every controller draws alike,
and nothing in traffic can depend on the draw. Of every such window, d is the logarithm of the score of the adaptive
windows near it (up to `hold_out_near` on either side, one on each at least; the mean of their logarithms) over that of
its own. As the window was drawn at random, d has mean 0 if adaptive K gains nothing, whatever the noise; slow drift and
slow changes of traffic cancel. The gain is told with a 95 % interval (Student's t over the newest windows).

There are two scores, throughput and latency (`window_sums`). Both are told; the one that the policy has the law
maximise decides (`Comparison.measure`).

Limit: where short replies that arrive by themselves keep an engine busy all the time, tokens per second are the rate at
which they arrive, whatever K is. Throughput then tells no difference, and latency does.

Stepping back. The law is judged after `hold_out_least` windows and whenever there are two fifths more, from
`hold_out_memory` windows on whenever a fifth of these is new. It is said to lose if the interval whose upper bound errs
with probability e / L lies below 0, where L is how often it is judged within `hold_out_memory` windows: so over as many
windows it errs with probability e = `step_back_error` at most (union bound), and an old hold-out is as sensitive as a
young one. To judge after every window would cost most of the power. From then on the static K is in force, and the
windows drawn, now with `stepped_back_ratio`, run the adaptive K; d is told the same way round. The law is back when the
same test says that it gains. Each change of state begins the count anew, and so does a change of what is compared: the
static K, or what the policy has the law choose by (`compare`).

| state        | outside windows | in a window drawn | next state when               |
|--------------|-----------------|-------------------|-------------------------------|
| adaptive     | adaptive K      | static K          | the law loses: stepped back   |
| stepped back | static K        | adaptive K        | the law gains: adaptive       |

Which K ran is told by the schedule in force, not by the draw: a window in which both were in force does not count. Of a
window count the looks that lie between `delivered_s` after its first tick and its end. Looks may come late and from a
source that is slower than the ticks; windows have room for two of them at least (`Tuning.for_looks`).
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from specpilot.controller.estimation.observation import Look
from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.controller.estimation.window_sums import ROUNDING_S, WindowSums, mean
from specpilot.controller.tuning import Tuning
from specpilot.policy.gain import MEASURES, LogGain
from specpilot.policy.types import Objective

_TAIL = 0.025


def is_drawn(model: str, pool: str, window: int, ratio: float) -> bool:
    """Whether window number `window` is one of the share `ratio` that is drawn."""
    drawn = int.from_bytes(sha256(f"{model} {pool} {window}".encode()).digest()[:8])
    return drawn < ratio * 2.0**64


def judgements(least: int, memory: int) -> tuple[int, ...]:
    """Return after how many windows the law is judged, up to `memory` of them; the first time after `least`."""
    found = [least]
    while found[-1] < memory:
        found.append(min(memory, math.ceil(1.4 * found[-1])))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a hold-out compares: the static K with what a policy has the law choose by.

    `weights` are those of the classes; others have that of `default`. `bounds` is whatever else the choice depends on.
    """

    static_k: int
    objective: Objective = Objective.THROUGHPUT
    weights: Mapping[str, float] = field(default_factory=dict)
    bounds: tuple[object, ...] = ()

    @property
    def measure(self) -> str:
        """Which score decides."""
        return "itl" if self.objective is Objective.LATENCY else "throughput"

    @property
    def digest(self) -> str:
        """A short name of it, the same in every controller."""
        known = (self.static_k, self.objective.value, sorted(self.weights.items()), self.bounds)
        return sha256(repr(known).encode()).hexdigest()[:16]


@dataclass(slots=True)
class _Window:
    """A window of time, from its first tick (`begun_at`). `is_static` is which K was in force, `None` if unknown."""

    index: int
    begun_at: float
    is_static: bool | None = None
    is_mixed: bool = False
    sums: WindowSums = field(default_factory=WindowSums)

    def note(self, *, is_static: bool) -> None:
        """Note which K was in force at a tick."""
        self.is_mixed |= self.is_static is not None and self.is_static is not is_static
        self.is_static = is_static

    def log_scores(self, fewest_steps: float, weights: Mapping[str, float]) -> LogGain | None:
        """Return the logarithms of both scores; `None` where too little ran, or not one K alone."""
        is_one_k = self.is_static is not None and not self.is_mixed
        return self.sums.log_scores(fewest_steps, weights) if is_one_k else None


class HoldOut:
    """The hold-out of one pool. Times are Unix seconds."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._near = tuning.hold_out_near
        self._windows: deque[_Window] = deque(maxlen=2 * self._near + 2)
        self._gains: deque[LogGain] = deque(maxlen=tuning.hold_out_memory)
        self._judgements = judgements(tuning.hold_out_least, tuning.hold_out_memory)
        self._taken = 0  # windows compared since the count began
        self._seen_at = -math.inf
        self._compared: Comparison | None = None
        self._stepped_back_from = ""  # the digest of a comparison that another controller found to lose
        self.is_stepped_back = False

    def is_static_due(self, model: str, pool: str, at: float, ratio: float) -> bool:
        """Whether the static K is due at `at`: in a window drawn, or outside of one if the law stepped back."""
        if ratio <= 0:
            return False
        share = self._tuning.stepped_back_ratio if self.is_stepped_back else ratio
        return is_drawn(model, pool, self._index(at), share) != self.is_stepped_back

    def compare(self, compared: Comparison) -> None:
        """Say what is compared from now on; begin anew where that is another thing than before."""
        if compared != self._compared:
            self.reset()
            self._compared = compared
            self.is_stepped_back = compared.digest == self._stepped_back_from
            self._stepped_back_from = ""

    def resume(self, digest: str) -> None:
        """Take over from a leader which found that the law loses in the comparison of this `digest`.

        What was compared in stand-by goes before that where it shows that the law gains.
        """
        if self._compared is None:
            self._stepped_back_from = digest
        elif digest == self._compared.digest and not self.is_stepped_back and not self._is_found_to_gain():
            self.reset()
            self.is_stepped_back = True

    def take(self, look: Look | None, seen_at: float, at: float, *, is_static: bool) -> LogGain | None:
        """Take in a tick at `at`, until which the static K was in force (`is_static`) or another, and the newest look.

        `look` ended at `seen_at`; `None` before the first. Both times are Unix seconds. Return d by each score, of the
        window that could be compared by this tick; `None` where none could.
        """
        index, compared = self._index(at), None
        if self._windows and index < self._windows[-1].index:  # the clock was set back
            self._windows.clear()
            self._seen_at = -math.inf
        if not self._windows or self._windows[-1].index != index:
            self._windows.append(_Window(index, at))
            compared = self._compare()
        else:
            self._windows[-1].note(is_static=is_static)
        if look is None or seen_at <= self._seen_at:
            return compared
        self._seen_at = seen_at
        for window in self._windows:
            late_by_s = seen_at - look.elapsed_s - window.begun_at - self._tuning.delivered_s
            if window.index == self._index(seen_at) and late_by_s >= -ROUNDING_S:
                window.sums.take(look)
        return compared

    def pause(self) -> None:
        """Let time pass in which nothing is compared; what was found stays."""
        self._windows.clear()

    def reset(self) -> None:
        """Begin anew: what is compared is not what it was."""
        self.pause()
        self._gains.clear()
        self._taken = 0
        self.is_stepped_back = False

    def described(self) -> dict[str, Any]:
        """Return the state and the gains, ready for JSON; a gain is `None` while windows are too few.

        `measure` names the one that decides, `gain_ratio` is that one's.
        """
        is_told = len(self._gains) >= self._tuning.hold_out_least
        gains = {name: interval(self._gains_in(name), _TAIL).ratios() if is_told else None for name in MEASURES}
        return {
            "windows": len(self._gains),
            "is_stepped_back": self.is_stepped_back or bool(self._stepped_back_from),
            "compared": self._compared.digest if self._compared else self._stepped_back_from or None,
            "measure": self._measure,
            "gain_ratio": gains[self._measure],
            **{f"{name}_gain_ratio": found for name, found in gains.items()},
        }

    @property
    def _measure(self) -> str:
        return (self._compared or Comparison(0)).measure

    def _gains_in(self, measure: str) -> list[float]:
        return [getattr(gain, measure) for gain in self._gains]

    def _index(self, at: float) -> int:
        return math.floor(at / self._tuning.hold_out_window_s)

    def _compare(self) -> LogGain | None:
        """Compare the window in the middle, if it is the rare kind, with those around it; return d.

        The newest window has just begun: it is not among them.
        """
        if len(self._windows) <= 2 * self._near + 1:
            return None
        middle = self._windows[self._near]
        is_rare_static = not self.is_stepped_back
        if middle.is_static is not is_rare_static:
            return None
        weights, fewest = (self._compared or Comparison(0)).weights, self._tuning.window_steps
        own = middle.log_scores(fewest, weights)
        sides: list[list[LogGain]] = [[], []]
        for window in self._windows:
            found, away = window.log_scores(fewest, weights), window.index - middle.index
            if found is not None and window.is_static is not is_rare_static and abs(away) <= self._near:
                sides[away > 0].append(found)
        if own is None or not all(sides):
            return None
        near, sign = mean([mean(side) for side in sides]), 1 if is_rare_static else -1
        gain = LogGain(*(sign * (other - one) for other, one in zip(near, own, strict=True)))
        self._gains.append(gain)
        self._taken += 1
        self._judge()
        return gain

    def _bounds(self) -> Interval:
        """Return the interval by which the law is judged, of two windows or more."""
        return interval(self._gains_in(self._measure), self._tuning.step_back_error / len(self._judgements))

    def _is_found_to_gain(self) -> bool:
        return len(self._gains) >= self._tuning.hold_out_least and self._bounds().low > 0

    def _judge(self) -> None:
        memory = self._tuning.hold_out_memory
        is_due = self._taken in self._judgements or (self._taken > memory and self._taken % (memory // 5) == 0)
        if not is_due:
            return
        bounds = self._bounds()
        if bounds.low > 0 if self.is_stepped_back else bounds.high < 0:
            self.is_stepped_back = not self.is_stepped_back
            self._gains.clear()
            self._taken = 0
            self.pause()  # which of the windows before were drawn is the other way round now

"""The hold-out: what adaptive K gains over the static K, measured on live traffic; and stepping back when it loses.

Time is cut into windows of `hold_out_window_s`. In each, with a probability of the policy's `hold_out_ratio` and drawn
from the names of model and pool and the window's number, the pool runs the static K. So every controller draws alike,
and nothing in traffic can depend on the draw. Of every such window, d is the logarithm of the tokens per busy second of
the adaptive windows near it (up to `hold_out_near` on either side, one on each at least; the mean of their logarithms)
over that of its own. As the window was drawn at random, d has mean 0 if adaptive K gains nothing, whatever the noise;
slow drift and slow changes of traffic cancel. The gain is told with a 95 % interval (Student's t over the newest
windows).

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

Which K ran is told by the schedule in force, not by the draw: a window in which both were in force does not count.
"""

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from specpilot.controller.estimation.observation import Window
from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.controller.tuning import Tuning

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


@dataclass(slots=True)
class _Sums:
    """One window of time. `is_static` is which K was in force, `None` before it is known."""

    index: int
    is_static: bool | None = None
    is_mixed: bool = False
    steps: float = 0.0
    tokens: float = 0.0
    busy_s: float = 0.0

    def log_throughput(self, fewest_steps: float) -> float | None:
        if self.is_mixed or self.steps < fewest_steps or self.tokens <= 0 or self.busy_s <= 0:
            return None
        return math.log(self.tokens / self.busy_s)


class HoldOut:
    """The hold-out of one pool. Times are Unix seconds."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._near = tuning.hold_out_near
        self._windows: deque[_Sums] = deque(maxlen=2 * self._near + 1)
        self._gains: deque[float] = deque(maxlen=tuning.hold_out_memory)
        self._judgements = judgements(tuning.hold_out_least, tuning.hold_out_memory)
        self._taken = 0  # windows compared since the count began
        self._seen_at = -math.inf
        self._compared: Hashable = None
        self.is_stepped_back = False

    def is_static_due(self, model: str, pool: str, at: float, ratio: float) -> bool:
        """Whether the static K is due at `at`: in a window drawn, or outside of one if the law stepped back."""
        if ratio <= 0:
            return False
        share = self._tuning.stepped_back_ratio if self.is_stepped_back else ratio
        return is_drawn(model, pool, self._index(at), share) != self.is_stepped_back

    def compare(self, compared: Hashable) -> None:
        """Say what is compared from now on; begin anew where that is another thing than before."""
        if compared != self._compared:
            self.reset()
            self._compared = compared

    def take(self, window: Window | None, at: float, *, is_static: bool) -> float | None:
        """Take in the newest scrape, at `at`, in which the static K was in force (`is_static`) or another.

        Return d of the window that could be compared by this scrape; `None` where none could.
        """
        if window is None or at <= self._seen_at:
            return None
        self._seen_at = at
        index, tuning, compared = self._index(at), self._tuning, None
        if not self._windows or self._windows[-1].index != index:
            self._windows.append(_Sums(index))
            compared = self._compare()
        sums = self._windows[-1]
        if at - window.elapsed_s < index * tuning.hold_out_window_s + tuning.delivered_s:
            return compared  # what was in force before still counted
        sums.is_mixed |= sums.is_static is not None and sums.is_static is not is_static
        sums.is_static = is_static
        sums.steps += window.evidence.steps
        sums.tokens += window.tokens
        sums.busy_s += window.busy_s
        return compared

    def reset(self) -> None:
        """Begin anew: what is compared is not what it was."""
        self._windows.clear()
        self._gains.clear()
        self._taken = 0
        self.is_stepped_back = False

    def gain(self) -> Interval | None:
        """Return the logarithm of what adaptive K gains, with a 95 % interval; `None` while windows are too few."""
        return interval(self._gains, _TAIL) if len(self._gains) >= self._tuning.hold_out_least else None

    def described(self) -> dict[str, Any]:
        """Return the state and the gain, as ratios minus 1, ready for JSON."""
        found = self.gain()
        bounds = found and {"low": found.low, "mean": found.mean, "high": found.high}
        return {
            "windows": len(self._gains),
            "is_stepped_back": self.is_stepped_back,
            "gain_ratio": bounds and {name: math.expm1(min(value, 50.0)) for name, value in bounds.items()},
        }

    def _index(self, at: float) -> int:
        return math.floor(at / self._tuning.hold_out_window_s)

    def _compare(self) -> float | None:
        """Compare the window in the middle, if it is the rare kind, with those around it; return d."""
        if len(self._windows) <= 2 * self._near:
            return None
        middle = self._windows[self._near]
        is_rare_static = not self.is_stepped_back
        if middle.is_static is not is_rare_static:
            return None
        own = middle.log_throughput(self._tuning.hold_out_steps)
        sides: list[list[float]] = [[], []]
        for sums in self._windows:
            found = sums.log_throughput(self._tuning.hold_out_steps)
            if (
                found is not None
                and sums.is_static is not is_rare_static
                and abs(sums.index - middle.index) <= self._near
            ):
                sides[sums.index > middle.index].append(found)
        if own is None or not all(sides):
            return None
        near = sum(sum(side) / len(side) for side in sides) / 2
        gain = near - own if is_rare_static else own - near
        self._gains.append(gain)
        self._taken += 1
        self._judge()
        return gain

    def _judge(self) -> None:
        memory = self._tuning.hold_out_memory
        is_due = self._taken in self._judgements or (self._taken > memory and self._taken % (memory // 5) == 0)
        if not is_due or not self._tuning.guard:
            return
        bounds = interval(self._gains, self._tuning.step_back_error / len(self._judgements))
        if bounds.low > 0 if self.is_stepped_back else bounds.high < 0:
            self.is_stepped_back = not self.is_stepped_back
            self._gains.clear()
            self._taken = 0

"""The margin of a class's latency goal: the outer of two loops, closed by measurement. Pure.

An engine keeps its *predicted mean* inter-token latency below a bound; a goal is about a *measured percentile* over
requests. For each class with a goal g on TPOT (`policy.latency_goal`) the bound is

    b = m g                                                                                             (1)

and its margin m is learned from requests that ended: n of them, M of which missed the goal. For a goal at quantile q

    log m <- log m + c (1 - M / ((1 - q) n)),    limited to [-TIGHTEST_STEP, EASIEST_STEP],             (2)

which is at rest only where the share of misses is 1 - q, whatever the engine, the traffic and the prediction's error:
the stochastic approximation of a quantile (Robbins and Monro, "A stochastic approximation method", 1951), the form of
adaptive conformal inference too (Gibbs and Candès, 2021). For a goal on the mean, with the measured mean t,

    log m <- log m + log(g / t) / 2,    limited in the same way.                                        (3)

K is a whole number, so the share of misses may jump where m crosses a value, and no m gives 1 - q exactly. Therefore a
step is halved after each change of direction, down to `LEAST_SHARE`, and grows again by half in one direction (Kesten,
"Accelerated stochastic approximation", 1958).

A step is taken only from enough evidence: M differs from (1 - q) n by more than `DEVIATIONS` standard deviations of a
binomial plus one request; the mean differs from g by more than `MEAN_BAND`. Otherwise requests are added up, with a
memory of `MEMORY / (1 - q)`. Requests that ran before a step, or while K was fixed, do not count (`latency_goals`).

| where K cannot help                                            | then                                               |
|----------------------------------------------------------------|----------------------------------------------------|
| easing, and no engine is near its bound (`SLACK`)              | m stays: the bound is not what limits K            |
| tightening, and no choice of any engine would keep its bound   | the goal is *unreachable* by K: m rises to 1       |
| tightening, and engines foresaw as many misses (`within_ratio` | m rises to 1: other goals, or throughput, are      |
| of the class's predicted mean)                                 | worth more                                         |

The margin in force is in the schedule: b / g. So the next leader goes on with it, and a goal that changes begins at 1.
A change of load resets nothing: a burst comes back, and after `MEMORY` a dozen misses beyond the allowed ones suffice
for a step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from specpilot.policy.latency_goal import Goal, Slo, within_ratio
from specpilot.policy.schedule import Guidance

LEAST_MARGIN, MOST_MARGIN = 0.3, 3.0

GAIN = 0.08
"""c: about a Newton step for a p95 to p99 whose latencies vary by 10 to 15 % from request to request."""

TIGHTEST_STEP, EASIEST_STEP = 0.10, 0.05
"""Largest step of log m: a goal that is missed is worth more haste than throughput."""

LEAST_SHARE = 0.2
"""Smallest share of a step. A larger value follows a change sooner, a smaller one keeps K quieter."""

DEVIATIONS = 1.0
MEAN_BAND = 0.015
MEMORY = 40.0
LEAST_OF_A_MEAN = 30
"""Requests before the mean is compared."""

SLACK = 1.25
"""The bound limits K if the slowest group is predicted within this factor of it; K is a whole number, so it may be so
far below."""

BROKEN = 1.02
"""The bound is broken if the goal's statistic is predicted beyond this multiple of it, as fast as any K can make it."""

LEAST_FORESEEN = 0.1
"""Smallest share of misses that counts as foreseen. Below, the form of the distribution's tail is not known."""

_DIGITS = 3
_MS = 1000.0


def bound_ms(slo: Slo | None, margin: float) -> float | None:
    """Return the bound on the predicted mean inter-token latency; `None` without a goal on TPOT."""
    goal = slo.tpot if slo is not None else None
    return None if goal is None else round(goal.ms * margin, 6)


def margins_of(guidance: Guidance | None, slos: Mapping[str, Slo]) -> dict[str, float]:
    """Return the margins in force by class, of the classes with one of `slos`; 1 if the goal has changed.

    Guidance with a goal and no bound is of a controller that had another name for it.
    """
    margins = {}
    for name, slo in slos.items():
        if slo.tpot is not None:
            item = guidance.classes.get(name) if guidance is not None else None
            is_same = item is not None and item.slo is not None and item.slo.tpot == slo.tpot
            bound = item.tpot_bound_ms if is_same and item is not None else None
            margins[name] = 1.0 if bound is None else round(bound / slo.tpot.ms, _DIGITS)
    return margins


class Ended(NamedTuple):
    """The requests of a class that ended: how many, how many of them missed the goal, and their TPOT summed (s).

    `predicted_s`: the same sum as it was predicted when they ended; 0: unknown.
    """

    requests: float = 0.0
    missed: float = 0.0
    tpot_s: float = 0.0
    predicted_s: float = 0.0


@dataclass(slots=True)
class Margin:
    """The evidence for one class since its last step.

    `broken_at`: the margin at which no choice kept the bound although requests missed the goal; 0: none.
    """

    goal: Goal
    broken_at: float = 0.0
    count: float = 0.0
    missed: float = 0.0
    tpot_s: float = 0.0
    foreseen: float = 0.0  # misses
    share: float = 1.0  # of a step
    is_easing: bool = False  # the last step

    @property
    def is_unreachable(self) -> bool:
        """Whether K cannot keep the goal: until requests meet it, or a choice keeps the bound that none kept."""
        return self.broken_at > 0

    def step(
        self, margin: float, ended: Ended, predicted_s: Sequence[float], mean_predicted_s: Sequence[float]
    ) -> float:
        """Add requests that ended, and return the margin from now on.

        `predicted_s`: of each engine with such requests the predicted latency of its slowest group; where that exceeds
        the bound, the bound, or the goal's statistic as fast as any K can make it. `mean_predicted_s`: of each such
        engine that of the whole class.
        """
        self.count += ended.requests
        self.missed += ended.missed
        self.tpot_s += ended.tpot_s
        bound_s = self.goal.ms * margin / _MS
        foreseen = 1 - within_ratio(fmean(mean_predicted_s), bound_s) if mean_predicted_s else 0.0
        if foreseen > LEAST_FORESEEN:
            self.foreseen += foreseen * ended.requests
        most = self.foreseen + DEVIATIONS * math.sqrt(self.foreseen) + 1
        is_foreseen = self.goal.statistic.ratio is not None and self.foreseen > 0 and self.missed <= most
        change = self._change()
        is_broken = bool(predicted_s) and min(predicted_s) > BROKEN * bound_s
        if is_broken and change < 0:
            self.broken_at = margin
        elif change > 0 or (predicted_s and not is_broken and (margin <= self.broken_at or self._is_met())):
            self.broken_at = 0.0
        if not change:
            return margin
        self.count = self.missed = self.tpot_s = self.foreseen = 0.0
        if change < 0 and (is_broken or is_foreseen or not predicted_s):
            return max(margin, min(round(margin * math.exp(EASIEST_STEP), _DIGITS), 1.0))
        if change > 0 and max(predicted_s, default=0.0) * SLACK < bound_s:
            return margin
        is_turn = self.is_easing != (change > 0)
        self.share, self.is_easing = min(max(self.share * (0.5 if is_turn else 1.5), LEAST_SHARE), 1.0), change > 0
        return round(min(max(margin * math.exp(change * self.share), LEAST_MARGIN), MOST_MARGIN), _DIGITS)

    def _change(self) -> float:
        """Return the step of log m that the evidence calls for; 0 while it is within noise."""
        count, ratio = self.count, self.goal.statistic.ratio
        if ratio is None:
            if count < LEAST_OF_A_MEAN or not self.tpot_s:
                return 0.0
            error = math.log(self.goal.ms / _MS * count / self.tpot_s)
            self._forget(LEAST_OF_A_MEAN)
            return _limited(error / 2) if abs(error) > MEAN_BAND else 0.0
        allowed = (1 - ratio) * count
        if abs(self.missed - allowed) > DEVIATIONS * math.sqrt(allowed * ratio) + 1:
            return _limited(GAIN * (1 - self.missed / allowed))
        self._forget(MEMORY / (1 - ratio))
        return 0.0

    def _is_met(self) -> bool:
        """Whether as many requests as are remembered meet the goal."""
        ratio = self.goal.statistic.ratio
        if ratio is None:
            return (
                self.count >= LEAST_OF_A_MEAN / 2 and self.tpot_s * _MS <= (1 + MEAN_BAND) * self.goal.ms * self.count
            )
        return self.missed <= (1 - ratio) * self.count >= MEMORY / 2

    def _forget(self, most: float) -> None:
        """Keep half of the evidence if it is of more than `most` requests."""
        if self.count > most:
            self.count, self.missed, self.tpot_s = self.count / 2, self.missed / 2, self.tpot_s / 2
            self.foreseen /= 2


def _limited(change: float) -> float:
    return min(max(change, -TIGHTEST_STEP), EASIEST_STEP)

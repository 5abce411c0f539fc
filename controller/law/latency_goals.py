"""The latency goals of one pool: requests that met them and missed them, and the margins that keep them. Pure.

Attainment is the share of requests within a goal, over `WINDOWS`. The error budget of a percentile at q is the share
1 - q of requests that may miss it; its rest is of the longest window. Requests are counted since this
controller started, or since the goal changed.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from specpilot.controller.estimation.observation import Evidence
from specpilot.controller.law.latency_margin import Ended, Margin
from specpilot.policy.engine_metrics import BEYOND
from specpilot.policy.latency_goal import MEASURES, TPOT, Goal, Slo

WINDOWS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0, "1d": 86400.0}
_PARTS = 60  # of a window; a part is counted or dropped as a whole
_MS = 1000.0


class _Part(NamedTuple):
    begins_at: float
    ended: Ended


def _sum(parts: Sequence[Ended]) -> Ended:
    return Ended(*map(sum, zip(*parts, strict=True))) if parts else Ended()


@dataclass(slots=True)
class _Window:
    """The requests that ended in the last `seconds`."""

    seconds: float
    parts: deque[_Part] = field(default_factory=deque)

    def add(self, ended: Ended, at: float) -> None:
        """Add requests that ended until `at`."""
        if self.parts and at < self.parts[-1].begins_at + self.seconds / _PARTS:
            begins_at, before = self.parts.pop()
            self.parts.append(_Part(begins_at, _sum([before, ended])))
        else:
            self.parts.append(_Part(at, ended))

    def total(self, at: float) -> Ended:
        """Return the sum at `at`."""
        while self.parts and self.parts[0].begins_at <= at - self.seconds:
            self.parts.popleft()
        return _sum([part.ended for part in self.parts])


@dataclass(slots=True)
class _Record:
    """One goal of a class: its requests by window, those that its margin has not seen, and its margin (TPOT only)."""

    goal: Goal
    margin: Margin | None
    windows: dict[str, _Window] = field(
        default_factory=lambda: {name: _Window(seconds) for name, seconds in WINDOWS.items()}
    )
    unseen: Ended = field(default_factory=Ended)

    def add(self, ended: Ended, at: float) -> None:
        """Add requests that ended."""
        self.unseen = _sum([self.unseen, ended])
        for window in self.windows.values():
            window.add(ended, at)

    def described(self, at: float, margin: float) -> dict[str, Any]:
        """Return the goal and what was measured, ready for JSON; unknown shares are `None`."""
        totals = {name: window.total(at) for name, window in self.windows.items()}
        attained = {name: 1 - item.missed / item.requests if item.requests else None for name, item in totals.items()}
        longest, recent = attained["1d"], totals["5m"]
        ratio = self.goal.statistic.ratio
        facts: dict[str, Any] = {
            "statistic": self.goal.statistic.value,
            "goal_ms": self.goal.ms,
            "target_ratio": ratio,
            "attained_ratio": attained,
            "budget_left_ratio": None if longest is None or ratio is None else 1 - (1 - longest) / (1 - ratio),
            "mean_ms": recent.tpot_s / recent.requests * _MS if recent.requests else None,
        }
        if self.margin is not None:
            facts |= {"margin": margin, "is_unreachable": self.margin.is_unreachable}
        return facts


class LatencyGoals:
    """The goals of one pool by class and measure."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], _Record] = {}

    def keep(self, slos: Mapping[str, Slo]) -> None:
        """Follow the goals of the policy in force; one that is new or has changed begins without evidence."""
        goals = {(name, measure): goal for name, slo in slos.items() for measure, goal in slo.goals.items()}
        for key in [key for key, record in self._records.items() if goals.get(key) != record.goal]:
            del self._records[key]
        for key, goal in goals.items():
            if key not in self._records:
                self._records[key] = _Record(goal, Margin(goal) if key[1] == TPOT else None)

    def add(self, evidence: Evidence, at: float) -> None:
        """Add the requests that ended between two scrapes of the pool; `at` is the time of the second."""
        counts: Counter[tuple[str, str]] = Counter()
        for (name, measure, _), count in evidence.slo_requests.items():
            counts[name, measure] += count  # type: ignore[assignment]
        for key, count in counts.items():
            if key in self._records:
                missed = evidence.slo_requests.get((*key, BEYOND), 0.0)
                self._records[key].add(Ended(count, missed, evidence.slo_seconds.get(key, 0.0)), at)

    def margins(self, margins: Mapping[str, float], engines: Sequence[Evidence]) -> dict[str, float]:
        """Return the margins from now on; `margins` are in force, `engines` the newest evidence of each engine."""
        changed = dict(margins)
        for (name, _), record in self._records.items():
            if record.margin is not None:
                running = sum(item.running.get(name, 0.0) for item in engines)
                busy = [item for item in engines if item.running.get(name)]  # an idle one shows its last prediction
                predicted = [item.slo_predicted[name] for item in busy if name in item.slo_predicted]
                changed[name] = record.margin.step(margins[name], record.unseen, running, predicted)
                record.unseen = Ended()
        return changed

    def skip(self) -> None:
        """Drop the requests that ended while K was fixed: they say nothing about the margins."""
        for record in self._records.values():
            record.unseen = Ended()

    def described(self, at: float, margins: Mapping[str, float]) -> dict[str, Any]:
        """Return the goals by class and measure with what was measured, ready for JSON."""
        goals: dict[str, dict[str, Any]] = {}
        for measure in MEASURES:
            for (name, of), record in self._records.items():
                if of == measure:
                    goals.setdefault(name, {})[measure] = record.described(at, margins.get(name, 1.0))
        return goals

"""The latency goals of one pool: requests that met them and missed them, and the margins that keep them. Pure.

Attainment is the share of requests within a goal, over `WINDOWS`. The error budget of a percentile at q is the share
1 - q of requests that may miss it; its rest is of the longest window. Requests are counted since this
controller started, or since the goal changed. An engine counts by the goal in the guidance that it follows, so requests
that ran under a canary's other goal do not count.

Margins learn from requests that ran by the present margin and the law's K. When the margin moves, and while K is fixed,
the next ones to end at an engine are passed by: half as many again as run, and fewer when fewer run.

The forecast's error is the measured mean TPOT over the predicted one, less 1, of the requests from which margins learn.
"""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from specpilot.controller.decision.latency_margin import Ended, Margin
from specpilot.controller.estimation.observation import Evidence, Snapshot
from specpilot.policy.engine_metrics import BEYOND, WITHIN
from specpilot.policy.latency_goal import MEASURES, TPOT, Goal, Slo
from specpilot.policy.schedule import Guidance

PASSED_BY = 1.5
"""Requests that are passed by at an engine, over those that run there. Replies differ in length."""

WINDOWS: Final[Mapping[str, float]] = {"5m": 300.0, "1h": 3600.0, "1d": 86400.0}
_PARTS = 60  # of a window; a part is counted or dropped as a whole
_MS = 1000.0


def _sum(parts: Iterable[Ended]) -> Ended:
    return Ended(*map(sum, zip(*parts, strict=True)))


@dataclass(slots=True)
class _Window:
    """The requests that ended in the last `seconds`; `parts` are sums, and the times at which they begin."""

    seconds: float
    parts: deque[tuple[float, Ended]] = field(default_factory=deque)

    def add(self, ended: Ended, at: float) -> None:
        """Add requests that ended until `at`."""
        if self.parts and at < self.parts[-1][0] + self.seconds / _PARTS:
            begins_at, before = self.parts.pop()
            self.parts.append((begins_at, _sum([before, ended])))
        else:
            self.parts.append((at, ended))

    def total(self, at: float) -> Ended:
        """Return the sum at `at`."""
        while self.parts and self.parts[0][0] <= at - self.seconds:
            self.parts.popleft()
        return _sum([Ended(), *(part for _, part in self.parts)])


@dataclass(slots=True)
class _Record:
    """One goal of a class: its requests by window, those that its margin has not seen, and its margin (TPOT only)."""

    goal: Goal
    margin: Margin | None
    windows: dict[str, _Window] = field(
        default_factory=lambda: {name: _Window(seconds) for name, seconds in WINDOWS.items()}
    )
    forecasts: _Window = field(default_factory=lambda: _Window(WINDOWS["1h"]))
    unseen: Ended = field(default_factory=Ended)

    def learn(self, ended: Ended, predicted_s: float | None, at: float) -> None:
        """Add requests that ran by the law's K, and the predicted mean of their class."""
        self.unseen = _sum([self.unseen, ended])
        if predicted_s is not None:
            self.forecasts.add(ended._replace(predicted_s=predicted_s * ended.requests), at)

    def described(self, at: float, margin: float) -> dict[str, Any]:
        """Return the goal and what was measured, ready for JSON; unknown shares are `None`."""
        totals = {name: window.total(at) for name, window in self.windows.items()}
        attained = {name: 1 - item.missed / item.requests if item.requests else None for name, item in totals.items()}
        means_ms = {name: item.tpot_s / item.requests * _MS if item.requests else None for name, item in totals.items()}
        longest = attained["1d"]
        ratio = self.goal.statistic.ratio
        facts: dict[str, Any] = {
            "statistic": self.goal.statistic.value,
            "goal_ms": self.goal.ms,
            "target_ratio": ratio,
            "attained_ratio": attained,
            "budget_left_ratio": None if longest is None or ratio is None else 1 - (1 - longest) / (1 - ratio),
            "mean_ms": means_ms["5m"],
            "mean_ms_by_window": means_ms,
            "requests_by_window": {name: item.requests for name, item in totals.items()},
        }
        if self.margin is not None:
            forecast = self.forecasts.total(at)
            error = forecast.tpot_s / forecast.predicted_s - 1 if forecast.predicted_s else None
            # Without requests it is no fact: the load at which it was one is gone.
            is_unreachable = self.margin.is_unreachable and totals["5m"].requests > 0
            facts |= {"margin": margin, "is_unreachable": is_unreachable, "forecast_error_ratio": error}
        return facts


@dataclass(slots=True)
class _Engine:
    """What was added of an engine: until when, and by class the requests still to end that move no margin."""

    added_at: float = float("-inf")
    to_pass: dict[str, float] = field(default_factory=dict)


class LatencyGoals:
    """The goals of one pool by class and measure."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], _Record] = {}
        self._engines: dict[str, _Engine] = {}

    def keep(self, slos: Mapping[str, Slo], engines: Container[str]) -> None:
        """Follow the goals of the policy in force; one that is new or has changed begins without evidence."""
        goals = {(name, measure): goal for name, slo in slos.items() for measure, goal in slo.goals.items()}
        self._engines = {name: engine for name, engine in self._engines.items() if name in engines}
        for key in [key for key, record in self._records.items() if goals.get(key) != record.goal]:
            del self._records[key]
        for key, goal in goals.items():
            if key not in self._records:
                self._records[key] = _Record(goal, Margin(goal) if key[1] == TPOT else None)

    def add(self, engine_id: str, snapshot: Snapshot, guidance: Guidance, *, is_chosen: bool) -> None:
        """Add the requests that ended at an engine, by the `guidance` that it followed, once for each snapshot.

        `is_chosen`: engines chose K by the policy in force, unless the guidance has an override.
        """
        engine, (at, _, evidence) = self._engines.setdefault(engine_id, _Engine()), snapshot
        if at <= engine.added_at:
            return
        engine.added_at = at
        is_chosen &= guidance.override is None
        for (name, measure), record in self._records.items():
            followed = guidance.classes.get(name)
            if followed is None or followed.slo is None or followed.slo.goals.get(measure) != record.goal:
                continue
            ended = _ended(evidence, name, measure)
            if ended.requests:
                for window in record.windows.values():
                    window.add(ended, at)
            if record.margin is not None:
                running = PASSED_BY * evidence.running.get(name, 0.0)
                to_pass = min(engine.to_pass.get(name, 0.0), ended.requests + running)
                if is_chosen and to_pass <= 0:
                    record.learn(ended, evidence.slo_mean_predicted.get(name), at)
                engine.to_pass[name] = max(0.0, to_pass - ended.requests) if is_chosen else running

    def margins(self, margins: Mapping[str, float], engines: Mapping[str, Evidence]) -> dict[str, float]:
        """Return the margins from now on; `margins` are in force, `engines` the newest evidence of each engine."""
        changed = dict(margins)
        for (name, _), record in self._records.items():
            if record.margin is None:
                continue
            busy = {key: item for key, item in engines.items() if item.running.get(name)}
            # An idle engine shows its last prediction: that of requests which ended in a burst, but of no later ones.
            served = [*busy.values()] or [item for item in engines.values() if _ended(item, name, TPOT).requests]
            predicted = [item.slo_predicted[name] for item in served if name in item.slo_predicted]
            mean = [item.slo_mean_predicted[name] for item in served if name in item.slo_mean_predicted]
            changed[name] = record.margin.step(margins[name], record.unseen, predicted, mean)
            record.unseen = Ended()
            if changed[name] != margins[name]:
                for key, item in busy.items():
                    self._engines.setdefault(key, _Engine()).to_pass[name] = PASSED_BY * item.running[name]
        return changed

    def described(self, at: float, margins: Mapping[str, float]) -> dict[str, Any]:
        """Return the goals by class and measure with what was measured, ready for JSON."""
        goals: dict[str, dict[str, Any]] = {}
        for measure in MEASURES:
            for (name, of), record in self._records.items():
                if of == measure:
                    goals.setdefault(name, {})[measure] = record.described(at, margins.get(name, 1.0))
        return goals


def _ended(evidence: Evidence, name: str, measure: str) -> Ended:
    counts = [evidence.slo_requests.get((name, measure, result), 0.0) for result in (WITHIN, BEYOND)]
    return Ended(sum(counts), counts[1], evidence.slo_seconds.get((name, measure), 0.0))

"""The largest number of requests that may run at an engine, where no K keeps a latency goal. Pure.

Additive increase, multiplicative decrease (Chiu and Jain, "Analysis of the increase and decrease algorithms for
congestion avoidance", 1989; for concurrency Netflix's concurrency-limits): it follows what requests measured, and
several gateways that hold requests by it come to share the engine.

The requests of a class that ended are judged when they are `LEAST`, and so many that one of them may miss the goal:

| these requests                                               | the limit                                            |
|--------------------------------------------------------------|------------------------------------------------------|
| miss the goal on TPOT, and no K would keep the class's bound | `DECREASE` times the most that ran meanwhile, or     |
|                                                              | times the limit if that is less                      |
| keep it, like those of the other classes                     | one more; none from the most that may run on         |
| miss it and K may still keep the bound, or all else          | stays                                                |

After a decrease as many requests as were running are passed by: they began before it. Requests without a goal do not
judge a limit, so it ends `FORGET_S` after the last request with one, and with the goal.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from specpilot.policy.latency_goal import TPOT, Goal, Slo
from specpilot.policy.names import DEFAULT_CLASS

LEAST = 20
DECREASE = 0.85
FORGET_S = 300.0
"""Seconds without a request that has a goal after which the limit ends: the others would wait for nothing. A class that
is back sooner finds the limit that kept its goal."""

_MS = 1000.0
_ROUNDING = 1e-9


@dataclass(slots=True)
class _Ended:
    requests: int = 0
    missed: int = 0
    seconds: float = 0.0

    def is_enough(self, goal: Goal) -> bool:
        """Whether the requests show if they keep a goal: of fewer, less than one may miss a percentile."""
        ratio = goal.statistic.ratio
        return self.requests >= LEAST and (ratio is None or (1 - ratio) * self.requests >= 1 - _ROUNDING)

    def misses(self, goal: Goal) -> bool:
        """Whether more than noise misses the goal: one standard deviation of a binomial and one request."""
        ratio = goal.statistic.ratio
        if ratio is None:
            return not self.keeps(goal)
        allowed = (1 - ratio) * self.requests
        return self.missed > allowed + math.sqrt(allowed * ratio) + 1

    def keeps(self, goal: Goal) -> bool:
        """Whether no more miss the goal than may."""
        ratio = goal.statistic.ratio
        if ratio is None:
            return self.seconds * _MS <= goal.ms * self.requests
        return self.missed <= (1 - ratio) * self.requests + _ROUNDING


class RunningLimit:
    """The limit of an engine that may run `most` requests; `None`: no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ended: dict[str, _Ended] = {}
        self._to_pass = 0
        self._most_ran = 0  # since requests were judged
        self._is_seen, self._seen_at = False, float("-inf")  # the latest request with a goal
        self.limit: int | None = None

    def drop(self) -> None:
        """End the limit: the policy does not ask for one, or nobody needs it."""
        self._ended.clear()
        self._to_pass = self._most_ran = 0
        self.limit = None

    def add(self, latencies: Iterable[tuple[str, str, float]], slos: Mapping[str, Slo | None]) -> None:
        """Add requests that ended: class, measure and seconds of each latency.

        `slos` are by class; a class that is not in it has that of `default`.
        """
        for stated, measure, seconds in latencies:
            name = stated if stated in slos else DEFAULT_CLASS
            slo = slos.get(name)
            if measure != TPOT or slo is None or slo.tpot is None:
                continue
            self._is_seen = True
            if self._to_pass > 0:
                self._to_pass -= 1
                continue
            ended = self._ended.setdefault(name, _Ended())
            ended.requests += 1
            ended.missed += seconds * _MS > slo.tpot.ms
            ended.seconds += seconds

    def update(
        self, running: Mapping[str, int], slos: Mapping[str, Slo | None], out_of_reach: Collection[str], now: float
    ) -> None:
        """Move the limit by what was added; `running` are decodes by class, `now` is monotonic, in seconds.

        `out_of_reach` are the classes whose bound no K would keep.
        """
        count = sum(running.values())
        self._most_ran = max(self._most_ran, count)
        goals = {name: slo.tpot for name, slo in slos.items() if slo is not None and slo.tpot is not None}
        if self._is_seen or any(running.get(name) for name in goals):
            self._is_seen, self._seen_at = False, now
        elif now - self._seen_at > FORGET_S:
            self.drop()
            return
        judged = {name: self._ended.pop(name) for name, goal in goals.items() if self._is_judged(name, goal)}
        missing = {name for name, ended in judged.items() if ended.misses(goals[name])}
        if not missing.isdisjoint(out_of_reach):
            most = self._most_ran if self.limit is None else min(self.limit, self._most_ran)
            self.limit = max(1, int(DECREASE * most))
            self._to_pass = count
            self._ended.clear()
        elif self.limit is not None and judged and all(ended.keeps(goals[name]) for name, ended in judged.items()):
            self.limit = self.limit + 1 if self.limit + 1 < self._most else None
        if judged:
            self._most_ran = count

    def _is_judged(self, name: str, goal: Goal) -> bool:
        return name in self._ended and self._ended[name].is_enough(goal)

"""The largest number of requests that may run at an engine, where no K keeps a latency goal. Pure.

Additive increase, multiplicative decrease (Chiu and Jain, "Analysis of the increase and decrease algorithms for
congestion avoidance", 1989; for concurrency Netflix's concurrency-limits): it follows what requests measured, and
several gateways that hold requests by it come to share the engine.

Each `LEAST` requests of a class that ended are judged:

| these requests                                               | the limit                                            |
|--------------------------------------------------------------|------------------------------------------------------|
| miss the goal on TPOT, and no K would keep the class's bound | `DECREASE` times the limit, else what runs           |
| keep it, like those of the other classes                     | one more; none from the most that may run on         |
| miss it, and K may still keep the bound                      | stays                                                |

After a decrease as many requests as were running are passed by: they began before it.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from specpilot.policy.latency_goal import TPOT, Goal, Slo

LEAST = 20
DECREASE = 0.85
_MS = 1000.0


@dataclass(slots=True)
class _Ended:
    requests: int = 0
    missed: int = 0
    seconds: float = 0.0

    def misses(self, goal: Goal) -> bool:
        """Whether more than noise misses the goal: one standard deviation of a binomial and one request."""
        ratio = goal.statistic.ratio
        if ratio is None:
            return self.seconds * _MS > goal.ms * self.requests
        allowed = (1 - ratio) * self.requests
        return self.missed > allowed + math.sqrt(allowed * ratio) + 1


class RunningLimit:
    """The limit of an engine that may run `most` requests; `None`: no limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ended: dict[str, _Ended] = {}
        self._to_pass = 0
        self.limit: int | None = None

    def drop(self) -> None:
        """End the limit: the policy does not ask for one."""
        self._ended.clear()
        self.limit = None

    def add(self, latencies: Iterable[tuple[str, str, float]], slos: Mapping[str, Slo | None]) -> None:
        """Add requests that ended: class, measure and seconds of each latency; `slos` are by class."""
        for name, measure, seconds in latencies:
            slo = slos.get(name)
            if measure != TPOT or slo is None or slo.tpot is None:
                continue
            if self._to_pass > 0:
                self._to_pass -= 1
                continue
            ended = self._ended.setdefault(name, _Ended())
            ended.requests += 1
            ended.missed += seconds * _MS > slo.tpot.ms
            ended.seconds += seconds

    def update(self, running: int, slos: Mapping[str, Slo | None], out_of_reach: Collection[str]) -> None:
        """Move the limit by what was added; `out_of_reach` are the classes whose bound no K would keep."""
        judged = {name: ended for name, ended in self._ended.items() if ended.requests >= LEAST}
        missing = {
            name
            for name in judged
            if (slo := slos.get(name)) is not None and slo.tpot is not None and self._ended.pop(name).misses(slo.tpot)
        }
        if not missing.isdisjoint(out_of_reach):
            self.limit = max(1, int(DECREASE * (running if self.limit is None else self.limit)))
            self._to_pass = running
            self._ended.clear()
        elif self.limit is not None and judged and not missing:
            self.limit = self.limit + 1 if self.limit + 1 < self._most else None

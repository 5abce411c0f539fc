"""Measures TTFT and TPOT of each request at the engine (`policy.latency_goal`). Pure: times are arguments.

The scheduler's thread calls `begin` for a request that is scheduled for the first time, `step` when the outcome of a
step has come, `note_first_tokens` after vLLM has processed it, and `end` when a request leaves the engine. So a step
costs time only for requests that wait for their first token. A request that is aborted, as after a stop string, ends
with the last step before. Another thread takes the latencies away.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from specpilot.engine_adapter.plan.request_facts import stated
from specpilot.policy.latency_goal import TPOT, TTFT, Statistic
from specpilot.policy.names import CLASS_LIMIT

_KEPT = 16_384
"""Number of latest latencies that are kept until they are taken: those of some seconds on the fastest engine."""


_NEWEST = 256
"""Requests of a class whose statistics are shown."""

_MS = 1000.0


class Latency(NamedTuple):
    """One latency: the class stated in the request, the measure (`policy.latency_goal.MEASURES`), and its seconds."""

    traffic_class: str
    measure: str
    seconds: float


class Latencies:
    """The latencies of one engine's requests."""

    def __init__(self) -> None:
        self._waiting: dict[str, Any] = {}  # requests without a token, by id
        self._first_at: dict[str, float] = {}  # of the requests with one
        self._stepped_at = self._wall_s = 0.0  # of the latest step, monotonic and Unix seconds
        self._latencies: deque[Latency] = deque(maxlen=_KEPT)
        self._newest: dict[str, deque[float]] = {}  # TPOT by class

    def begin(self, request: Any) -> None:
        """Note a request that is scheduled for the first time, or more input of a session.

        Model runner V2 schedules a request that was preempted like a new one. It has tokens, and goes on.
        """
        if request.num_output_tokens:
            return
        self._waiting[request.request_id] = request
        self._first_at.pop(request.request_id, None)

    def step(self, now: float, wall_s: float) -> None:
        """Note that the outcome of a step has come: monotonic and Unix seconds."""
        self._stepped_at, self._wall_s = now, wall_s

    def note_first_tokens(self) -> None:
        """Measure the TTFT of requests whose first token the latest step delivered."""
        if self._waiting:
            for request in [item for item in self._waiting.values() if item.num_output_tokens]:
                self._note_first_token(request)

    def _note_first_token(self, request: Any) -> None:
        del self._waiting[request.request_id]
        self._first_at[request.request_id] = self._stepped_at
        self._note(request, TTFT, self._wall_s - request.arrival_time)

    def end(self, request: Any) -> None:
        """Measure the TPOT of a request that ends."""
        tokens = request.num_output_tokens
        if request.request_id in self._waiting:
            if tokens:
                self._note_first_token(request)
            else:
                del self._waiting[request.request_id]
        first_at = self._first_at.pop(request.request_id, None)
        if first_at is not None and tokens > 1:
            self._note(request, TPOT, (self._stepped_at - first_at) / (tokens - 1))

    def _note(self, request: Any, measure: str, seconds: float) -> None:
        self._latencies.append(Latency(stated(request).traffic_class, measure, max(0.0, seconds)))

    def take(self) -> list[Latency]:
        """Return the latencies since the last call; any thread may call."""
        latencies = [self._latencies.popleft() for _ in range(len(self._latencies))]
        for name, measure, seconds in latencies:
            if measure == TPOT:
                if name not in self._newest and len(self._newest) >= CLASS_LIMIT:
                    continue  # clients of the engine itself may state any name
                self._newest.setdefault(name, deque(maxlen=_NEWEST)).append(seconds)
        return latencies

    def drop(self) -> None:
        """Drop the latencies since the last call of `take`: those of a calibration."""
        self._latencies.clear()

    def measured_ms(self) -> dict[str, dict[Statistic, float]]:
        """Return by class and statistic the TPOT of the newest requests that ended, in milliseconds."""
        return {name: _statistics(sorted(values)) for name, values in list(self._newest.items())}


def _statistics(ordered: Sequence[float]) -> dict[Statistic, float]:
    mean = sum(ordered) / len(ordered)
    at = {item: math.ceil(item.ratio * len(ordered)) - 1 for item in Statistic if item.ratio is not None}
    return {Statistic.MEAN: _MS * mean} | {item: _MS * ordered[place] for item, place in at.items()}

"""Measures TTFT and TPOT of each request at the engine (`policy.latency_goal`). Pure: times are arguments.

The scheduler's thread calls `begin` for a request that is scheduled for the first time, `step` when the outcome of a
step has come, `note_tokens` after vLLM has processed it, and `end` when a request leaves the engine. So a step costs
time only for requests that wait for their first token, and for the one that has run longest. A request that is aborted,
as after a stop string, ends with the last step before. Another thread takes the latencies away.

The TPOT of a request that runs for longer than `PART_S` is measured in parts: of each such time, and of the rest when
it ends. Otherwise nobody would learn for minutes that long replies miss their goal.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specpilot.engine_adapter.plan.request_facts import stated
from specpilot.policy.latency_goal import TPOT, TTFT, Statistic
from specpilot.policy.names import CLASS_LIMIT

PART_S = 30.0
"""A larger value tells later that long replies are slow; with a smaller one a pause of a second makes a part miss."""

LEAST_OF_A_REST = 16
"""Tokens of a rest that counts: the mean of fewer is noise."""

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


@dataclass(slots=True)
class _Decode:
    """A request that has a first token, `None` once it has ended; its present part counts from a time and a token."""

    request: Any
    began_at: float
    tokens: int = 1


class Latencies:
    """The latencies of one engine's requests."""

    def __init__(self) -> None:
        self._waiting: dict[str, Any] = {}  # requests without a token, by id
        self._decodes: dict[str, _Decode] = {}  # the requests with one
        self._due: deque[tuple[float, _Decode]] = deque()  # when their parts end, in this order
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
        self._leave(request)

    def step(self, now: float, wall_s: float) -> None:
        """Note that the outcome of a step has come: monotonic and Unix seconds."""
        self._stepped_at, self._wall_s = now, wall_s

    def note_tokens(self) -> None:
        """Measure the TTFT of requests whose first token the latest step delivered, and parts that have ended."""
        if self._waiting:
            for request in [item for item in self._waiting.values() if item.num_output_tokens]:
                self._note_first_token(request)
        while self._due and self._due[0][0] <= self._stepped_at:
            _, decode = self._due.popleft()
            if decode.request is not None:
                self._end_part(decode)
                self._due.append((self._stepped_at + PART_S, decode))

    def _note_first_token(self, request: Any) -> None:
        del self._waiting[request.request_id]
        decode = self._decodes[request.request_id] = _Decode(request, self._stepped_at)
        self._due.append((self._stepped_at + PART_S, decode))
        self._note(request, TTFT, self._wall_s - request.arrival_time)

    def _end_part(self, decode: _Decode, least: int = 1) -> None:
        """Measure the TPOT of a part of at least so many tokens, and begin the next."""
        now, tokens = self._stepped_at, decode.request.num_output_tokens
        if tokens - decode.tokens >= least:
            self._note(decode.request, TPOT, (now - decode.began_at) / (tokens - decode.tokens))
            decode.began_at, decode.tokens = now, tokens

    def _leave(self, request: Any) -> None:
        """Let no part of a request be due, and nothing that is due keep the request in memory."""
        decode = self._decodes.pop(request.request_id, None)
        if decode is not None:
            decode.request = None

    def end(self, request: Any) -> None:
        """Measure the TPOT of a request that ends."""
        if request.request_id in self._waiting:
            if request.num_output_tokens:
                self._note_first_token(request)
            else:
                del self._waiting[request.request_id]
        decode = self._decodes.get(request.request_id)
        if decode is not None:
            self._end_part(decode, 1 if decode.tokens == 1 else LEAST_OF_A_REST)
            self._leave(request)

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

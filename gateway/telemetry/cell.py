"""The counts of one model and class in one process, in plain numbers without locks: for the event loop only."""

from typing import Any

from specpilot.gateway.telemetry.families import FAMILIES
from specpilot.gateway.wire.usage import Usage
from specpilot.policy.engine_metrics import BEYOND, WITHIN
from specpilot.policy.latency_goal import TPOT, Slo


class Histogram:
    """Counts per bucket, and a sum; for one thread."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` are the inclusive upper bounds, without infinity."""
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        bounds, at = self.bounds, 0
        while at < len(bounds) and bounds[at] < value:  # compiled, a call of `bisect` takes longer
            at += 1
        self.counts[at] += times
        self.total += value * times

    def numbers(self) -> list[float]:
        """Return the counts of the buckets, then the sum."""
        return [*self.counts, self.total]


class Cell:
    """The counts of one model and class."""

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        self.slo: dict[str, dict[str, int]] = {}  # requests by measure and result
        self.in_flight = 0
        self.ttft = Histogram(FAMILIES["ttft_seconds"].bounds)
        self.itl = Histogram(FAMILIES["itl_seconds"].bounds)
        self.duration = Histogram(FAMILIES["request_duration_seconds"].bounds)
        self.overhead = Histogram(FAMILIES["overhead_seconds"].bounds)
        self.queue = Histogram(FAMILIES["queue_seconds"].bounds)
        self.queued = 0
        self.acceptance_length = Histogram(FAMILIES["acceptance_length"].bounds)
        self.tokens_by_usage = 0
        self.tokens_by_events = 0

    def count(self, status: int, duration_s: float) -> None:
        """A request ended with `status`."""
        self.requests[status] = self.requests.get(status, 0) + 1
        self.duration.observe(duration_s)

    def judge(self, slo: Slo, ttft_s: float | None, tpot_s: float | None) -> None:
        """Count a request by the latency goals of its class; an unknown latency is not counted."""
        for measure, goal in slo.goals.items():
            seconds = tpot_s if measure == TPOT else ttft_s
            if seconds is not None:
                results = self.slo.setdefault(measure, {WITHIN: 0, BEYOND: 0})
                results[WITHIN if seconds <= goal.ms / 1000 else BEYOND] += 1

    def learn(self, usage: Usage, events: int) -> None:
        """A response stated `usage`; if it has no tokens, its events are counted instead."""
        if usage.output_tokens is not None:
            self.tokens_by_usage += usage.output_tokens
        else:
            self.tokens_by_events += events
        if usage.acceptance_length is not None:
            self.acceptance_length.observe(usage.acceptance_length)

    def numbers(self) -> dict[str, Any]:
        """Return every number by its metric's name. Mappings are those of the cell."""
        return {
            "requests": self.requests,
            "slo_requests": self.slo,
            "output_tokens": {"usage": self.tokens_by_usage, "events": self.tokens_by_events},
            "in_flight": self.in_flight,
            "queue_length": self.queued,
            "ttft_seconds": self.ttft.numbers(),
            "itl_seconds": self.itl.numbers(),
            "request_duration_seconds": self.duration.numbers(),
            "overhead_seconds": self.overhead.numbers(),
            "queue_seconds": self.queue.numbers(),
            "acceptance_length": self.acceptance_length.numbers(),
        }

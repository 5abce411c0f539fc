"""The counts of one model and class in one process, in plain numbers without locks: for the event loop only."""

from typing import Final

from specpilot.gateway.wire.usage import Usage
from specpilot.policy.engine_metrics import BEYOND, WITHIN
from specpilot.policy.latency_goal import TPOT, Slo

CELL_NUMBERS: Final[tuple[str, ...]] = (
    *("acceptance_length", "duration", "in_flight", "itl", "overhead", "queue", "queued", "requests", "slo"),
    *("tokens_by_events", "tokens_by_usage", "ttft"),
)
"""The numbers of a `Cell`."""

_SECONDS: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
)  # fmt: skip

_ITL_SECONDS: Final[tuple[float, ...]] = (
    0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip

_OVERHEAD_SECONDS: Final[tuple[float, ...]] = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5,
)  # fmt: skip

_LENGTHS: Final[tuple[float, ...]] = (1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 17.0)


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

    def buckets(self) -> list[tuple[str, float]]:
        """Return Prometheus' cumulative buckets."""
        cumulative = 0
        rows: list[tuple[str, float]] = []
        for bound, count in zip([*map(str, self.bounds), "+Inf"], self.counts, strict=True):
            cumulative += count
            rows.append((bound, float(cumulative)))
        return rows


class Cell:
    """The counts of one model and class."""

    __slots__ = (
        "acceptance_length",
        "duration",
        "in_flight",
        "itl",
        "overhead",
        "queue",
        "queued",
        "requests",
        "slo",
        "tokens_by_events",
        "tokens_by_usage",
        "ttft",
    )

    def __init__(self) -> None:
        self.requests: dict[int, int] = {}
        self.slo: dict[str, dict[str, int]] = {}  # requests by measure and result
        self.in_flight = 0
        self.ttft = Histogram(_SECONDS)
        self.itl = Histogram(_ITL_SECONDS)
        self.duration = Histogram(_SECONDS)
        self.overhead = Histogram(_OVERHEAD_SECONDS)
        self.queue = Histogram(_SECONDS)
        self.queued = 0
        self.acceptance_length = Histogram(_LENGTHS)
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

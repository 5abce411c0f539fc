"""The gateway's counts, and their exposition as Prometheus' text.

Counting happens on the event loop only, in plain numbers without locks: one `Cell` per (model, class), looked up once a
request. The text is made for a scrape, from the tallies of all processes. Labels are bounded: models that an engine
serves and classes that a model has. All other values count under `other`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import orjson
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from specpilot.gateway.telemetry.cell import Cell
from specpilot.gateway.telemetry.families import FAMILIES, PREFIX, Family, total
from specpilot.gateway.wire.usage import Usage
from specpilot.policy.names import OTHER

CELL_LIMIT: Final = 1024
"""Largest number of pairs of model and class, more than any fleet has. Further ones count under `other`."""

KEY_LIMIT: Final = 512
"""Largest number of API keys that one process counts separately. Further ones count under `other`."""

_NAMED: Final = frozenset(("engine_ejected", "key_requests", "key_tokens"))
"""The metrics that name engines (possibly by address) or API keys."""

_OF_PROCESSES: Final = tuple(FAMILIES.keys() - Cell().numbers().keys())
"""The metrics that are not counted by model and class. `GatewayMetrics` has an attribute for each."""


class GatewayMetrics:
    """The counts of one process. Numbers of other objects (`choices`, `spans`, ...) are set before a scrape."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], Cell] = {}
        self.retries = 0
        self.unknown_class = 0
        self.key_requests: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.key_tokens: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.model_routes: defaultdict[str, defaultdict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
        self.refusals: Counter[str] = Counter()
        self.upstream_errors: Counter[str] = Counter()
        self.disconnects: Counter[str] = Counter()
        self.choices: Mapping[str, int] = {}
        self.policy_version: dict[str, int] = {}
        self.snapshot_age_seconds: float | None = None
        self.returned_keys = 0
        self.engine_ejected: dict[str, bool] = {}
        self.log_lines_dropped = 0
        self.spans: dict[str, int] = {}

    def cell(self, model: str, traffic_class: str) -> Cell:
        """Return the cell of `traffic_class` on `model`. Both must be known names or `other`."""
        key = (model, traffic_class)
        cell = self.cells.get(key)
        if cell is None:
            if len(self.cells) >= CELL_LIMIT and key != ("other", "other"):
                return self.cell("other", "other")
            cell = self.cells[key] = Cell()
        return cell

    def count_key(self, key_id: str, status: int, usage: Usage | None, events: int) -> None:
        """A request of API key `key_id` ended with `status`; its response stated `usage`, or had `events`."""
        if key_id not in self.key_requests and len(self.key_requests) >= KEY_LIMIT:
            key_id = OTHER
        self.key_requests[key_id][status] += 1
        if usage is not None:
            tokens = self.key_tokens[key_id]
            tokens["input"] += usage.input_tokens or 0
            tokens["output"] += events if usage.output_tokens is None else usage.output_tokens

    def count_route(self, requested: str, model: str, rule: str) -> None:
        """A request for the name `requested` goes to `model`, by `rule`: split or fallback."""
        self.model_routes[requested][model][rule] += 1

    def count_upstream_error(self, reason: str) -> None:
        """An engine failed."""
        self.upstream_errors[reason] += 1

    def count_refusal(self, kind: str) -> None:
        """A request was rejected for lack of room."""
        self.refusals[kind] += 1

    def count_disconnect(self, phase: str) -> None:
        """A client left before the end of its response."""
        self.disconnects[phase] += 1

    def tally(self) -> bytes:
        """Return every number as it is now, as a tally of `gateway.telemetry.families` in JSON."""
        numbers: dict[str, Any] = {name: getattr(self, name) for name in _OF_PROCESSES}
        for (model, traffic_class), cell in self.cells.items():
            for name, value in cell.numbers().items():
                numbers.setdefault(name, {}).setdefault(model, {})[traffic_class] = value
        return orjson.dumps(numbers, option=orjson.OPT_NON_STR_KEYS)


class _Page(Collector):
    """The metrics of a scrape."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        """Return every metric."""
        return self._metrics


def exposition_of(tallies: bytes, *, is_named: bool = True) -> bytes:
    """Return the metrics of all processes as Prometheus' text. `tallies` is a JSON array of theirs. On any thread.

    Unless it `is_named`, the series that name engines (possibly by address) or API keys are left out.
    """
    numbers = total(orjson.loads(tallies))
    shown = [
        _metric(PREFIX + name, family, numbers[name] if is_named or name not in _NAMED else None)
        for name, family in FAMILIES.items()
    ]
    return generate_latest(_Page(shown))


def _metric(name: str, family: Family, numbers: Any) -> Metric:
    series = _series(numbers, len(family.labels))
    if family.bounds:
        histogram = HistogramMetricFamily(name, family.help, labels=family.labels)
        for labels, (*counts, sum_of_values) in series:
            histogram.add_metric(labels, buckets(family.bounds, counts), sum_of_values)
        return histogram
    kind = CounterMetricFamily if family.gauge is None else GaugeMetricFamily
    metric = kind(name, family.help, labels=family.labels)
    for labels, value in series:
        metric.add_metric(labels, value)
    return metric


def _series(numbers: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each number with the values of its `depth` labels."""
    if numbers is None:
        return
    if not depth:
        yield (), numbers
        return
    for label, within in numbers.items():
        for labels, value in _series(within, depth - 1):
            yield (label, *labels), value


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return Prometheus' cumulative buckets."""
    return list(zip([*map(str, bounds), "+Inf"], map(float, accumulate(counts)), strict=True))

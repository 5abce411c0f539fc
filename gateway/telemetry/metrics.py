"""The gateway's counts, as Prometheus metrics with the prefix `specpilot_gateway_`.

Counting happens on the event loop only, in plain numbers without locks: one `Cell` per (model, class), looked up once a
request. Prometheus objects are made for a scrape. A gateway of several processes adds up their tallies
(`gateway.telemetry.merge`): every number here is a counter unless `GAUGES` names it. Labels are bounded: models that an
engine serves and classes that a model has. All other values count under `other`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from specpilot.gateway.telemetry.cell import CELL_NUMBERS, Cell, Histogram
from specpilot.gateway.telemetry.merge import COUNTERS, LARGEST, LEAST, SUMS, Tally
from specpilot.gateway.wire.usage import Usage
from specpilot.policy.names import OTHER

CELL_LIMIT: Final = 1024
"""Largest number of pairs of model and class, more than any fleet has. Further ones count under `other`."""

KEY_LIMIT: Final = 512
"""Largest number of API keys that one process counts separately. Further ones count under `other`."""

PREFIX: Final = "specpilot_gateway_"
GAUGES: Final = {
    "in_flight": SUMS,
    "queued": SUMS,
    "policy_versions": LEAST,
    "snapshot_age_s": LARGEST,
    "returned_keys": LARGEST,
    "ejected": LARGEST,
}
"""How the workers' gauges are merged: the oldest policy and the oldest snapshot of all workers are shown."""

NUMBERS: Final[tuple[str, ...]] = (
    *("key_requests", "key_tokens", "model_routes"),
    *("retries", "unknown_class", "refusals", "upstream_errors", "disconnects", "choices", "policy_versions"),
    *("snapshot_age_s", "returned_keys", "ejected", "log_lines_dropped", "spans"),
)
"""The numbers of `GatewayMetrics` besides its cells."""


HELP: Final = {
    "requests": "Requests answered, by HTTP status (499: the client left first).",
    "slo_requests": "Streamed requests by whether they met the latency goal of their class.",
    "ttft_seconds": "Seconds from the whole request to the first byte of a streamed body.",
    "itl_seconds": "Seconds between two events of a stream, as read from the engine.",
    "request_duration_seconds": "Seconds from the whole request to the end of its response.",
    "overhead_seconds": "Seconds from the whole request until its bytes are first sent to an engine, without queueing.",
    "output_tokens": "Output tokens delivered; source=usage: as the engine stated, source=events: one per event.",
    "acceptance_length": "Mean acceptance length of a request, bonus token included, as the engine stated.",
    "in_flight": "Requests under way, including those that wait for an engine.",
    "choices": "Engines chosen among several, by the rule that chose.",
    "retries": "Requests sent to a second engine or connection.",
    "upstream_errors": "Engine failures, by reason.",
    "disconnects": "Clients that left before the end, by phase.",
    "refusals": "Requests rejected for lack of room, by kind.",
    "queue_length": "Requests that wait for an engine with room.",
    "queue_seconds": "Waiting times of requests that had to wait for an engine, with or without success.",
    "key_requests": "Requests with an API key that were answered, by key and HTTP status.",
    "key_tokens": "Tokens by API key: input as engines stated it, output as in output_tokens.",
    "model_routes": "Requests for a name that has a model route, by the chosen model and the rule.",
    "unknown_class": "Requests whose header, body or key named a class that the model does not have.",
    "policy_version": "Version of the policy applied to a model; 0: none.",
    "snapshot_age_seconds": "Seconds since Redis was last read; absent without Redis.",
    "returned_keys": "API keys in force that Redis had lacked before: its data went back, and they may be revoked.",
    "engine_ejected": "1 while an engine is ejected because it failed.",
    "spans": "Spans of requests, by outcome; absent without tracing.",
    "log_lines_dropped": "Access log lines dropped because the reader of standard error was too slow.",
}


class GatewayMetrics(Collector):
    """The counts of one process. Numbers of other objects (`choices`, `spans`, ...) are set before a scrape."""

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], Cell] = {}
        self.retries = 0
        self.unknown_class = 0
        self.key_requests: dict[str, dict[int, int]] = {}
        self.key_tokens: dict[str, dict[str, int]] = {}
        self.model_routes: dict[str, dict[str, dict[str, int]]] = {}
        self.refusals: dict[str, int] = {}
        self.upstream_errors: dict[str, int] = {}
        self.disconnects: dict[str, int] = {}
        self.choices: Mapping[str, int] = {}
        self.policy_versions: dict[str, int] = {}
        self.snapshot_age_s: float | None = None
        self.returned_keys = 0
        self.ejected: dict[str, bool] = {}
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
        requests = self.key_requests.get(key_id)
        if requests is None:
            if len(self.key_requests) >= KEY_LIMIT:
                key_id = OTHER
            requests = self.key_requests.setdefault(key_id, {})
        requests[status] = requests.get(status, 0) + 1
        if usage is None:
            return
        tokens = self.key_tokens.get(key_id)
        if tokens is None:
            tokens = self.key_tokens[key_id] = {"input": 0, "output": 0}
        tokens["input"] += usage.input_tokens or 0
        tokens["output"] += events if usage.output_tokens is None else usage.output_tokens

    def count_route(self, requested: str, model: str, rule: str) -> None:
        """A request for the name `requested` goes to `model`, by `rule`: split or fallback."""
        rules = self.model_routes.setdefault(requested, {}).setdefault(model, {})
        rules[rule] = rules.get(rule, 0) + 1

    def count_upstream_error(self, reason: str) -> None:
        """An engine failed."""
        self.upstream_errors[reason] = self.upstream_errors.get(reason, 0) + 1

    def count_refusal(self, kind: str) -> None:
        """A request was rejected for lack of room."""
        self.refusals[kind] = self.refusals.get(kind, 0) + 1

    def count_disconnect(self, phase: str) -> None:
        """A client left before the end of its response."""
        self.disconnects[phase] = self.disconnects.get(phase, 0) + 1

    def tally(self) -> dict[str, Any]:
        """Return a copy of every number, for `gateway.telemetry.merge`."""
        branches: dict[str, Any] = {COUNTERS: {}, SUMS: {}, LARGEST: {}, LEAST: {}}
        for name in NUMBERS:
            value = getattr(self, name)
            if value is not None:
                branches[GAUGES.get(name, COUNTERS)][name] = _plain(value)
        for (model, traffic_class), cell in self.cells.items():
            for name in CELL_NUMBERS:
                cells = branches[GAUGES.get(name, COUNTERS)].setdefault("cells", {})
                cells.setdefault(model, {}).setdefault(traffic_class, {})[name] = _plain(getattr(cell, name))
        return branches

    @classmethod
    def of(cls, tally: Tally) -> Self:
        """Return metrics with the numbers of `tally`, for `collect`. JSON has made its keys text."""
        metrics = cls()
        for values in tally.values():
            for name, value in values.items():
                if name not in ("cells", "key_requests"):
                    setattr(metrics, name, value)
            for key_id, statuses in values.get("key_requests", {}).items():
                metrics.key_requests[key_id] = {int(status): count for status, count in statuses.items()}
            for model, classes in values.get("cells", {}).items():
                for traffic_class, numbers in classes.items():
                    _restore(metrics.cells.setdefault((model, traffic_class), Cell()), numbers)
        return metrics

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family, for Prometheus' registry."""
        yield from self._cell_counters()
        for name, attribute in (
            ("ttft_seconds", "ttft"),
            ("itl_seconds", "itl"),
            ("request_duration_seconds", "duration"),
            ("overhead_seconds", "overhead"),
            ("queue_seconds", "queue"),
            ("acceptance_length", "acceptance_length"),
        ):
            family = HistogramMetricFamily(PREFIX + name, HELP[name], labels=("model", "traffic_class"))
            for key, cell in self.cells.items():
                histogram: Histogram = getattr(cell, attribute)
                family.add_metric(key, histogram.buckets(), histogram.total)
            yield family
        yield self._counter("upstream_errors", "reason", self.upstream_errors)
        yield self._counter("disconnects", "phase", self.disconnects)
        yield self._counter("choices", "rule", self.choices)
        yield self._counter("spans", "outcome", self.spans)
        yield self._counter("refusals", "kind", self.refusals)
        yield from self._key_counters()
        yield self._route_counter()
        for name, count in (
            ("retries", self.retries),
            ("unknown_class", self.unknown_class),
            ("log_lines_dropped", self.log_lines_dropped),
        ):
            yield CounterMetricFamily(PREFIX + name, HELP[name], value=count)
        versions = GaugeMetricFamily(PREFIX + "policy_version", HELP["policy_version"], labels=("model",))
        for model, version in self.policy_versions.items():
            versions.add_metric((model,), version)
        yield versions
        ejected = GaugeMetricFamily(PREFIX + "engine_ejected", HELP["engine_ejected"], labels=("engine",))
        for engine_id, is_ejected in self.ejected.items():
            ejected.add_metric((engine_id,), float(is_ejected))
        yield ejected
        age = GaugeMetricFamily(PREFIX + "snapshot_age_seconds", HELP["snapshot_age_seconds"])
        if self.snapshot_age_s is not None:
            age.add_metric((), self.snapshot_age_s)
        yield age
        yield GaugeMetricFamily(PREFIX + "returned_keys", HELP["returned_keys"], value=self.returned_keys)

    def _cell_counters(self) -> Iterator[Metric]:
        pair = ("model", "traffic_class")
        requests = CounterMetricFamily(PREFIX + "requests", HELP["requests"], labels=(*pair, "status"))
        tokens = CounterMetricFamily(PREFIX + "output_tokens", HELP["output_tokens"], labels=(*pair, "source"))
        goals = CounterMetricFamily(PREFIX + "slo_requests", HELP["slo_requests"], labels=(*pair, "measure", "result"))
        in_flight = GaugeMetricFamily(PREFIX + "in_flight", HELP["in_flight"], labels=pair)
        queued = GaugeMetricFamily(PREFIX + "queue_length", HELP["queue_length"], labels=pair)
        for key, cell in self.cells.items():
            for status, count in cell.requests.items():
                requests.add_metric((*key, str(status)), count)
            for measure, results in cell.slo.items():
                for result, count in results.items():
                    goals.add_metric((*key, measure, result), count)
            tokens.add_metric((*key, "usage"), cell.tokens_by_usage)
            tokens.add_metric((*key, "events"), cell.tokens_by_events)
            in_flight.add_metric(key, cell.in_flight)
            queued.add_metric(key, cell.queued)
        yield from (requests, goals, tokens, in_flight, queued)

    def _key_counters(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(PREFIX + "key_requests", HELP["key_requests"], labels=("key_id", "status"))
        for key_id, statuses in self.key_requests.items():
            for status, count in statuses.items():
                requests.add_metric((key_id, str(status)), count)
        tokens = CounterMetricFamily(PREFIX + "key_tokens", HELP["key_tokens"], labels=("key_id", "direction"))
        for key_id, directions in self.key_tokens.items():
            for direction, count in directions.items():
                tokens.add_metric((key_id, direction), count)
        yield from (requests, tokens)

    def _route_counter(self) -> Metric:
        labels = ("requested_model", "model", "rule")
        family = CounterMetricFamily(PREFIX + "model_routes", HELP["model_routes"], labels=labels)
        for requested, models in self.model_routes.items():
            for model, rules in models.items():
                for rule, count in rules.items():
                    family.add_metric((requested, model, rule), count)
        return family

    def _counter(self, name: str, label: str, counts: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, HELP[name], labels=(label,))
        for value, count in counts.items():
            family.add_metric((value,), count)
        return family


def exposition(metrics: GatewayMetrics) -> bytes:
    """Return `metrics` as Prometheus' text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    return generate_latest(registry)


def exposition_of(tally: Tally, *, is_named: bool = True) -> bytes:
    """Return the metrics in `tally` as Prometheus' text. On any thread.

    Unless it `is_named`, the series that name engines (possibly by address) or API keys are left out.
    """
    metrics = GatewayMetrics.of(tally)
    if not is_named:
        metrics.ejected = {}
        metrics.key_requests = {}
        metrics.key_tokens = {}
    return exposition(metrics)


def _plain(value: Any) -> Any:
    if isinstance(value, Histogram):
        return {"counts": [*value.counts], "total": value.total}
    return {name: _plain(part) for name, part in value.items()} if isinstance(value, dict) else value


def _restore(cell: Cell, numbers: dict[str, Any]) -> None:
    for name, value in numbers.items():
        histogram = getattr(cell, name)
        if isinstance(histogram, Histogram):
            histogram.counts, histogram.total = value["counts"], value["total"]
        elif name == "requests":
            cell.requests = {int(status): count for status, count in value.items()}
        else:
            setattr(cell, name, value)

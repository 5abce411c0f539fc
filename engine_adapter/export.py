"""The adapter's evidence as Prometheus metrics, beside vLLM's own.

The counters are made in the EngineCore process and reach the API server's `/metrics` through prometheus-client's
multiprocess files, so `PROMETHEUS_MULTIPROC_DIR` must name an empty directory before the server starts
(`specpilot engine` sees to it). Gauges report the most recent value of any process.
"""

from prometheus_client import Counter, Gauge

from engine_adapter.measure import CellSums, Evidence
from policy import engine_metrics as names


class MetricsExporter:
    """Adds each batch of evidence to the process's metrics. One per engine process."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._trials = _counter(names.TRIALS, "Draft positions that were put to the test", "position")
        self._accepts = _counter(names.ACCEPTS, "Draft positions that were accepted", "position")
        self._drafts = _counter(names.DRAFTS, "Decodes of one request in one step, by K (0: no speculation)", "k")
        self._probes = _counter(names.PROBES, "Drafts verified deeper than the schedule says")
        self._tokens = _counter(names.DECODE_TOKENS, "Tokens delivered by decodes")
        cell = (names.LABEL_MODEL, *names.CELL_LABELS)
        self._steps = (
            Counter(names.STEPS, "Decode-only steps", cell),
            Counter(names.STEP_SECONDS, "Duration of decode-only steps", cell),
            Counter(names.STEP_DECODES, "Running decodes summed over decode-only steps", cell),
            Counter(names.STEP_VERIFIED, "Verified tokens summed over decode-only steps", cell),
        )
        model_only = (names.LABEL_MODEL,)
        self._prefill_steps = Counter(names.PREFILL_STEPS, "Steps that prefilled", model_only)
        self._prefill_seconds = Counter(names.PREFILL_STEP_SECONDS, "Duration of steps that prefilled", model_only)
        catch_up = (names.LABEL_MODEL, *names.CATCH_UP_LABELS)
        self._catch_ups = (
            Counter(names.CATCH_UP_STEPS, "Decode-only steps in which the drafter also caught up", catch_up),
            Counter(names.CATCH_UP_STEP_SECONDS, "Duration of those steps", catch_up),
            Counter(names.CATCH_UP_STEP_DECODES, "Running decodes summed over those steps", catch_up),
            Counter(names.CATCH_UP_STEP_VERIFIED, "Verified tokens summed over those steps", catch_up),
        )
        self._read = Counter(names.CATCH_UP_STEP_READ, "Positions that the drafter read to catch up", catch_up)
        self._running = _gauge(names.RUNNING_DECODES, "Requests decoding in the latest step", names.LABEL_CLASS)
        self._active_k = _gauge(names.ACTIVE_K, "K that the latest step looked up", names.LABEL_CLASS)
        self._version = _gauge(names.SCHEDULE_VERSION, "Version of the last schedule applied (0: none)")
        self._age = _gauge(names.SCHEDULE_AGE_SECONDS, "Seconds since the last schedule was applied (-1: none)")
        self._backlog = _gauge(names.BACKLOG_TOKENS, "Decoded positions that the drafter has not seen yet")

    def add(self, evidence: Evidence) -> None:
        """Add what `evidence` counted to the counters."""
        model = self._model
        for counter, counts in (
            (self._trials, evidence.trials),
            (self._accepts, evidence.accepts),
            (self._drafts, evidence.drafts),
        ):
            for (traffic_class, number), count in counts.items():
                counter.labels(model, traffic_class, str(number)).inc(count)
        for counter, by_class in ((self._probes, evidence.probes), (self._tokens, evidence.tokens)):
            for traffic_class, count in by_class.items():
                counter.labels(model, traffic_class).inc(count)
        for cell, sums in evidence.cells.items():
            _add_sums(self._steps, (model, *map(str, cell)), sums)
        if evidence.prefill_steps:
            self._prefill_steps.labels(model).inc(evidence.prefill_steps)
            self._prefill_seconds.labels(model).inc(evidence.prefill_seconds)
        for catch_up, sums in evidence.catch_ups.items():
            labels = (model, *map(str, catch_up))
            _add_sums(self._catch_ups, labels, sums)
            self._read.labels(*labels).inc(sums.read)

    def show(
        self, running: dict[str, int], active_k: dict[str, int], backlog: int, version: int, age_s: float | None
    ) -> None:
        """Set the gauges to the latest step's state."""
        model = self._model
        for traffic_class, count in running.items():
            self._running.labels(model, traffic_class).set(count)
        for traffic_class, k in active_k.items():
            self._active_k.labels(model, traffic_class).set(k)
        self._backlog.labels(model).set(backlog)
        self._version.labels(model).set(version)
        self._age.labels(model).set(-1.0 if age_s is None else age_s)


def _add_sums(counters: tuple[Counter, ...], labels: tuple[str, ...], sums: CellSums) -> None:
    for counter, value in zip(counters, (sums.steps, sums.seconds, sums.decodes, sums.verified), strict=True):
        counter.labels(*labels).inc(value)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(name, text, (names.LABEL_MODEL, names.LABEL_CLASS, *labels))


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(name, text, (names.LABEL_MODEL, *labels), multiprocess_mode="mostrecent")

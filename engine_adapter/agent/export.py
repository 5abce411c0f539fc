"""The adapter's evidence as Prometheus metrics, beside vLLM's own.

The counters are made in the EngineCore process and reach the API server's `/metrics` through prometheus-client's
multiprocess files, so `PROMETHEUS_MULTIPROC_DIR` must name an empty directory before the server starts
(`specpilot engine` sees to it). Gauges report the most recent value of any process.
"""

from prometheus_client import Counter, Gauge

from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.policy import engine_metrics as names


class MetricsExporter:
    """Adds each batch of evidence to the process's metrics. One per engine process."""

    def __init__(self, model: str) -> None:
        self._model = model
        group = (names.LABEL_CLASS, names.LABEL_BAND)
        position = (names.LABEL_BAND, names.LABEL_POSITION)
        self._counts = {
            "trials": _counter(names.TRIALS, "Draft positions that were put to the test", *position),
            "accepts": _counter(names.ACCEPTS, "Draft positions that were accepted", *position),
            "drafts": _counter(names.DRAFTS, "Decodes of one request in one step, by K (0: none)", *group, "k"),
            "tokens": _counter(names.DECODE_TOKENS, "Tokens delivered by decodes", *group),
        }
        self._probes = _counter(names.PROBES, "Drafts verified deeper than the schedule says", names.LABEL_CLASS)
        cell = (names.LABEL_MODEL, *names.CELL_LABELS)
        self._steps = {
            "steps": Counter(names.STEPS, "Steps, but for decode-only ones that caught up", cell),
            "seconds": Counter(names.STEP_SECONDS, "Duration of these steps", cell),
            "decodes": Counter(names.STEP_DECODES, "Running decodes summed over these steps", cell),
            "verified": Counter(names.STEP_VERIFIED, "Verified tokens summed over these steps", cell),
            "slots": Counter(names.STEP_SLOTS, "Drafter slots summed over these steps", cell),
            "prefill": Counter(names.STEP_PREFILL, "Prefilled tokens summed over these steps", cell),
            "context": Counter(names.STEP_CONTEXT, "Length of the scheduled sequences summed over these steps", cell),
        }
        catch_up = (names.LABEL_MODEL, *names.CATCH_UP_LABELS)
        self._catch_ups = {
            "steps": Counter(names.CATCH_UP_STEPS, "Decode-only steps in which the drafter also caught up", catch_up),
            "seconds": Counter(names.CATCH_UP_STEP_SECONDS, "Duration of those steps", catch_up),
            "decodes": Counter(names.CATCH_UP_STEP_DECODES, "Running decodes summed over those steps", catch_up),
            "verified": Counter(names.CATCH_UP_STEP_VERIFIED, "Verified tokens summed over those steps", catch_up),
            "slots": Counter(names.CATCH_UP_STEP_SLOTS, "Drafter slots summed over those steps", catch_up),
            "context": Counter(
                names.CATCH_UP_STEP_CONTEXT, "Length of the sequences summed over those steps", catch_up
            ),
            "read": Counter(names.CATCH_UP_STEP_READ, "Positions that the drafter read to catch up", catch_up),
        }
        self._running = _gauge(names.RUNNING_DECODES, "Requests decoding in the latest step", names.LABEL_CLASS)
        self._active_k = _gauge(names.ACTIVE_K, "Mean K of the requests decoding in the latest step", names.LABEL_CLASS)
        self._version = _gauge(names.SCHEDULE_VERSION, "Version of the last schedule applied (0: none)")
        self._age = _gauge(names.SCHEDULE_AGE_SECONDS, "Seconds since the last schedule was applied (-1: none)")
        self._backlog = _gauge(names.BACKLOG_TOKENS, "Decoded positions that the drafter has not seen yet")

    def add(self, evidence: Evidence) -> None:
        """Add what `evidence` counted to the counters."""
        model = self._model
        for name, counter in self._counts.items():
            for labels, count in getattr(evidence, name).items():
                counter.labels(model, *map(str, labels)).inc(count)
        for traffic_class, count in evidence.probes.items():
            self._probes.labels(model, traffic_class).inc(count)
        for counters, cells in ((self._steps, evidence.cells), (self._catch_ups, evidence.catch_ups)):
            for cell, sums in cells.items():
                for name, counter in counters.items():
                    counter.labels(model, *map(str, cell)).inc(getattr(sums, name))

    def show(
        self, running: dict[str, int], active_k: dict[str, float], backlog: int, version: int, age_s: float | None
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


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(name, text, (names.LABEL_MODEL, *labels))


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(name, text, (names.LABEL_MODEL, *labels), multiprocess_mode="mostrecent")

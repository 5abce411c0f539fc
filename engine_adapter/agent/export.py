"""Exports the adapter's evidence as Prometheus metrics, beside vLLM's own.

The EngineCore process writes them as a page of text into a folder that the server's process makes at its start
(`vllm.engine_args`). The API server adds the page to its `/metrics` (`agent.exposition`). If a page cannot be written
(a full disk), this is logged once, and the page is written when that is possible again. Then only the evidence is late.
"""

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from specpilot.engine_adapter.agent.page import COUNTER, GAUGE, Family, Histogram
from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.plan.latencies import Latency
from specpilot.policy import engine_metrics as names
from specpilot.policy.latency_goal import TPOT, TTFT, Slo
from specpilot.policy.names import DEFAULT_CLASS

FOLDER = "SPECPILOT_METRICS_FOLDER"
"""The variable with the folder's name, for the processes of one engine. It is set by the first of them."""

ENDING = ".specpilot"
"""Ending of a page's file name; before it stands the data-parallel rank."""

_ENGINE = (names.LABEL_MODEL, names.LABEL_ENGINE)

_MS = 1000.0

UNCHANGED_EXPORTS = 20
"""Consecutive exports that are skipped if only the schedule's age has changed. So an idle engine writes every 5 s,
because each write is a whole page for the disk."""

TPOT_BOUNDS_S = tuple(0.002 * 1.15**step for step in range(40))
TTFT_BOUNDS_S = tuple(0.01 * 1.3**step for step in range(34))
"""Upper bounds of the buckets: 2 ms to 0.47 s, and 10 ms to 58 s. A quantile of TPOT is exact to 15 %."""

_CLASS = names.LABEL_CLASS
_GROUP, _POSITION = (_CLASS, names.LABEL_BAND), (names.LABEL_BAND, names.LABEL_POSITION)
_BY_EVIDENCE = {
    "trials": (names.TRIALS, "Draft positions that were tried", *_POSITION),
    "accepts": (names.ACCEPTS, "Draft positions that were accepted", *_POSITION),
    "drafts": (names.DRAFTS, "Decodes of one request in one step, by K (0: none)", *_GROUP, "k"),
    "tokens": (names.DECODE_TOKENS, "Tokens delivered by decodes", *_GROUP),
    "unprobed": (names.UNPROBED_DECODES, "Decodes at K = 0 of requests without a verified draft", *_GROUP),
}
"""By the field of the evidence, a counter: its name, its text and its labels."""
_BY_SUM = {
    "steps": (names.STEPS, "Steps, by whether they prefilled or caught up", names.LABEL_KIND),
    "seconds": (names.STEP_SECONDS, "Duration of these steps", names.LABEL_KIND),
    "decodes": (names.STEP_DECODES, "Running decodes summed over these steps", names.LABEL_KIND),
}
"""The same by the field of a kind of steps."""
_BY_MEASURE = {
    TPOT: (names.TPOT_SECONDS, "Time per output token of requests that ended, after their first token", TPOT_BOUNDS_S),
    TTFT: (names.TTFT_SECONDS, "Time from the arrival of a request to its first token", TTFT_BOUNDS_S),
}
"""By the measure of a latency, a histogram."""
_SLO_REQUESTS = "Requests by whether they met the goal in force"
_STATE = (
    (names.DECODE_SECONDS, "Duration of steps with decodes except kind catch_up, without the time of prefilling"),
    (names.SLO_PREDICTED_SECONDS, "Predicted mean inter-token latency of the slowest group of a class", _CLASS),
    (names.SLO_MEAN_PREDICTED_SECONDS, "Predicted mean inter-token latency of a class", _CLASS),
    (names.RUNNING_LIMIT, "Most requests that may run, for a latency goal that no K keeps"),
    (names.RUNNING_DECODES, "Requests decoding in the latest step", _CLASS),
    (names.ACTIVE_K, "Mean K of the requests decoding in the latest step", _CLASS),
    (names.SCHEDULE_VERSION, "Version of the last schedule applied (0: none)"),
    (names.SCHEDULE_AGE_SECONDS, "Seconds since the last schedule was applied (-1: none)"),
    (names.BACKLOG_TOKENS, "Decoded positions that the drafter has not read yet"),
    (names.STATIC_BREAKS_SLO, "1 while the static K is predicted to break an SLO that the law's choice keeps"),
)
"""What the engine's state says at a time."""

State = Mapping[str, Mapping[str, float] | float | None]
"""By the name of a metric its values by class, its only value, or `None`: it is not shown."""

logger = logging.getLogger("vllm.specpilot")


class MetricsExporter:
    """Adds each batch of evidence to the process's metrics. One per engine core, for any of its threads.

    `rank`: its data-parallel rank.
    """

    def __init__(self, model: str, rank: int = 0) -> None:
        self._engine = (model, str(rank))  # the label values of every series
        self._lock = threading.Lock()
        self._written = ""  # the latest page, without the schedule's age
        self._skipped = 0
        self._is_failing = False
        self._file = Path(os.environ[FOLDER], f"{rank}{ENDING}") if os.environ.get(FOLDER) else None
        self._counts = {field: _family(COUNTER, *texts) for field, texts in _BY_EVIDENCE.items()}
        self._probes = _family(COUNTER, names.PROBES, "Verified drafts with more tokens than scheduled", _CLASS)
        self._steps = {field: _family(COUNTER, *texts) for field, texts in _BY_SUM.items()}
        self._histograms = {
            measure: Histogram(name, text, (*_ENGINE, _CLASS), bounds)
            for measure, (name, text, bounds) in _BY_MEASURE.items()
        }
        of_goals = (_CLASS, names.LABEL_MEASURE)
        self._slo_requests = _family(COUNTER, names.SLO_REQUESTS, _SLO_REQUESTS, *of_goals, names.LABEL_RESULT)
        self._slo_s = _family(COUNTER, names.SLO_SECONDS, "Latencies of these requests", *of_goals)
        self._state = {
            texts[0]: _family(COUNTER if texts[0] == names.DECODE_SECONDS else GAUGE, *texts) for texts in _STATE
        }
        self._families: list[Family | Histogram] = [
            *self._counts.values(),
            self._probes,
            *self._steps.values(),
            *self._histograms.values(),
            self._slo_requests,
            self._slo_s,
            *self._state.values(),
        ]

    def add(self, evidence: Evidence, between: Callable[[], None] = lambda: None) -> None:
        """Add the counts of `evidence` to the counters; `between` is called between two parts of the computation."""
        engine = self._engine
        with self._lock:
            for name, counter in self._counts.items():
                for labels, count in getattr(evidence, name).items():
                    counter.add(count, *engine, *map(str, labels))
                    between()
            for traffic_class, count in evidence.probes.items():
                self._probes.add(count, *engine, traffic_class)
            for kind, sums in evidence.steps.items():
                for name, counter in self._steps.items():
                    counter.add(getattr(sums, name), *engine, kind.value)

    def add_latencies(self, latencies: Iterable[Latency], slos: Mapping[str, Slo | None]) -> None:
        """Add the latencies of requests, and count them by the goals of their class; `slos` are by class."""
        by_series: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for name, measure, seconds in latencies:
            by_series[name if name in slos else DEFAULT_CLASS, measure].append(seconds)
        with self._lock:
            for (name, measure), observed in by_series.items():
                self._histograms[measure].observe(observed, *self._engine, name)
                slo = slos.get(name)
                goal = slo.goals.get(measure) if slo is not None else None
                if goal is not None:
                    beyond = sum(seconds > goal.ms / _MS for seconds in observed)
                    self._slo_requests.add(len(observed) - beyond, *self._engine, name, measure, names.WITHIN)
                    self._slo_requests.add(beyond, *self._engine, name, measure, names.BEYOND)
                    self._slo_s.add(sum(observed), *self._engine, name, measure)

    def show(self, state: State) -> None:
        """Show the state of the latest step, in place of what was shown of these metrics."""
        with self._lock:
            for name, value in state.items():
                family = self._state[name]
                family.clear()
                if isinstance(value, Mapping):
                    for traffic_class, of_class in value.items():
                        family.set(of_class, *self._engine, traffic_class)
                elif value is not None:
                    family.set(value, *self._engine)

    def write(self) -> None:
        """Replace the page that the API server reads; rarely if only the schedule's age has changed."""
        with self._lock:
            if self._file is None:
                return
            age = self._state[names.SCHEDULE_AGE_SECONDS]
            text = "".join(family.text() for family in self._families if family is not age)
            if text == self._written and self._skipped < UNCHANGED_EXPORTS:
                self._skipped += 1
                return
            beside = self._file.with_suffix(".new")
            try:
                beside.write_text(text + age.text(), encoding="utf-8")
                beside.replace(self._file)
            except OSError as error:
                if not self._is_failing:
                    logger.warning("SpecPilot: /metrics lacks the evidence until an export succeeds: %s", error)
                self._is_failing = True
                return
            self._written, self._skipped, self._is_failing = text, 0, False

    def remove(self) -> None:
        """Remove the page for good, and the folder if no other engine core has a page in it.

        The server's process, which made the folder, may be ended by a signal before it can remove it.
        """
        with self._lock:
            if self._file is not None:
                with suppress(OSError):
                    self._file.unlink(missing_ok=True)
                    self._file.parent.rmdir()
                self._file = None

    def text(self) -> str:
        """Return the page."""
        with self._lock:
            return "".join(family.text() for family in self._families)


def _family(kind: str, name: str, text: str, *labels: str) -> Family:
    return Family(name, text, kind, (*_ENGINE, *labels))

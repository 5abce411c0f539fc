"""The values of one scrape of an engine, and the differences between two scrapes.

Counters only grow while an engine lives. If one fell, or the start time changed, the engine was restarted, and all
counts are new, as Prometheus' `rate` assumes too. A series that vanished keeps its last value, so that its total is not
counted again when it is back. The first scrape of an engine gives no evidence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

from specpilot.policy import engine_metrics as names
from specpilot.policy.names import DEFAULT_CLASS


class Series(NamedTuple):
    """One time series: the metric's name and its label values in the order of `LABELS`."""

    metric: str
    labels: tuple[str, ...]


_CLASS = (names.LABEL_CLASS,)
_POSITION = (names.LABEL_BAND, names.LABEL_POSITION)
_KIND = (names.LABEL_KIND,)
_MEASURED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    names.TRIALS: ("trials", _POSITION),
    names.ACCEPTS: ("accepts", _POSITION),
    names.DRAFTS: ("drafts", (*_CLASS, names.LABEL_BAND, names.LABEL_K)),
    names.DECODE_TOKENS: ("decode_tokens", (*_CLASS, names.LABEL_BAND)),
    names.STEPS: ("steps_by", _KIND),
    names.STEP_SECONDS: ("seconds_by", _KIND),
    names.DECODE_SECONDS: ("decode_s", ()),
    names.SLO_REQUESTS: ("slo_requests", (*_CLASS, names.LABEL_MEASURE, names.LABEL_RESULT)),
    names.SLO_SECONDS: ("slo_seconds", (*_CLASS, names.LABEL_MEASURE)),
    names.RUNNING_DECODES: ("running", _CLASS),
    names.STATIC_BREAKS_SLO: ("static_breaks_slo", ()),
    names.SLO_PREDICTED_SECONDS: ("slo_predicted", _CLASS),
    names.SLO_MEAN_PREDICTED_SECONDS: ("slo_mean_predicted", _CLASS),
}
"""The metrics that the controller reads: the field of `Evidence`, and the labels that are the key in it."""
LABELS = {name: labels for name, (_, labels) in _MEASURED.items()}
_NUMBERS = (names.LABEL_BAND, names.LABEL_POSITION, names.LABEL_K)
_GAUGES = (
    names.RUNNING_DECODES,
    names.STATIC_BREAKS_SLO,
    names.SLO_PREDICTED_SECONDS,
    names.SLO_MEAN_PREDICTED_SECONDS,
)


@dataclass(frozen=True, slots=True)
class Observation:
    """One successful scrape: cumulative `values` of an engine at `at` (monotonic seconds of the reader)."""

    engine_id: str
    model: str
    pool: str
    at: float
    started_at: float
    values: Mapping[Series, float]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The counts between two scrapes of one engine, or the sums over several engines.

    `trials` and `accepts` are by (band, position), positions from 1; `drafts` by (class, band, K); `decode_tokens` by
    (class, band). `running` are the requests that decode now, by class. `steps_by` and `seconds_by` are the number of
    the steps and their duration, by kind (`engine_metrics`). `decode_s` is the duration of steps with decodes except
    those of kind `catch_up`, without the time of prefilling by the engine's prices. `static_breaks_slo`: the number of
    engines that predict that the static K would break an SLO which their choice keeps.
    `slo_requests` are requests by (class, measure, result), `slo_seconds` their latencies by (class, measure),
    `slo_predicted` the predicted mean inter-token latency of the slowest group by class, of one engine, and
    `slo_mean_predicted` that of the whole class.
    """

    trials: Mapping[tuple[int, int], float] = field(default_factory=dict)
    accepts: Mapping[tuple[int, int], float] = field(default_factory=dict)
    drafts: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    decode_tokens: Mapping[tuple[str, int], float] = field(default_factory=dict)
    running: Mapping[str, float] = field(default_factory=dict)
    steps_by: Mapping[str, float] = field(default_factory=dict)
    seconds_by: Mapping[str, float] = field(default_factory=dict)
    decode_s: float = 0.0
    static_breaks_slo: float = 0.0
    slo_requests: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    slo_seconds: Mapping[tuple[str, str], float] = field(default_factory=dict)
    slo_predicted: Mapping[str, float] = field(default_factory=dict)
    slo_mean_predicted: Mapping[str, float] = field(default_factory=dict)

    @property
    def steps(self) -> float:
        """All steps."""
        return sum(self.steps_by.values())

    @property
    def decode_steps(self) -> float:
        """The steps that had decodes."""
        return self.steps - self.steps_by.get(names.PROMPT, 0.0)

    @property
    def step_seconds(self) -> float:
        """Seconds of all steps."""
        return sum(self.seconds_by.values())

    @property
    def busy_s(self) -> float:
        """Seconds of decoding: steps with decodes without the time of prefilling, and the later catching up."""
        return self.decode_s + self.seconds_by.get(names.CATCH_UP, 0.0) if self.decode_s else 0.0


class Snapshot(NamedTuple):
    """A snapshot: the evidence of the `elapsed_s` seconds before `at`, on the caller's clock."""

    at: float
    elapsed_s: float
    evidence: Evidence

    def weighted_throughput(self, weights: Mapping[str, float]) -> float | None:
        """Return the weighted tokens per second of decoding; `None` without a decode.

        A class that is not in `weights` has the weight of `default`.
        """
        tokens = 0.0
        for (name, _), count in self.evidence.decode_tokens.items():
            tokens += weights.get(name, weights.get(DEFAULT_CLASS, 1.0)) * count
        return tokens / self.evidence.busy_s if min(self.evidence.busy_s, tokens) > 0 else None

    @property
    def step_s(self) -> float | None:
        """The mean duration of a step with decodes, without the time of prefilling; `None` without one."""
        steps = self.evidence.decode_steps
        return self.evidence.busy_s / steps if steps and self.evidence.busy_s else None


class Compared(NamedTuple):
    """The differences between two scrapes of an engine, and the older scrape of the next comparison.

    `gained` has the increase of each counter (series that did not grow are left out) and the value of each gauge.
    `merged` is the newer scrape, plus the last values of the counters that vanished.
    """

    gained: dict[Series, float]
    merged: Observation


def compare(before: Observation | None, after: Observation) -> Compared:
    """Compare two scrapes of an engine.

    Without `before` nothing has grown. In a repeated scrape no counter grows.
    """
    if before is None:
        return Compared({}, after)
    earlier = before.values if after.started_at == before.started_at else {}
    gained: dict[Series, float] = {}
    for series, value in after.values.items():
        old = earlier.get(series, 0.0)
        if series.metric in _GAUGES:
            gained[series] = value
        elif value > old:
            gained[series] = value - old
        elif value < old:  # the engine was restarted
            return compare(replace(before, values={}), after)
    if earlier.keys() <= after.values.keys():
        return Compared(gained, after)
    vanished = {series: value for series, value in earlier.items() if series.metric not in _GAUGES}
    return Compared(gained, replace(after, values={**vanished, **after.values}))


def evidence_of(parts: Iterable[Mapping[Series, float]]) -> Evidence:
    """Return the sum of several engines' changes; malformed label values are skipped."""
    tables: dict[str, Any] = {field: {} for field, _ in _MEASURED.values()}
    for part in parts:
        for series, value in part.items():
            field, key = _place(series)
            if key is not None:
                tables[field][key] = tables[field].get(key, 0.0) + value
    for field in ("decode_s", "static_breaks_slo"):  # they have no labels
        tables[field] = tables[field].get((), 0.0)
    return Evidence(**tables)


@lru_cache(maxsize=1 << 18)
def _place(series: Series) -> tuple[str, Any]:
    """Return the field of `Evidence` for a series, and the key in it; `None` for a malformed label value."""
    field, labels = _MEASURED[series.metric]
    key: list[str | int] = []
    for label, text in zip(labels, series.labels, strict=True):
        if label not in _NUMBERS:
            key.append(text)
        elif text.isdecimal():
            key.append(int(text))
        else:
            return field, None
    return field, key[0] if len(key) == 1 else tuple(key)

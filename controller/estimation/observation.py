"""The values of one scrape of an engine, and the differences between two scrapes.

Counters only grow while an engine lives. If one fell, or the start time changed, the engine was restarted, and all
counts are new, as Prometheus' `rate` assumes too. A series that vanished keeps its last value, so that its total is not
counted again when it is back. The first scrape of an engine gives no evidence.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
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
_GAUGE_METRICS: Mapping[str, tuple[str, ...]] = {
    names.RUNNING_DECODES: _CLASS,
    names.STATIC_BREAKS_SLO: (),
    names.SLO_PREDICTED_SECONDS: _CLASS,
    names.SLO_MEAN_PREDICTED_SECONDS: _CLASS,
}
LABELS: Mapping[str, tuple[str, ...]] = {
    names.TRIALS: _POSITION,
    names.ACCEPTS: _POSITION,
    names.DRAFTS: (names.LABEL_CLASS, names.LABEL_BAND, names.LABEL_K),
    names.DECODE_TOKENS: (names.LABEL_CLASS, names.LABEL_BAND),
    names.STEPS: _KIND,
    names.STEP_SECONDS: _KIND,
    names.STEP_DECODES: _KIND,
    names.DECODE_SECONDS: (),
    names.SLO_REQUESTS: (*_CLASS, names.LABEL_MEASURE, names.LABEL_RESULT),
    names.SLO_SECONDS: (*_CLASS, names.LABEL_MEASURE),
    **_GAUGE_METRICS,
}
"""The metrics that the controller reads, and the labels of their series."""


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
    (class, band). `running` are the requests that decode now, by class. `steps_by`, `seconds_by` and `decodes_by` are
    the number of the steps, their duration and their decodes, by kind (`engine_metrics`). `decode_s` is the duration of
    steps with decodes except those of kind `catch_up`, without the time of prefilling by the engine's prices.
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
    decodes_by: Mapping[str, float] = field(default_factory=dict)
    decode_s: float = 0.0
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
    def drafts_of(self) -> dict[tuple[str, int], float]:
        """Decodes summed over steps, by (class, band)."""
        totals: dict[tuple[str, int], float] = {}
        for (name, band, _), count in self.drafts.items():
            totals[name, band] = totals.get((name, band), 0.0) + count
        return totals

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
        if series.metric in _GAUGE_METRICS:
            gained[series] = value
        elif value > old:
            gained[series] = value - old
        elif value < old:  # the engine was restarted
            return compare(replace(before, values={}), after)
    if earlier.keys() <= after.values.keys():
        return Compared(gained, after)
    vanished = {series: value for series, value in earlier.items() if series.metric not in _GAUGE_METRICS}
    return Compared(gained, replace(after, values={**vanished, **after.values}))


def evidence_of(parts: Iterable[Mapping[Series, float]]) -> Evidence:
    """Return the sum of several engines' changes; malformed label values are skipped."""
    totals: dict[Series, float] = {}
    for part in parts:
        for series, value in part.items():
            totals[series] = totals.get(series, 0.0) + value
    evidence = Evidence(decode_s=totals.get(Series(names.DECODE_SECONDS, ()), 0.0))
    placed: dict[str, tuple[Any, int]] = {  # the target of a metric's series, and its number of text labels
        names.TRIALS: (evidence.trials, 0),
        names.ACCEPTS: (evidence.accepts, 0),
        names.DRAFTS: (evidence.drafts, 1),
        names.DECODE_TOKENS: (evidence.decode_tokens, 1),
        names.RUNNING_DECODES: (evidence.running, 1),
        names.STEPS: (evidence.steps_by, 1),
        names.STEP_SECONDS: (evidence.seconds_by, 1),
        names.STEP_DECODES: (evidence.decodes_by, 1),
        names.SLO_REQUESTS: (evidence.slo_requests, 3),
        names.SLO_SECONDS: (evidence.slo_seconds, 2),
        names.SLO_PREDICTED_SECONDS: (evidence.slo_predicted, 1),
        names.SLO_MEAN_PREDICTED_SECONDS: (evidence.slo_mean_predicted, 1),
    }
    for (metric, labels), value in totals.items():
        if metric in placed:
            table, text = placed[metric]
            if all(label.isdecimal() for label in labels[text:]):
                key = (*labels[:text], *map(int, labels[text:]))
                table[key if len(key) > 1 else key[0]] = value
    return evidence

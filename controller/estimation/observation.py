"""The values of one scrape of an engine, and the differences between two scrapes.

Counters only grow while an engine lives. When one of them fell, or the start time changed, the engine was restarted,
and all its counts are since then, as Prometheus' `rate` assumes too. A series that vanished keeps its last value, so
that its total is not counted again when it is back. The first scrape of an engine gives no evidence except its table of
step times: step times do not age like traffic, and a new controller learns from the table the cost of every K that its
predecessor tried.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from specpilot.policy import engine_metrics as names


class Series(NamedTuple):
    """One time series: the metric's name and its label values in the order of `LABELS`."""

    metric: str
    labels: tuple[str, ...]


class Cell(NamedTuple):
    """The labels of one cell of a table of steps, rounded by the engine; see `engine_metrics`.

    Decode-only steps that also caught up have a table of their own.
    """

    decodes: int
    verified: int
    slots: int
    prefill: int = 0
    catches_up: bool = False


class CellSums(NamedTuple):
    """Sums over the steps of a cell: their number, their seconds, and the exact sums of their content.

    The content is running decodes, verified tokens, drafter slots, tokens of context, prefilled tokens (0 in steps that
    caught up) and positions that the drafter read to catch up (0 in others).
    """

    steps: float
    seconds: float
    decodes: float = 0.0
    verified: float = 0.0
    slots: float = 0.0
    context: float = 0.0
    prefill: float = 0.0
    read: float = 0.0


_CLASS = (names.LABEL_CLASS,)
_POSITION = (names.LABEL_BAND, names.LABEL_POSITION)
_CELL_METRICS = {
    names.STEPS: "steps", names.STEP_SECONDS: "seconds", names.STEP_DECODES: "decodes", names.STEP_VERIFIED: "verified",
    names.STEP_SLOTS: "slots", names.STEP_CONTEXT: "context", names.STEP_PREFILL: "prefill",
}  # fmt: skip
_CATCH_UP_METRICS = {
    names.CATCH_UP_STEPS: "steps", names.CATCH_UP_STEP_SECONDS: "seconds", names.CATCH_UP_STEP_DECODES: "decodes",
    names.CATCH_UP_STEP_VERIFIED: "verified", names.CATCH_UP_STEP_SLOTS: "slots",
    names.CATCH_UP_STEP_CONTEXT: "context", names.CATCH_UP_STEP_READ: "read",
}  # fmt: skip
_TABLE_METRICS = _CELL_METRICS | _CATCH_UP_METRICS
_GAUGE_METRICS: Mapping[str, tuple[str, ...]] = {
    names.RUNNING_DECODES: _CLASS,
    names.PRICE_SECONDS: (names.LABEL_PART,),
    names.TOKEN_PRICE_SECONDS: (names.LABEL_TOKENS,),
    **dict.fromkeys(
        (
            names.LEFT_OUT_SECONDS, names.SLOWDOWN_RATIO, names.PREFILL_STEP_RATIO, names.PREFILL_STEP_TOKENS,
            names.CONTEXT_TOKENS,
        ),
        (),
    ),
}  # fmt: skip
LABELS: Mapping[str, tuple[str, ...]] = {
    names.TRIALS: _POSITION,
    names.ACCEPTS: _POSITION,
    names.DRAFTS: (names.LABEL_CLASS, names.LABEL_BAND, names.LABEL_K),
    names.DECODE_TOKENS: (names.LABEL_CLASS, names.LABEL_BAND),
    names.COLD_DECODES: (names.LABEL_CLASS, names.LABEL_BAND),
    **dict.fromkeys(_CELL_METRICS, names.CELL_LABELS),
    **dict.fromkeys(_CATCH_UP_METRICS, names.CATCH_UP_LABELS),
    **_GAUGE_METRICS,
}
"""The metrics that the law reads, and the labels of their series."""


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
    (class, band), and so are the decodes of unprobed requests, which have no verified draft yet (`cold`). `running` are
    the requests that decode now, by class. `catch_ups` are the decode-only steps in which the drafter also caught up;
    they are not in `cells`.
    """

    trials: Mapping[tuple[int, int], float] = field(default_factory=dict)
    accepts: Mapping[tuple[int, int], float] = field(default_factory=dict)
    drafts: Mapping[tuple[str, int, int], float] = field(default_factory=dict)
    decode_tokens: Mapping[tuple[str, int], float] = field(default_factory=dict)
    cold: Mapping[tuple[str, int], float] = field(default_factory=dict)
    cells: Mapping[Cell, CellSums] = field(default_factory=dict)
    running: Mapping[str, float] = field(default_factory=dict)
    catch_ups: Mapping[Cell, CellSums] = field(default_factory=dict)

    @property
    def steps(self) -> float:
        """Steps, without those that caught up."""
        return sum(cell.steps for cell in self.cells.values())

    @property
    def catch_up_steps(self) -> float:
        """Decode-only steps that caught up."""
        return sum(cell.steps for cell in self.catch_ups.values())

    @property
    def step_seconds(self) -> float:
        """Seconds of all steps, including those that caught up."""
        return sum(cell.seconds for table in (self.cells, self.catch_ups) for cell in table.values())

    @property
    def drafts_of(self) -> dict[tuple[str, int], float]:
        """Decodes summed over steps, by (class, band)."""
        totals: dict[tuple[str, int], float] = {}
        for (name, band, _), count in self.drafts.items():
            totals[name, band] = totals.get((name, band), 0.0) + count
        return totals

    @property
    def undrafted(self) -> float:
        """Decodes at K = 0."""
        return sum(count for (_, _, k), count in self.drafts.items() if k == 0)

    @property
    def drafted_ratio(self) -> float:
        """The share of the decodes at K > 0; 0 without decodes."""
        whole = sum(self.drafts.values())
        return 1.0 - self.undrafted / whole if whole else 0.0


class Snapshot(NamedTuple):
    """A snapshot: the evidence of the `elapsed_s` seconds before `at`, on the caller's clock.

    `corrected_s` is the cost of its decodes in seconds: the time of its steps (`cells`), less the time of their
    prefilled tokens, plus the catch-up of its decodes at K = 0, the last two by the fitted cost.
    """

    at: float
    elapsed_s: float
    evidence: Evidence
    corrected_s: float

    @property
    def counted_decodes(self) -> float:
        """The decodes in steps of `cells`: steps that caught up are left out, as in `corrected_s`."""
        return sum(cell.decodes for cell in self.evidence.cells.values())


NO_EVIDENCE = Evidence()


class Compared(NamedTuple):
    """The differences between two scrapes of an engine, and the baseline of the next comparison.

    `gained` has the increase of each counter, without series that did not grow, and the value of each gauge. `kept` is
    the newer scrape, plus the last values of the counters that vanished.
    """

    gained: dict[Series, float]
    kept: Observation


def compare(before: Observation | None, after: Observation) -> Compared:
    """Compare two scrapes of an engine.

    Without `before` only the table of step times counts (see the module). In a repeated scrape no counter grows.
    """
    if before is None:
        return Compared({key: value for key, value in after.values.items() if key.metric in _TABLE_METRICS}, after)
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
    found = Evidence()
    placed: dict[str, tuple[Any, int]] = {  # the target of a metric's series, and its number of text labels
        names.TRIALS: (found.trials, 0),
        names.ACCEPTS: (found.accepts, 0),
        names.DRAFTS: (found.drafts, 1),
        names.DECODE_TOKENS: (found.decode_tokens, 1),
        names.COLD_DECODES: (found.cold, 1),
        names.RUNNING_DECODES: (found.running, 1),
    }
    sums_of: dict[Cell, dict[str, float]] = {}
    for (metric, labels), value in totals.items():
        if metric in _TABLE_METRICS:
            if all(label.isdecimal() for label in labels):
                decodes, verified, slots, *prefill = map(int, labels)
                cell = Cell(decodes, verified, slots, sum(prefill), metric in _CATCH_UP_METRICS)
                sums_of.setdefault(cell, {})[_TABLE_METRICS[metric]] = value
        elif metric in placed:
            table, text = placed[metric]
            if all(label.isdecimal() for label in labels[text:]):
                key = (*labels[:text], *map(int, labels[text:]))
                table[key if len(key) > 1 else key[0]] = value
    cells: dict[Cell, CellSums] = {}
    catch_ups: dict[Cell, CellSums] = {}
    for cell, sums in sums_of.items():
        if sums.get("steps", 0.0) > 0 and sums.get("seconds", 0.0) > 0:  # else the cell has no mean
            (catch_ups if cell.catches_up else cells)[cell] = CellSums(**sums)
    return replace(found, cells=cells, catch_ups=catch_ups)

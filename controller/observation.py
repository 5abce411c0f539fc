"""What one scrape of one engine said, and what happened between two scrapes.

Counters only ever grow while an engine lives. When any of an engine's counters fell or vanished, or its start
time changed, it was started anew: everything it counts now happened since then, which is what Prometheus'
`rate` assumes too. The first scrape of an engine is a starting line and no evidence, but for its table of step
times: those do not age as traffic does, and they let a new controller know the cost of every K that its
predecessor tried.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from policy import engine_metrics as names


class Series(NamedTuple):
    """One time series: the metric's name and its label values in the order of `LABELS`."""

    metric: str
    labels: tuple[str, ...]


class Cell(NamedTuple):
    """The labels of one cell of the table of decode-only steps, rounded by the engine; see `engine_metrics`."""

    decodes: int
    verified: int
    width: int


class CatchUpCell(NamedTuple):
    """The labels of one cell of the table of decode-only steps that also caught up."""

    decodes: int
    width: int


class CellSums(NamedTuple):
    """What steps of a cell come to: their number, seconds, and the exact sums of what was in them.

    That is running decodes, verified tokens, and positions that the drafter read to catch up.
    """

    steps: float
    seconds: float
    decodes: float
    verified: float
    read: float = 0.0


_Key = TypeVar("_Key", Cell, CatchUpCell)
_CLASS = (names.LABEL_CLASS,)
_POSITION = (names.LABEL_CLASS, names.LABEL_POSITION)
LABELS: Mapping[str, tuple[str, ...]] = {
    names.TRIALS: _POSITION,
    names.ACCEPTS: _POSITION,
    names.DRAFTS: (names.LABEL_CLASS, names.LABEL_K),
    names.PROBES: _CLASS,
    names.DECODE_TOKENS: _CLASS,
    names.STEPS: names.CELL_LABELS,
    names.STEP_SECONDS: names.CELL_LABELS,
    names.STEP_DECODES: names.CELL_LABELS,
    names.STEP_VERIFIED: names.CELL_LABELS,
    names.PREFILL_STEPS: (),
    names.PREFILL_STEP_SECONDS: (),
    names.CATCH_UP_STEPS: names.CATCH_UP_LABELS,
    names.CATCH_UP_STEP_SECONDS: names.CATCH_UP_LABELS,
    names.CATCH_UP_STEP_DECODES: names.CATCH_UP_LABELS,
    names.CATCH_UP_STEP_VERIFIED: names.CATCH_UP_LABELS,
    names.CATCH_UP_STEP_READ: names.CATCH_UP_LABELS,
    names.RUNNING_DECODES: _CLASS,
}
"""The metrics that the law reads, and the labels that tell their series apart."""

_GAUGES = frozenset({names.RUNNING_DECODES})
_CELL_METRICS = (names.STEPS, names.STEP_SECONDS, names.STEP_DECODES, names.STEP_VERIFIED)
_CATCH_UP_METRICS = (
    names.CATCH_UP_STEPS, names.CATCH_UP_STEP_SECONDS, names.CATCH_UP_STEP_DECODES, names.CATCH_UP_STEP_VERIFIED,
    names.CATCH_UP_STEP_READ,
)  # fmt: skip
_TABLE_METRICS = frozenset(_CELL_METRICS + _CATCH_UP_METRICS)


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
    """What happened in a pool between two readings, all its engines together.

    `trials` and `accepts` are keyed by (class, position), positions from 1; `drafts` by (class, K). `running` are the
    requests that decode now, by class. `catch_ups` are the decode-only steps in which the drafter also caught up; they
    are not in `cells`.
    """

    trials: Mapping[tuple[str, int], float]
    accepts: Mapping[tuple[str, int], float]
    drafts: Mapping[tuple[str, int], float]
    probes: Mapping[str, float]
    decode_tokens: Mapping[str, float]
    cells: Mapping[Cell, CellSums]
    running: Mapping[str, float] = field(default_factory=dict)
    catch_ups: Mapping[CatchUpCell, CellSums] = field(default_factory=dict)

    @property
    def class_drafts(self) -> dict[str, float]:
        """Decodes times steps by class: the class mix of the running requests."""
        totals: dict[str, float] = {}
        for (name, _), count in self.drafts.items():
            totals[name] = totals.get(name, 0.0) + count
        return totals

    @property
    def steps(self) -> float:
        """Decode-only steps."""
        return sum(cell.steps for cell in self.cells.values())

    def left_s(self, step_left_s: Callable[[float], Any]) -> float:
        """Seconds that the steps at width 0 leave behind, if one of n decodes leaves `step_left_s(n)`."""
        return sum(
            sums.steps * float(step_left_s(sums.decodes / sums.steps))
            for cell, sums in self.cells.items()
            if cell.width == 0
        )

    @property
    def step_seconds(self) -> float:
        """Seconds spent in decode-only steps."""
        return sum(cell.seconds for cell in self.cells.values())


class Look(NamedTuple):
    """The evidence of the `elapsed_s` seconds before `at`, on the clock of whoever asks.

    `left_s` are the seconds of drafting that its steps at K = 0 leave behind, by what rows were measured to cost.
    """

    at: float
    elapsed_s: float
    evidence: Evidence
    left_s: float = 0.0


NO_EVIDENCE = Evidence({}, {}, {}, {}, {}, {})


def is_restart(before: Observation, after: Observation) -> bool:
    """Whether the engine was started anew between two of its observations."""
    if after.started_at != before.started_at:
        return True
    return any(
        after.values.get(series, -1.0) < value
        for series, value in before.values.items()
        if series.metric not in _GAUGES
    )


def changes(before: Observation | None, after: Observation) -> dict[Series, float]:
    """Return what each counter gained since `before`, and each gauge as it is.

    With `before` unknown only the table of step times counts (see the module's text). Series that gained nothing
    are left out. A repeated scrape gives nothing.
    """
    if before is None:
        return {series: value for series, value in after.values.items() if series.metric in _TABLE_METRICS}
    earlier = {} if is_restart(before, after) else before.values
    gained: dict[Series, float] = {}
    for series, value in after.values.items():
        if series.metric in _GAUGES:
            gained[series] = value
        elif (gain := value - earlier.get(series, 0.0)) > 0:
            gained[series] = gain
    return gained


def evidence_of(parts: Iterable[Mapping[Series, float]]) -> Evidence:
    """Return the changes of several engines as one `Evidence`; malformed label values are skipped."""
    totals: dict[Series, float] = {}
    for part in parts:
        for series, value in part.items():
            totals[series] = totals.get(series, 0.0) + value
    keyed: dict[str, dict[tuple[str, int], float]] = {names.TRIALS: {}, names.ACCEPTS: {}, names.DRAFTS: {}}
    classed: dict[str, dict[str, float]] = {names.PROBES: {}, names.DECODE_TOKENS: {}, names.RUNNING_DECODES: {}}
    cells: dict[Cell, dict[str, float]] = {}
    catch_ups: dict[CatchUpCell, dict[str, float]] = {}
    for (metric, labels), value in totals.items():
        if metric in keyed and labels[1].isdecimal():
            keyed[metric][labels[0], int(labels[1])] = value
        elif metric in classed:
            classed[metric][labels[0]] = value
        elif metric in _TABLE_METRICS and all(label.isdecimal() for label in labels):
            if metric in _CELL_METRICS:
                cells.setdefault(Cell(*map(int, labels)), {})[metric] = value
            else:
                catch_ups.setdefault(CatchUpCell(*map(int, labels)), {})[metric] = value
    return Evidence(
        trials=keyed[names.TRIALS],
        accepts=keyed[names.ACCEPTS],
        drafts=keyed[names.DRAFTS],
        probes=classed[names.PROBES],
        decode_tokens=classed[names.DECODE_TOKENS],
        cells=_summed(cells, _CELL_METRICS),
        running=classed[names.RUNNING_DECODES],
        catch_ups=_summed(catch_ups, _CATCH_UP_METRICS),
    )


def _summed(found: Mapping[_Key, Mapping[str, float]], metrics: tuple[str, ...]) -> dict[_Key, CellSums]:
    """Return the sums of `metrics` by cell; without steps or their seconds there is nothing to say."""
    steps, seconds, *_ = metrics
    return {
        cell: CellSums(*(sums.get(metric, 0.0) for metric in metrics))
        for cell, sums in found.items()
        if sums.get(steps, 0.0) > 0 and sums.get(seconds, 0.0) > 0
    }

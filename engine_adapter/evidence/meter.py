"""The evidence of one engine: counters that the control law needs, exact, and cheap to keep.

Pure. A step is counted whole (`commit`), under a lock that the exporting thread shares, so no reader ever sees
half a step. Between two steps the processor's caches are the model's, and what runs then waits for memory. So a step is
only noted, and some dozens are counted at once; what is taken away has all of them.

Trials and accepts: a draft of K tokens of which the first j were accepted is a trial at positions 1..min(j + 1, K)
and an accept at 1..j. What lies past K or past the first rejection is censored and not counted; that is what makes
the product-limit estimate over drafts of different K exact.

A request's grammar may cut its draft short, at the first token that it does not allow. That is no censoring: the target
under this grammar could not have produced the token, so the draft was refused there. If all before it were accepted, it
is a trial at the position of the refused token, and no accept. Not to count it would overstate every grammar's
acceptance.
"""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from specpilot.engine_adapter.evidence.acceptance import trials
from specpilot.engine_adapter.evidence.tuning import CELLS_PER_OCTAVE, COUNTED_TOGETHER, FINE_LIMIT, STEPS_KEPT


class Group(NamedTuple):
    """Requests of one class in one band; `is_cold`: that are probed, and no draft of which was verified yet."""

    traffic_class: str
    band: int
    is_cold: bool = False


class Draft(NamedTuple):
    """One draft: `k` verified tokens of which the first `accepted` were; `is_refused`: a grammar cut it after `k`.

    `band` is the one in which its K was chosen.
    """

    traffic_class: str
    band: int
    k: int
    accepted: int
    is_probe: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class Outcome:
    """What the decodes of one step came to.

    `drafts` are those that verified a draft; `plain` counts the others by class and band, and `refused` names the bands
    of the ones among these whose grammar refused the first token of a draft. `tokens` is what all of them delivered.
    """

    drafts: list[Draft] = field(default_factory=list)
    plain: dict[Group, int] = field(default_factory=dict)
    refused: list[int] = field(default_factory=list)
    tokens: dict[Group, int] = field(default_factory=dict)


class StepShape(NamedTuple):
    """What one step did: running decodes, tokens verified for them, drafter slots, prefilled tokens.

    `read`: positions that its drafter read without drafting from them, to catch up. `is_uniform`: all decodes have as
    many tokens in it.
    """

    decodes: int
    verified: int
    slots: int
    prefill: int = 0
    read: int = 0
    is_uniform: bool = True


class Cell(NamedTuple):
    """A class of similar steps; `prefill` is 0 for decode-only ones.

    Decode-only: decodes and verified tokens on the coarse grid, slots rounded down to a power of two. Steps with
    prefill are of many sizes, so all four are rounded down to powers of two.
    """

    decodes: int
    verified: int
    slots: int
    prefill: int


class CatchUpCell(NamedTuple):
    """A class of decode-only steps that also caught up: all rounded down to powers of two."""

    decodes: int
    verified: int
    slots: int


@dataclass(slots=True)
class CellSums:
    """Sums over steps; `seconds` is their duration, `context` the length of the scheduled requests' sequences."""

    steps: int = 0
    seconds: float = 0.0
    decodes: int = 0
    verified: int = 0
    slots: int = 0
    prefill: int = 0
    context: int = 0
    read: int = 0

    def add(self, run: "_Run") -> None:
        """Add the steps of one run."""
        shape, steps = run.shape, run.steps
        self.steps += steps
        self.seconds += run.seconds
        self.decodes += steps * shape.decodes
        self.verified += steps * shape.verified
        self.slots += steps * shape.slots
        self.prefill += steps * shape.prefill
        self.context += run.context
        self.read += steps * shape.read


@dataclass(slots=True)
class Evidence:
    """Counts since the last `Meter.take`. `catch_ups` are the decode-only steps that also caught up; not in `cells`."""

    trials: Counter[tuple[int, int]] = field(default_factory=Counter)  # by band and position
    accepts: Counter[tuple[int, int]] = field(default_factory=Counter)
    drafts: Counter[tuple[str, int, int]] = field(default_factory=Counter)  # by class, band and K
    probes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[tuple[str, int]] = field(default_factory=Counter)  # by class and band
    cold: Counter[tuple[str, int]] = field(default_factory=Counter)  # decodes of requests without a verified draft
    cells: defaultdict[Cell, CellSums] = field(default_factory=lambda: defaultdict(CellSums))
    catch_ups: defaultdict[CatchUpCell, CellSums] = field(default_factory=lambda: defaultdict(CellSums))

    def add(self, run: "_Run") -> None:
        """Add the steps of one run, but for their drafts."""
        outcome, shape, steps = run.outcome, run.shape, run.steps
        for group, count in outcome.tokens.items():
            self.tokens[group[:2]] += steps * count
        for (traffic_class, band, is_cold), count in outcome.plain.items():
            self.drafts[traffic_class, band, 0] += steps * count
            if is_cold:
                self.cold[traffic_class, band] += steps * count
        for band in outcome.refused:
            self.trials[band, 1] += steps
        if shape.decodes and shape.read and not shape.prefill:
            self.catch_ups[CatchUpCell(*map(octave, shape[:3]))].add(run)
        elif shape.prefill:
            self.cells[Cell(*map(octave, shape[:4]))].add(run)
        elif shape.decodes:
            self.cells[Cell(rounded(shape.decodes), rounded(shape.verified), octave(shape.slots), 0)].add(run)

    def add_drafts(self, draft: Draft, count: int) -> None:
        """Add so many verified drafts that came to the same."""
        traffic_class, band, k, accepted, is_probe, is_refused = draft
        self.drafts[traffic_class, band, k] += count
        self.probes[traffic_class] += is_probe * count
        for position in range(1, trials(k, accepted, is_refused=is_refused) + 1):
            self.trials[band, position] += count
        for position in range(1, accepted + 1):
            self.accepts[band, position] += count


def octave(count: int) -> int:
    """Return `count` rounded down to a power of two; 0 stays 0."""
    return 1 << (count.bit_length() - 1) if count else 0


def rounded(count: int) -> int:
    """Return `count` on the coarse grid: exact up to 8, then four values an octave, rounding down."""
    if count <= FINE_LIMIT:
        return count
    octave = count.bit_length() - 1
    return (1 << octave) + ((count - (1 << octave)) * CELLS_PER_OCTAVE >> octave) * (1 << octave) // CELLS_PER_OCTAVE


@dataclass(slots=True)
class _Run:
    """Steps in a row of one shape that came to the same; `seconds` and `context` are theirs together."""

    shape: StepShape
    outcome: Outcome
    seconds: float
    context: int
    steps: int = 1


class Meter:
    """Counts steps as they complete; another thread takes the counts away."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._evidence = Evidence()
        self._noted: list[_Run] = []
        self._steps: deque[tuple[StepShape, float, int]] = deque(maxlen=STEPS_KEPT)

    def commit(self, shape: StepShape, seconds: float, context: int, outcome: Outcome) -> None:
        """Count one completed step, its duration, and the length of its requests' sequences.

        With the very `outcome` of the step before, it has that step's shape too, and costs next to nothing.
        """
        self._steps.append((shape, seconds, context))
        with self._lock:
            latest = self._noted[-1] if self._noted else None
            if latest is not None and latest.outcome is outcome:
                latest.steps += 1
                latest.seconds += seconds
                latest.context += context
                return
            self._noted.append(_Run(shape, outcome, seconds, context))
            if len(self._noted) >= COUNTED_TOGETHER:
                self._count()

    def take(self) -> Evidence:
        """Return the counts since the last call and start anew."""
        with self._lock:
            self._count()
            evidence, self._evidence = self._evidence, Evidence()
        return evidence

    def take_steps(self) -> list[tuple[StepShape, float, int]]:
        """Return the latest steps since the last call, one by one: shape, seconds, length of the sequences."""
        return [self._steps.popleft() for _ in range(len(self._steps))]

    def _count(self) -> None:
        drafts: Counter[Draft] = Counter()
        for run in self._noted:
            self._evidence.add(run)
            drafts.update(run.outcome.drafts * run.steps)
        for draft, count in drafts.items():
            self._evidence.add_drafts(draft, count)
        self._noted.clear()

"""The evidence of one engine: counters that the control law needs, exact, and cheap to keep.

Pure. A step is counted whole (`commit`), under a lock that the exporting thread shares, so no reader ever sees
half a step. Between two steps the processor's caches are the model's, and what runs then waits for memory. So a step is
only noted, and some dozens are counted at once; what is taken away has all of them.

Trials and accepts: a draft of K tokens of which the first j were accepted is a trial at positions 1..min(j + 1, K)
and an accept at 1..j. What lies past K or past the first rejection is censored and not counted; that is what makes
the product-limit estimate over drafts of different K exact.

A request's grammar may cut its draft short, at the first token that it does not allow. That is no censoring: the target
under this grammar could not have produced the token, so the draft was refused there. If all before it were accepted, it
is a trial at the position of the refused token, and no accept. Not to count it would flatter every grammar's
acceptance.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

_FINE_LIMIT = 8
_STEPS_PER_OCTAVE = 4

_COUNTED_TOGETHER = 32
"""After how many different steps they are counted: some tenths of a millisecond's worth with 32 running."""


class Draft(NamedTuple):
    """One draft: `k` verified tokens of which the first `accepted` were; `is_refused`: a grammar cut it after `k`."""

    traffic_class: str
    k: int
    accepted: int
    is_probe: bool = False
    is_refused: bool = False


@dataclass(slots=True)
class Outcome:
    """What the decodes of one step came to.

    `drafts` are those that verified a draft; `plain` counts the others by class, and `refused` names the classes of the
    ones among these whose grammar refused the first token of a draft. `tokens` is what all of them delivered by class.
    """

    drafts: list[Draft] = field(default_factory=list)
    plain: dict[str, int] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)


class StepShape(NamedTuple):
    """What one step did: running decodes, tokens verified for them, drafter width; whether it did other work too.

    `has_prefill`: it prefilled. `read`: positions that its drafter read without drafting from them, to catch up.
    """

    decodes: int
    verified: int
    width: int
    has_prefill: bool
    read: int = 0


class Cell(NamedTuple):
    """A class of similar decode-only steps: decodes and verified tokens on the coarse grid, and the width."""

    decodes: int
    verified: int
    width: int


class CatchUpCell(NamedTuple):
    """A class of decode-only steps that also caught up: decodes, rounded down to a power of two, and the width."""

    decodes: int
    width: int


@dataclass(slots=True)
class CellSums:
    """Sums over steps; `seconds` is their duration."""

    steps: int = 0
    seconds: float = 0.0
    decodes: int = 0
    verified: int = 0
    read: int = 0

    def add(self, shape: StepShape, seconds: float, steps: int) -> None:
        """Add `steps` steps of one shape, which took `seconds` together."""
        self.steps += steps
        self.seconds += seconds
        self.decodes += steps * shape.decodes
        self.verified += steps * shape.verified
        self.read += steps * shape.read


@dataclass(slots=True)
class Evidence:
    """Counts since the last `Meter.take`. `catch_ups` are the decode-only steps that also caught up; not in `cells`."""

    trials: Counter[tuple[str, int]] = field(default_factory=Counter)
    accepts: Counter[tuple[str, int]] = field(default_factory=Counter)
    drafts: Counter[tuple[str, int]] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    cells: defaultdict[Cell, CellSums] = field(default_factory=lambda: defaultdict(CellSums))
    prefill_steps: int = 0
    prefill_seconds: float = 0.0
    catch_ups: defaultdict[CatchUpCell, CellSums] = field(default_factory=lambda: defaultdict(CellSums))

    def add(self, shape: StepShape, outcome: Outcome, seconds: float, steps: int) -> None:
        """Add `steps` steps that came to the same and took `seconds` together, but for their drafts."""
        for traffic_class, count in outcome.tokens.items():
            self.tokens[traffic_class] += steps * count
        for traffic_class, count in outcome.plain.items():
            self.drafts[traffic_class, 0] += steps * count
        for traffic_class in outcome.refused:
            self.trials[traffic_class, 1] += steps
        if shape.has_prefill:
            self.prefill_steps += steps
            self.prefill_seconds += seconds
        elif shape.decodes and shape.read:
            octave = 1 << (shape.decodes.bit_length() - 1)
            self.catch_ups[CatchUpCell(octave, shape.width)].add(shape, seconds, steps)
        elif shape.decodes:
            cell = Cell(rounded(shape.decodes), rounded(shape.verified), shape.width)
            self.cells[cell].add(shape, seconds, steps)

    def add_drafts(self, draft: Draft, count: int) -> None:
        """Add so many verified drafts that came to the same."""
        traffic_class, k, accepted, is_probe, is_refused = draft
        self.drafts[traffic_class, k] += count
        self.probes[traffic_class] += is_probe * count
        for position in range(1, min(accepted + 1, k + is_refused) + 1):
            self.trials[traffic_class, position] += count
        for position in range(1, accepted + 1):
            self.accepts[traffic_class, position] += count


def rounded(count: int) -> int:
    """Return `count` on the coarse grid: exact up to 8, then four values an octave, rounding down."""
    if count <= _FINE_LIMIT:
        return count
    octave = count.bit_length() - 1
    return (1 << octave) + ((count - (1 << octave)) * _STEPS_PER_OCTAVE >> octave) * (1 << octave) // _STEPS_PER_OCTAVE


@dataclass(slots=True)
class _Run:
    """Steps in a row of one shape that came to the same; `seconds` is their duration together."""

    shape: StepShape
    outcome: Outcome
    seconds: float
    steps: int = 1


class Meter:
    """Counts steps as they complete; another thread takes the counts away."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._evidence = Evidence()
        self._noted: list[_Run] = []

    def commit(self, shape: StepShape, seconds: float, outcome: Outcome) -> None:
        """Count one completed step and its duration.

        With the very `outcome` of the step before, it has that step's shape too, and costs next to nothing.
        """
        with self._lock:
            latest = self._noted[-1] if self._noted else None
            if latest is not None and latest.outcome is outcome:
                latest.steps += 1
                latest.seconds += seconds
                return
            self._noted.append(_Run(shape, outcome, seconds))
            if len(self._noted) >= _COUNTED_TOGETHER:
                self._count()

    def take(self) -> Evidence:
        """Return the counts since the last call and start anew."""
        with self._lock:
            self._count()
            evidence, self._evidence = self._evidence, Evidence()
        return evidence

    def _count(self) -> None:
        drafts: Counter[Draft] = Counter()
        for run in self._noted:
            self._evidence.add(run.shape, run.outcome, run.seconds, run.steps)
            drafts.update(run.outcome.drafts * run.steps)
        for draft, count in drafts.items():
            self._evidence.add_drafts(draft, count)
        self._noted.clear()

"""The evidence of one engine: counters that the control law needs, exact, and cheap to keep.

Pure. A step is counted whole (`commit`), under a lock that the exporting thread shares, so no reader ever sees
half a step.

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

    def add(self, shape: StepShape, seconds: float) -> None:
        """Add one step."""
        self.steps += 1
        self.seconds += seconds
        self.decodes += shape.decodes
        self.verified += shape.verified
        self.read += shape.read


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

    def count(self, draft: Draft) -> None:
        """Add one verified draft's trials and accepts."""
        traffic_class, k, accepted, is_probe, is_refused = draft
        self.drafts[traffic_class, k] += 1
        self.probes[traffic_class] += is_probe
        for position in range(1, min(accepted + 1, k + is_refused) + 1):
            self.trials[traffic_class, position] += 1
        for position in range(1, accepted + 1):
            self.accepts[traffic_class, position] += 1


def rounded(count: int) -> int:
    """Return `count` on the coarse grid: exact up to 8, then four values an octave, rounding down."""
    if count <= _FINE_LIMIT:
        return count
    octave = count.bit_length() - 1
    return (1 << octave) + ((count - (1 << octave)) * _STEPS_PER_OCTAVE >> octave) * (1 << octave) // _STEPS_PER_OCTAVE


class Meter:
    """Counts steps as they complete; another thread takes the counts away."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._evidence = Evidence()

    def commit(self, shape: StepShape, seconds: float, outcome: Outcome) -> None:
        """Count one completed step and its duration."""
        with self._lock:
            evidence = self._evidence
            for traffic_class, count in outcome.tokens.items():
                evidence.tokens[traffic_class] += count
            for traffic_class, count in outcome.plain.items():
                evidence.drafts[traffic_class, 0] += count
            for traffic_class in outcome.refused:
                evidence.trials[traffic_class, 1] += 1
            for draft in outcome.drafts:
                evidence.count(draft)
            if shape.has_prefill:
                evidence.prefill_steps += 1
                evidence.prefill_seconds += seconds
            elif shape.decodes and shape.read:
                octave = 1 << (shape.decodes.bit_length() - 1)
                evidence.catch_ups[CatchUpCell(octave, shape.width)].add(shape, seconds)
            elif shape.decodes:
                cell = Cell(rounded(shape.decodes), rounded(shape.verified), shape.width)
                evidence.cells[cell].add(shape, seconds)

    def take(self) -> Evidence:
        """Return the counts since the last call and start anew."""
        with self._lock:
            evidence, self._evidence = self._evidence, Evidence()
        return evidence

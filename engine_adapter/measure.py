"""The evidence of one engine: counters that the control law needs, exact, and cheap to keep.

Pure. A step is counted whole (`commit`), under a lock that the exporting thread shares, so no reader ever sees
half a step.

Trials and accepts: a draft of K tokens of which the first j were accepted is a trial at positions 1..min(j + 1, K)
and an accept at 1..j. What lies past K or past the first rejection is censored and not counted; that is what makes
the product-limit estimate over drafts of different K exact.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

_FINE_LIMIT = 8
_STEPS_PER_OCTAVE = 4


class Draft(NamedTuple):
    """One verified draft: `k` tokens (1 or more) of which the first `accepted` were."""

    traffic_class: str
    k: int
    accepted: int
    is_probe: bool


class StepShape(NamedTuple):
    """What one step did: running decodes, tokens verified for them, drafter width, whether it prefilled too."""

    decodes: int
    verified: int
    width: int
    has_prefill: bool


class Cell(NamedTuple):
    """A class of similar decode-only steps: decodes and verified tokens on the coarse grid, and the width."""

    decodes: int
    verified: int
    width: int


@dataclass(slots=True)
class CellSums:
    """Sums over the steps of a cell; `seconds` is their duration."""

    steps: int = 0
    seconds: float = 0.0
    decodes: int = 0
    verified: int = 0


@dataclass(slots=True)
class Evidence:
    """Counts since the last `Meter.take`."""

    trials: Counter[tuple[str, int]] = field(default_factory=Counter)
    accepts: Counter[tuple[str, int]] = field(default_factory=Counter)
    drafts: Counter[tuple[str, int]] = field(default_factory=Counter)
    probes: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    cells: defaultdict[Cell, CellSums] = field(default_factory=lambda: defaultdict(CellSums))
    prefill_steps: int = 0
    prefill_seconds: float = 0.0


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

    def commit(
        self, shape: StepShape, seconds: float | None, drafts: Iterable[Draft], plain: Mapping[str, int]
    ) -> None:
        """Count one completed step.

        `seconds` is its duration, `None` when it cannot be told (the engine was idle before). `drafts` are the
        outcomes of its decodes, `plain` the number of those without speculation by class.
        """
        with self._lock:
            evidence = self._evidence
            for traffic_class, count in plain.items():
                evidence.drafts[traffic_class, 0] += count
                evidence.tokens[traffic_class] += count
            for traffic_class, k, accepted, is_probe in drafts:
                evidence.drafts[traffic_class, k] += 1
                evidence.tokens[traffic_class] += accepted + 1
                evidence.probes[traffic_class] += is_probe
                for position in range(1, min(accepted + 1, k) + 1):
                    evidence.trials[traffic_class, position] += 1
                for position in range(1, accepted + 1):
                    evidence.accepts[traffic_class, position] += 1
            if seconds is None:
                return
            if shape.has_prefill:
                evidence.prefill_steps += 1
                evidence.prefill_seconds += seconds
            elif shape.decodes:
                sums = evidence.cells[Cell(rounded(shape.decodes), rounded(shape.verified), shape.width)]
                sums.steps += 1
                sums.seconds += seconds
                sums.decodes += shape.decodes
                sums.verified += shape.verified

    def take(self) -> Evidence:
        """Return the counts since the last call and start anew."""
        with self._lock:
            evidence, self._evidence = self._evidence, Evidence()
        return evidence

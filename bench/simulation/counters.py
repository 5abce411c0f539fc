"""What a simulated engine counts, under the names and labels that the adapter exports. Cumulative."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.observation import Series
from specpilot.engine_adapter.evidence.meter import octave, rounded
from specpilot.policy import engine_metrics as names
from specpilot.policy.bands import BANDS

K_MAX = 7
"""The largest K of a simulated engine."""
_PLAIN = (names.STEPS, names.STEP_SECONDS, names.STEP_DECODES, names.STEP_VERIFIED, names.STEP_SLOTS,
          names.STEP_PREFILL)  # fmt: skip
_CAUGHT_UP = (names.CATCH_UP_STEPS, names.CATCH_UP_STEP_SECONDS, names.CATCH_UP_STEP_DECODES,
              names.CATCH_UP_STEP_VERIFIED, names.CATCH_UP_STEP_SLOTS, names.CATCH_UP_STEP_READ)  # fmt: skip
Vector = NDArray[np.float64]
Ints = NDArray[np.int64]


class Step(NamedTuple):
    """What was in a step: requests, verified tokens, slots, prefilled tokens, tokens of context, rows caught up."""

    n: int
    verified: int
    slots: int
    prefill: float
    context: float
    read: float
    seconds: float


class Counters:
    """The counters of one engine since its start. `running` are requests by class, now."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self._outcomes: dict[str, Vector] = {}  # by class, flat: [band, K, accepted]
        self._cells: dict[str, Vector] = defaultdict(lambda: np.zeros(len(_PLAIN)))
        self._catch_ups: dict[str, Vector] = defaultdict(lambda: np.zeros(len(_CAUGHT_UP)))
        self._contexts: dict[tuple[bool, str, str], float] = defaultdict(float)
        self._probes: dict[str, float] = defaultdict(float)

    @property
    def drafts(self) -> float:
        """Decodes of one request in one step, K = 0 included."""
        return sum(float(flat.sum()) for flat in self._outcomes.values())

    @property
    def probes(self) -> float:
        """Those of them that were verified deeper than their K."""
        return sum(self._probes.values())

    def probe(self, label: str) -> None:
        """Count a probe."""
        self._probes[label] += 1

    def draft(self, label: str, band: Ints, k: Ints, accepted: Ints) -> None:
        """Count the drafts of a step in one class: the band, K and accepted tokens of each."""
        flat = (band * (K_MAX + 1) + k) * (K_MAX + 1) + accepted
        size = BANDS * (K_MAX + 1) ** 2
        if label not in self._outcomes:
            self._outcomes[label] = np.zeros(size)
        self._outcomes[label] += np.bincount(flat, minlength=size)

    def step(self, step: Step) -> None:
        """Count a step."""
        counts = (step.n, step.verified, step.slots)
        if step.read:
            key = ",".join(str(octave(count)) for count in counts)
            self._catch_ups[key] += (1, step.seconds, *counts, step.read)
        else:
            key = ",".join(str(rounded(count)) for count in counts)
            self._cells[f"{key},{octave(int(step.prefill))}"] += (1, step.seconds, *counts, step.prefill)
        self._contexts[bool(step.read), key, str(octave(int(step.prefill)))] += step.context

    def values(self, claims: Mapping[int, float]) -> dict[Series, float]:
        """Return them as the adapter exports them; `claims` are acceptances by position to tell whatever the truth."""
        found: dict[Series, float] = defaultdict(float)
        for label, flat in self._outcomes.items():
            table = flat.reshape(BANDS, K_MAX + 1, K_MAX + 1)
            for band in range(BANDS):
                if table[band].any():
                    _add_band(found, label, band, table[band], claims)
        for key, sums in self._cells.items():
            labels = tuple(key.split(","))
            found |= _series(_PLAIN, labels, sums)
            found[Series(names.STEP_CONTEXT, labels)] = self._contexts[False, ",".join(labels[:3]), labels[3]]
        for key, sums in self._catch_ups.items():
            labels = tuple(key.split(","))
            found |= _series(_CAUGHT_UP, labels, sums)
            context = sum(value for (read, at, _), value in self._contexts.items() if read and at == key)
            found[Series(names.CATCH_UP_STEP_CONTEXT, labels)] = context
        found |= {Series(names.PROBES, (name,)): count for name, count in self._probes.items()}
        found |= {Series(names.RUNNING_DECODES, (name,)): float(count) for name, count in self.running.items()}
        return dict(found)


def _series(metrics: Sequence[str], labels: tuple[str, ...], sums: Vector) -> dict[Series, float]:
    return {Series(metric, labels): float(value) for metric, value in zip(metrics, sums, strict=True)}


def _add_band(found: dict[Series, float], label: str, band: int, table: Vector, claims: Mapping[int, float]) -> None:
    """Add what `table` [K, accepted] of one class and band comes to."""
    drafts = table.sum(axis=1)
    for k in np.flatnonzero(drafts).tolist():
        found[Series(names.DRAFTS, (label, str(band), str(k)))] = float(drafts[k])
    found[Series(names.DECODE_TOKENS, (label, str(band)))] = float((table * (1 + np.arange(K_MAX + 1))).sum())
    for position in range(1, K_MAX + 1):
        tried = float(table[position:, position - 1 :].sum())
        accepted = float(table[position:, position:].sum())
        if position in claims:
            accepted = claims[position] * tried
        found[Series(names.TRIALS, (str(band), str(position)))] += tried
        found[Series(names.ACCEPTS, (str(band), str(position)))] += accepted

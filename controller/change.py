"""Notices that acceptance jumped, so that old evidence can be dropped at once instead of fading out.

A CUSUM on the conditional acceptances (Page 1954). For every position, and for all positions together, both
directions and every size of jump d in `change_shifts`:

    g <- max(0, g + [s ln(a1/a0) + (t - s) ln((1-a1)/(1-a0))] / dispersion),    a1 = a0 +- d

with t trials and s accepts since the last look and a0 the remembered acceptance. While nothing changed the sums drift
down and stay near zero; after a jump of at least half of d one climbs. Above `change_threshold` a jump is believed, and
the moment when the sum left zero is the best guess of when it happened. Large jumps show in few trials, which matters
where only probes look.

Limits: a position whose memory holds fewer than `MINIMUM_REFERENCE_TRIALS` has no reference to compare with and is
not watched; a slow drift stays below the smallest jump and is left to the fading of the memory.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.tuning import Tuning

Counts = NDArray[np.float64]
MINIMUM_REFERENCE_TRIALS = 50.0
HISTORY_LOOKS = 30


@dataclass(frozen=True, slots=True)
class Jump:
    """A believed jump: the evidence since then, which is all that still counts."""

    trials: Counts
    accepts: Counts


class ChangeDetector:
    """The running sums of one traffic class. Feed it every look, in order; it tells when to forget."""

    def __init__(self, positions: int, tuning: Tuning) -> None:
        self._tuning = tuning
        sizes = np.array([[sign * size] for size in tuning.change_shifts for sign in (1.0, -1.0)])
        self._sizes = sizes
        self._sums = np.zeros((len(sizes), positions + 1))
        self._age = np.zeros(self._sums.shape, dtype=np.int64)
        self._looks: deque[tuple[Counts, Counts]] = deque(maxlen=HISTORY_LOOKS)

    def look(self, trials: Counts, accepts: Counts, memory_trials: Counts, memory_accepts: Counts) -> Jump | None:
        """Compare the newest counts with the memory that does not hold them yet; `None` while nothing jumped."""
        if not self._tuning.detect_changes:
            return None
        self._looks.append((trials, accepts))
        known = memory_trials >= MINIMUM_REFERENCE_TRIALS
        reference = np.clip((memory_accepts + 1.0) / (memory_trials + 2.0), 0.02, 0.98)
        shifted = np.clip(reference + self._sizes, 0.01, 0.99)
        ratio = accepts * np.log(shifted / reference) + (trials - accepts) * np.log((1 - shifted) / (1 - reference))
        ratio = np.where(known, ratio, 0.0) / self._tuning.dispersion
        self._sums = np.maximum(0.0, self._sums + np.column_stack([ratio, ratio.sum(axis=1)]))
        self._age = np.where(self._sums > 0, self._age + 1, 0)
        if self._sums.max() < self._tuning.change_threshold:
            return None
        worst = np.unravel_index(int(self._sums.argmax()), self._sums.shape)
        looks = min(int(self._age[worst]), len(self._looks))
        # The look in which the sum left zero is partly old: drop it unless it is all there is.
        since = list(self._looks)[-max(1, looks - 1) :]
        self.reset()
        return Jump(np.sum([item[0] for item in since], axis=0), np.sum([item[1] for item in since], axis=0))

    def reset(self) -> None:
        """Begin anew, as after a believed jump."""
        self._sums[:] = 0.0
        self._age[:] = 0
        self._looks.clear()

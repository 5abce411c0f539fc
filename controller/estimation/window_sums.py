"""The measures of one window of time, by which experiments (`switchback`) compare windows of different K.

With t_c tokens and d_c decodes of class c, weights w_c, and D decodes in all, over the S steps and B busy seconds of a
window,

    throughput:  sum_c w_c t_c / B          weighted tokens per busy second
    itl:  1 / (B / S sum_c w_c (d_c / D) (d_c / t_c))      the inverse of the mean time per token of a request

Both are computed from counters alone: B is the time of all steps, those that prefill or catch up included. In a closed
loop, with a given number of running requests, both agree for one class. Under an open load a faster K lowers the number
of running requests, and only latency shows the gain.

A third number is the throughput of decodes alone, `corrected`: B without the time of prefilling, by the fitted cost,
and without steps that catch up. The cost of catching up is charged to the decodes at K = 0. This throughput varies less
with the prompts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specpilot.controller.estimation.observation import Snapshot
from specpilot.policy.gain import LogGain
from specpilot.policy.names import DEFAULT_CLASS

ROUNDING_S = 0.01
"""Tolerance of a snapshot's begin: a snapshot that begins less than this before a window's evidence belongs to the
window."""


class Scores(NamedTuple):
    """The logarithms of a window's measures and of its corrected throughput."""

    counted: LogGain
    corrected: float

    def minus(self, other: "Scores") -> "Scores":
        """Return the logarithms of the ratios to `other`."""
        pairs = zip(self.counted, other.counted, strict=True)
        return Scores(LogGain(*(one - two for one, two in pairs)), self.corrected - other.corrected)

    def times(self, factor: float) -> "Scores":
        """Return the logarithms times `factor`; with -1 those of the inverse ratios."""
        return Scores(LogGain(*(factor * one for one in self.counted)), factor * self.corrected)


@dataclass(slots=True)
class WindowSums:
    """Sums over the snapshots of a window; `tokens` and `decodes` are by class.

    `busy_s` is the time of all steps. `corrected_s` and `corrected_decodes` are those of the corrected throughput.
    """

    steps: float = 0.0
    busy_s: float = 0.0
    corrected_s: float = 0.0
    corrected_decodes: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    decodes: dict[str, float] = field(default_factory=dict)

    def take(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        evidence = snapshot.evidence
        self.steps += evidence.steps
        self.busy_s += evidence.step_seconds
        self.corrected_s += snapshot.corrected_s
        self.corrected_decodes += snapshot.counted_decodes
        for sums, counts in ((self.tokens, evidence.decode_tokens), (self.decodes, evidence.drafts_of)):
            for (name, _), count in counts.items():
                sums[name] = sums.get(name, 0.0) + count

    def log_scores(self, fewest_steps: float, weights: Mapping[str, float] | None = None) -> Scores | None:
        """Return the logarithms of the measures; `None` with fewer steps than `fewest_steps`.

        Classes that are not in `weights` have the weight of `default`; without weights all have the same.
        """
        weight_of, tokens, times = weights or {}, 0.0, 0.0
        for name, decodes in self.decodes.items():
            weight = weight_of.get(name, weight_of.get(DEFAULT_CLASS, 1.0))
            delivered = self.tokens.get(name, 0.0)
            tokens += weight * delivered
            times += weight * decodes * decodes / delivered if delivered else 0.0
        least = min(self.busy_s, self.corrected_s, self.corrected_decodes, tokens)
        if self.steps < fewest_steps or least <= 0:
            return None
        whole = sum(self.decodes.values())
        counted = LogGain(math.log(tokens / self.busy_s), -math.log(self.busy_s / self.steps * times / whole))
        return Scores(counted, math.log(tokens * self.corrected_decodes / whole / self.corrected_s))


def mean(found: list[Scores]) -> Scores:
    """Return the mean of all logarithms."""
    counted = zip(*(item.counted for item in found), strict=True)
    corrected = sum(item.corrected for item in found) / len(found)
    return Scores(LogGain(*(sum(values) / len(values) for values in counted)), corrected)

"""The measures of one window of time, by which experiments (`switchback`) compare windows of different K.

With t_c tokens and d_c decodes of class c, weights w_c, and D decodes in all, over the S steps and B busy seconds of a
window,

    throughput:  sum_c w_c t_c / B          weighted tokens per busy second
    itl:  1 / (B / S sum_c w_c (d_c / D) (d_c / t_c))      the inverse of the mean time per token of a request

Both are computed from counters alone: B is the time of all steps, those that prefill or catch up included. In a closed
loop, with a given number of running requests, both agree for one class. Under an open load a faster K lowers the number
of running requests, and only latency shows the gain.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specpilot.controller.estimation.observation import Snapshot
from specpilot.policy.gain import LogGain
from specpilot.policy.names import DEFAULT_CLASS

ROUNDING_S = 0.01
"""Tolerance of a snapshot's start: one that starts less than this before a window's evidence belongs to the window."""


@dataclass(slots=True)
class WindowSums:
    """Sums over the snapshots of a window; `tokens` and `decodes` are by class.

    `busy_s` is the time of all steps.
    """

    steps: float = 0.0
    busy_s: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    decodes: dict[str, float] = field(default_factory=dict)

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        evidence = snapshot.evidence
        self.steps += evidence.steps
        self.busy_s += evidence.step_seconds
        for sums, counts in ((self.tokens, evidence.decode_tokens), (self.decodes, evidence.drafts)):
            for (name, *_), count in counts.items():
                sums[name] = sums.get(name, 0.0) + count

    def log_scores(self, fewest_steps: float, weights: Mapping[str, float] | None = None) -> LogGain | None:
        """Return the logarithms of the measures; `None` with fewer steps than `fewest_steps`.

        Classes that are not in `weights` have the weight of `default`; without weights all have the same.
        """
        weight_of, tokens, times = weights or {}, 0.0, 0.0
        for name, decodes in self.decodes.items():
            weight = weight_of.get(name, weight_of.get(DEFAULT_CLASS, 1.0))
            delivered = self.tokens.get(name, 0.0)
            tokens += weight * delivered
            times += weight * decodes * decodes / delivered if delivered else 0.0
        if self.steps < fewest_steps or min(self.busy_s, tokens) <= 0:
            return None
        whole = sum(self.decodes.values())
        return LogGain(math.log(tokens / self.busy_s), -math.log(self.busy_s / self.steps * times / whole))


def mean(scores: list[LogGain]) -> LogGain:
    """Return the mean of all logarithms."""
    return LogGain(*(sum(values) / len(values) for values in zip(*scores, strict=True)))

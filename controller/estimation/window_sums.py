"""Two scores of one window of time, with which the control group and canaries compare windows of different K.

With t_c tokens and d_c decodes of class c, weights w_c, and D decodes in all, over the S steps and B busy seconds of a
window,

    throughput:  sum_c w_c t_c / B          weighted tokens per busy second
    itl:  1 / (B / S sum_c w_c (d_c / D) (d_c / t_c))      the inverse of the mean time per token of a request

In a closed loop, with a given number of running requests, both agree for one class. With open arrivals a faster K
lowers the number of running requests, and only latency shows it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from specpilot.controller.estimation.observation import Snapshot
from specpilot.policy.gain import LogGain
from specpilot.policy.types import DEFAULT_CLASS

ROUNDING_S = 0.01
"""Tolerance of the begin of a snapshot: one that begins less than this before a window's evidence belongs to it."""


@dataclass(slots=True)
class WindowSums:
    """Sums over the snapshots of a window. `counted` are the decodes of counted steps; tokens, decodes are by class."""

    steps: float = 0.0
    busy_s: float = 0.0
    counted: float = 0.0
    tokens: dict[str, float] = field(default_factory=dict)
    decodes: dict[str, float] = field(default_factory=dict)

    def take(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        evidence = snapshot.evidence
        self.steps += evidence.steps
        self.busy_s += snapshot.busy_s
        self.counted += snapshot.counted_decodes
        for sums, counts in ((self.tokens, evidence.decode_tokens), (self.decodes, evidence.drafts_of)):
            for (name, _), count in counts.items():
                sums[name] = sums.get(name, 0.0) + count

    def log_scores(self, fewest_steps: float, weights: Mapping[str, float] | None = None) -> LogGain | None:
        """Return the logarithms of both scores; `None` with fewer steps than `fewest_steps`.

        Classes that are not in `weights` have the weight of `default`; without any all have the same.
        """
        weight_of, tokens, times = weights or {}, 0.0, 0.0
        for name, decodes in self.decodes.items():
            weight = weight_of.get(name, weight_of.get(DEFAULT_CLASS, 1.0))
            delivered = self.tokens.get(name, 0.0)
            tokens += weight * delivered
            times += weight * decodes * decodes / delivered if delivered else 0.0
        if self.steps < fewest_steps or min(self.busy_s, self.counted, tokens) <= 0:
            return None
        whole = sum(self.decodes.values())
        throughput = tokens * self.counted / whole / self.busy_s
        return LogGain(math.log(throughput), -math.log(self.busy_s / self.steps * times / whole))


def mean(found: list[LogGain]) -> LogGain:
    """Return the mean of both logarithms."""
    return LogGain(*(sum(values) / len(values) for values in zip(*found, strict=True)))

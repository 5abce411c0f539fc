"""What a probe costs on this engine, in steps that draft nothing: by the engine's own prices. Pure."""

import math
from typing import NamedTuple

from specpilot.policy.prices import Prices

_LEAST_POSITION = 1e-5
"""Steps that a position takes at least, so that a budget always ends."""


class ProbePrices(NamedTuple):
    """Costs of a probe where nothing else drafts, all in steps that draft nothing.

    `drafting` is what it takes before any position: a pass of the drafter, and in the step after it what a step takes
    longer that verifies something. `verifying` is the part of that which it takes where the drafter runs in any case,
    for a prompt. `position` is one that the drafter reads or lays out, `token` one that is verified. `second` is how
    many such steps a second has.
    """

    drafting: float
    verifying: float
    position: float
    token: float
    second: float = math.inf

    def of_draft(self, backlog: int, width: int, k: int) -> float:
        """Return what a probe of `k` tokens takes beside what its step takes longer.

        The drafter reads the backlog and lays out `width` slots, both for the draft and in the step after: with drafted
        tokens the request comes with several positions, so it is in the drafter's batch once more.
        """
        return (backlog + 1 + 2 * width) * self.position + k * self.token

    @classmethod
    def of(cls, prices: Prices, n: int) -> "ProbePrices":
        """Return the costs with `n` decodes running."""
        plain = prices.step_s(n, n, 0, is_uniform=True)
        verifies = max(
            0.0, prices.step_s(n, n + 1, 0) - plain
        )  # a step in which one verifies finds a mixed graph at best
        token = max(0.0, prices.step_s(n, 2 * n, 0) - prices.step_s(n, n + 1, 0)) / max(1, n - 1)
        slot = max(prices.slot_s, prices.read_s)
        drafts = max(0.0, prices.step_s(n, n, 1) - prices.step_s(n, n, 0) - slot) + prices.reads_s
        position = max(_LEAST_POSITION, slot / plain)
        return cls((drafts + verifies) / plain, verifies / plain, position, token / plain, 1.0 / plain)

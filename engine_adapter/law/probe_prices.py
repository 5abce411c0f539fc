"""The cost of a probe by the engine's own prices. The unit is the time of a step that drafts nothing. Pure."""

import math
from typing import NamedTuple

from specpilot.policy.prices import Prices

_LEAST_POSITION = 1e-5
"""Least cost of a position, so that a budget always runs out."""


class ProbePrices(NamedTuple):
    """Costs of a probe in a step that drafts nothing else.

    `drafting` is the fixed cost: a pass of the drafter, the fixed part of reading a backlog, and `verifying`.
    `verifying` is the extra time of the next step: the target verifies a draft, and the drafter reads its positions in
    another pass. It is the whole fixed cost of a step in which the drafter runs anyway. `position` is the cost of a
    position that the drafter reads or prepares, `token` that of a token to verify. `steps_per_s`: the number of steps
    that draft nothing in a second.
    """

    drafting: float
    verifying: float
    position: float
    token: float
    steps_per_s: float = math.inf

    def of_draft(self, backlog: int, width: int, k: int) -> float:
        """Return the cost of a probe of `k` tokens without the fixed cost.

        The drafter reads the backlog and the request's position in this step, and prepares `width` slots. In the next
        step it reads the verified draft, or prepares slots again if that step drafts: at most `width` positions.
        """
        return (backlog + 1 + 2 * width) * self.position + k * self.token

    @classmethod
    def of(cls, prices: Prices, n: int) -> "ProbePrices":
        """Return the costs with `n` decodes running."""
        plain = prices.step_s(n, n, 0, is_uniform=True)
        # A step in which one request verifies is a mixed one.
        verifies = max(0.0, prices.step_s(n, n + 1, 0) - plain) + prices.reads_s
        token = max(0.0, prices.step_s(n, 2 * n, 0) - prices.step_s(n, n + 1, 0)) / max(1, n - 1)
        slot = max(prices.slot_s, prices.read_s)
        drafts = max(0.0, prices.step_s(n, n, 1) - prices.step_s(n, n, 0) - slot) + prices.reads_s
        position = max(_LEAST_POSITION, slot / plain)
        return cls((drafts + verifies) / plain, verifies / plain, position, token / plain, 1.0 / plain)

"""The cost of a probe by the engine's own prices. The unit is the time of a step that drafts nothing. Pure."""

import math
from typing import NamedTuple

from specpilot.engine_adapter.law.prices import Prices

_LEAST_POSITION = 1e-5
"""Least cost of a position, so that a budget always runs out."""

_SPAN = 12
"""The cost of a token is the slope of the step's time between 1 and S draft tokens to verify. S is the number of
decodes, and at least this constant. Over a shorter span all steps may be padded to one CUDA graph, and the slope would
be 0. Probes rarely verify more tokens than there are decodes."""


SEQUENTIAL_PROBE = 2
"""Depth of a probe if nothing else is drafted and the drafter runs one pass per token."""


class ProbePrices(NamedTuple):
    """Costs of a probe in a step that drafts nothing else.

    `drafting` is the fixed cost: a pass of the drafter, the fixed part of reading a backlog, and `verifying`.
    `verifying` is the extra time of the next step: the target verifies a draft, and the drafter reads its positions in
    another pass. If the drafter runs in every step anyway, `verifying` is the whole fixed cost. `beside_prompt` is the
    fixed cost in a step in which the drafter reads a prompt anyway, without drafting from it. `position` is the cost of
    a position that the drafter reads or prepares, `token` that of a token to verify of a request with the mean context,
    and `context` that of each further token of context for each token to verify. `steps_per_s`: how many steps a second
    has if none of them drafts. `narrowest`: the least width of a step that drafts.

    If all decodes have slots whenever one drafts (`Prices.least_width`), `drafting` includes them, and a probe has no
    positions of its own to pay for. If then all need one K, `verifying` includes the tokens of all.
    """

    drafting: float
    verifying: float
    position: float
    token: float
    beside_prompt: float
    steps_per_s: float = math.inf
    context: float = 0.0
    mean_context: float = 0.0
    narrowest: int = 1

    def of_draft(self, backlog: int, width: int, k: int, context: int = 0) -> float:
        """Return the cost of a probe of `k` tokens at this context without the fixed cost.

        The drafter reads the backlog and the request's position in this step, and prepares `width` slots. In the next
        step it reads the verified draft, or prepares slots again if that step drafts: at most `width` positions.
        """
        token = self.token + self.context * max(0.0, context - self.mean_context)
        return (backlog + 1 + width + max(width, self.narrowest)) * self.position + k * token

    @classmethod
    def of(cls, prices: Prices, n: int, k_max: int) -> "ProbePrices":
        """Return the costs with `n` decodes running."""
        plain, least = prices.plain_s(n), prices.slots(n, 0, 0)
        # A step in which one request verifies is a mixed one.
        verifies = max(0.0, prices.step_s(n, n + 1, least) - plain)
        most = min(n + max(n, _SPAN), len(prices.mixed) - 1)
        token = max(0.0, prices.step_s(n, most, 0) - prices.step_s(n, n + 1, 0)) / max(1, most - n - 1)
        if prices.least_width is not None:  # all decodes have slots, and nothing is read beside them
            depth = prices.least_width or min(k_max, SEQUENTIAL_PROBE)
            slots = prices.slots(n, depth, n)
            if prices.need_one_k:  # all decodes are probed in one step
                verifies = max(0.0, prices.step_s(n, n * (1 + depth), least, is_uniform=True) - plain)
                token = 0.0
            drafting = (max(0.0, prices.step_s(n, n, slots, depth) - prices.step_s(n, n, least)) + verifies) / plain
            contexts = prices.draft_context_s / plain, prices.context_tokens
            return cls(drafting, verifies / plain, _LEAST_POSITION, token / plain, drafting, 1.0 / plain, *contexts)
        verifies += prices.reads_s
        slot = max(prices.slot_s, prices.read_s)
        depth = min(k_max, SEQUENTIAL_PROBE)  # only a sequential drafter has further passes
        drafts = max(0.0, prices.step_s(n, n, 1, depth) - prices.step_s(n, n, 0) - slot)
        return cls(
            drafting=(drafts + prices.reads_s + verifies) / plain,
            verifying=verifies / plain,
            position=max(_LEAST_POSITION, slot / plain),
            token=token / plain,
            beside_prompt=(max(0.0, drafts - prices.reads_s) + verifies) / plain,
            steps_per_s=1.0 / plain,
            context=prices.draft_context_s / plain,
            mean_context=prices.context_tokens,
            narrowest=prices.narrowest,
        )

"""The largest K with which every running request fits into vLLM's step. Pure.

A step of vLLM has at most `max_num_scheduled_tokens` tokens. vLLM gives them out in the order of its running list; when
they are used up, later requests get none in that step. vLLM admits requests by the present K. If K rises later, they
may no longer fit into a step. Therefore K is cut to what fits.

At one K for all, a request takes `1 + K` tokens of a step. The input of a parallel drafter is the step's tokens and
`K - 1` further positions for each request, because the first of its K slots is in the place of one of its own tokens.
The drafter's buffers hold `positions` of these (`max_num_batched_tokens`). So `n` requests fit while

    n (1 + K) <= tokens        and        n (1 + K) + n (K - 1) = 2 n K <= positions        (K >= 1).

A drafter with a *block* has a constant number of positions for each request, 1 + K_max at any K, in buffers beside
those of the step. It drafts for `n` requests only while `n (1 + K_max) <= positions`. vLLM still keeps some slots for
each request in the step.

A sequential drafter needs no slots in addition to the step. At K = 0 there are no slots, so as many requests fit as
into an engine without speculation. One bound holds for all requests of a step, also for those with a smaller K, because
vLLM keeps the same number of slots for each.
"""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepRoom:
    """The size of a step of one engine: `tokens` of the target, `positions` of the drafter.

    `is_parallel`: the drafter needs slots in addition to the step. `block`: the positions that it has for each request
    at any K, 0: they follow K; `slots`: those that vLLM keeps for a request with a block.
    """

    tokens: int = sys.maxsize
    positions: int = sys.maxsize
    is_parallel: bool = False
    block: int = 0
    slots: int = 0

    @property
    def is_sequential(self) -> bool:
        """Whether the drafter makes one pass for each token of a draft."""
        return not (self.is_parallel or self.block)

    def largest_k(self, running: int) -> int:
        """Return the largest K at which `running` requests fit into the next step.

        Requests that prefill in the step count too: their prompts get the rest of the next step, at least one token.
        """
        running = max(1, running)
        if self.block:
            largest = min(self.tokens // running, self.positions // running - self.slots) - 1
            return max(0, largest) if running * self.block <= self.positions else 0
        drafted = self.positions // (2 * running) if self.is_parallel else self.positions // running - 1
        return max(0, min(self.tokens // running - 1, drafted))

    def widest(self, requests: int, tokens: int) -> int:
        """Return the largest width after a step with `tokens` tokens of `requests` requests: at least 1."""
        if not self.is_parallel or self.block or not requests:
            return sys.maxsize
        return 1 + max(0, self.positions - tokens) // requests

"""The largest K with which every running request fits into vLLM's step. Pure.

A step of vLLM has at most `max_num_scheduled_tokens` tokens. vLLM distributes them in the order of its running list; a
request for which none are left has no token in that step. vLLM admits requests by the K at that moment. If K rises
afterwards, the requests are already running, so K has to be cut.

At one K for all, a request takes `1 + K` tokens of a step. A parallel drafter reads the step once more, with `K - 1`
slots of each request beside it, in buffers of `positions` (`max_num_batched_tokens`). So `n` requests fit while

    n (1 + K) <= tokens        and        n (1 + K) + n (K - 1) = 2 n K <= positions        (K >= 1).

A sequential drafter lays nothing out beside the step. At K = 0 there are no slots, so as many requests fit as into an
engine without speculation. One bound holds for all requests of a step, also for those with a smaller K, because vLLM
keeps the same number of slots for each.
"""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The size of a step of one engine: `tokens` of the target, `positions` of the drafter.

    `is_parallel`: the drafter lays its slots out beside the step.
    """

    tokens: int = sys.maxsize
    positions: int = sys.maxsize
    is_parallel: bool = False

    def deepest(self, running: int) -> int:
        """Return the largest K at which so many `running` requests fit into the next step.

        Requests that still prefill count too: their prompts get the rest of the step, one token at least.
        """
        running = max(1, running)
        drafted = self.positions // (2 * running) if self.is_parallel else self.positions // running - 1
        return max(0, min(self.tokens // running - 1, drafted))

    def widest(self, requests: int, tokens: int) -> int:
        """Return the largest width after a step of so many `tokens` of so many `requests`: 1 at least."""
        if not self.is_parallel or not requests:
            return sys.maxsize
        return 1 + max(0, self.positions - tokens) // requests

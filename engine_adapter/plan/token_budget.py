"""How large K may be so that every running request fits into vLLM's step.

Pure. vLLM gives a step so many tokens (`max_num_scheduled_tokens`), hands them out in the order of its running list,
and a request for which none are left has no token in that step. It admits requests at the K of that moment, so when K
rises under load nothing but K can give way.

With K for everyone a request takes `1 + K` tokens of a step. A drafter that drafts in parallel reads the step once
more, `K - 1` slots of each request beside it, in buffers of `positions` (`max_num_batched_tokens`), so `n` requests fit
while

    n (1 + K) <= tokens        and        n (1 + K) + n (K - 1) = 2 n K <= positions        (K >= 1).

A sequential drafter lays nothing out beside the step. At K = 0 nothing is laid out, so as many requests fit as into an
engine without speculation. One bound holds for all requests of a step, also for those with a smaller K: vLLM keeps as
many slots for each of them.
"""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What a step of one engine has room for: `tokens` of the target, `positions` of the drafter.

    `is_parallel`: the drafter lays its slots out beside the step.
    """

    tokens: int = sys.maxsize
    positions: int = sys.maxsize
    is_parallel: bool = False

    def deepest(self, running: int) -> int:
        """Return the largest K at which so many `running` requests fit into the next step; it falls with their number.

        Requests whose prompt is not read whole count too: what is left of it gets the rest, one token at least.
        """
        running = max(1, running)
        drafted = self.positions // (2 * running) if self.is_parallel else self.positions // running - 1
        return max(0, min(self.tokens // running - 1, drafted))

    def widest(self, requests: int, tokens: int) -> int:
        """Return how wide the drafter may draft after a step of so many `tokens` of so many `requests`: 1 at least."""
        if not self.is_parallel or not requests:
            return sys.maxsize
        return 1 + max(0, self.positions - tokens) // requests

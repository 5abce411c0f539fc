"""Draft width: the drafter lays out as many positions as the step's largest K (at 0 it does not run: `undrafted`).

vLLM's P-EAGLE path (`parallel_drafting`) lays out `num_speculative_tokens` masked slots per request whatever K the
step asks for, and then reshapes by that K, so any other K fails or misassigns drafts. The slots' number is read
from two attributes at each call; setting them to the step's width before the call makes layout and reshape agree.
Sequential drafters (EAGLE, EAGLE-3) follow the step's K by themselves.

The wrapper is installed in every vLLM process by the `vllm.general_plugins` entry point, because the drafter may
live in a worker process. It does nothing for an engine whose scheduler always asks for K_max.
"""

from typing import Any

import torch
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

_INSTALLED = "_specpilot_draft_width"


def install() -> None:
    """Wrap `SpecDecodeBaseProposer.propose` once in this process."""
    if getattr(SpecDecodeBaseProposer, _INSTALLED, False):
        return
    propose = SpecDecodeBaseProposer.propose

    def propose_width(self: Any, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draft `num_speculative_tokens` tokens per request: ids of shape [requests, width]."""
        if self.parallel_drafting and self.pass_hidden_states_to_model:
            self.extra_slots_per_request = num_speculative_tokens
            self.net_num_new_slots_per_request = num_speculative_tokens - 1
        return propose(self, num_speculative_tokens, *args, **kwargs)

    SpecDecodeBaseProposer.propose = propose_width
    setattr(SpecDecodeBaseProposer, _INSTALLED, True)

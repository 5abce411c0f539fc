"""Draft width: the drafter lays out as many positions as the step's largest K (at 0 it does not run: `undrafted`).

vLLM's P-EAGLE path (`parallel_drafting`) lays out `num_speculative_tokens` masked slots per request whatever K the
step asks for, and then reshapes by that K, so any other K fails or misassigns drafts. The slots' number is read
from two attributes at each call; setting them to the step's width before the call makes layout and reshape agree.
Sequential drafters (EAGLE, EAGLE-3) follow the step's K by themselves.

The wrappers are installed in every vLLM process by the `vllm.general_plugins` entry point, because the drafter may
live in a worker process. They leave the drafters of engines with other schedulers as they are.
"""

from typing import Any

import torch
from vllm.v1.spec_decode import utils
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from engine_adapter.compat import is_steered

_INSTALLED = "_specpilot_draft_width"
_VARIES = "_specpilot_width_varies"
_COMPILED_APART = (1, 2, 16)
"""One width of each kind that Triton compiles a kernel for: 1, multiples of 16, and all others."""


def install() -> None:
    """Wrap the making and the `propose` of vLLM's drafters once in this process."""
    if getattr(SpecDecodeBaseProposer, _INSTALLED, False):
        return
    init, propose = SpecDecodeBaseProposer.__init__, SpecDecodeBaseProposer.propose

    def init_at_every_width(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        is_laid_out = self.parallel_drafting and self.pass_hidden_states_to_model
        setattr(self, _VARIES, is_laid_out and is_steered(self.vllm_config))
        if getattr(self, _VARIES):
            warm_up(self)

    def propose_width(self: Any, num_speculative_tokens: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Draft `num_speculative_tokens` tokens per request: ids of shape [requests, width]."""
        if getattr(self, _VARIES):
            self.extra_slots_per_request = num_speculative_tokens
            self.net_num_new_slots_per_request = num_speculative_tokens - 1
        return propose(self, num_speculative_tokens, *args, **kwargs)

    SpecDecodeBaseProposer.__init__ = init_at_every_width
    SpecDecodeBaseProposer.propose = propose_width
    setattr(SpecDecodeBaseProposer, _INSTALLED, True)


def warm_up(drafter: Any) -> None:
    """Ask vLLM to compile the kernel that lays out slots for every width, as it does by itself for K_max.

    Otherwise the first steps of some widths would wait for a compiler. vLLM before 0.30 compiles at first use anyway.
    """
    register = getattr(getattr(utils, "_copy_and_expand_eagle_inputs", None), "register_warmup", None)
    if register is not None:
        for width in _COMPILED_APART:
            if width <= drafter.num_speculative_tokens:
                register(
                    parallel_drafting_token_id=drafter.parallel_drafting_token_id,
                    num_padding_slots_per_request=width,
                    shift_input_ids=drafter.pass_hidden_states_to_model,
                    max_num_tokens=drafter.max_num_tokens,
                )

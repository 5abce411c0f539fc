"""Draft width: the drafter prepares as many positions as the step's largest K (at 0 it does not run: `undrafted`).

vLLM's P-EAGLE path (`parallel_drafting`) prepares `num_speculative_tokens` masked slots per request at any K of the
step, and then reshapes by the step's K. So any other K fails or assigns drafts to wrong requests. vLLM reads the number
of slots from two attributes at each call. They are set to the step's width before the call, so that layout and reshape
agree. Other drafters (EAGLE, EAGLE-3, DFlash) use the width of the call themselves.
"""

from typing import Any

from vllm.v1.spec_decode import utils

_COMPILED_APART = (1, 2, 16)
"""One width of each kind that Triton compiles a kernel for: 1, multiples of 16, and all others."""


def lay_out(drafter: Any, width: int) -> None:
    """Set the number of positions that a parallel `drafter` prepares for each request from its next call on."""
    if varies(drafter):
        drafter.extra_slots_per_request = width
        drafter.net_num_new_slots_per_request = width - 1


def warm_up(drafter: Any) -> None:
    """Make vLLM compile the kernel that prepares slots for every width, as it does for K_max.

    Otherwise the first steps of some widths would wait for the compiler. vLLM before 0.30 compiles at first use anyway.
    """
    register = getattr(getattr(utils, "_copy_and_expand_eagle_inputs", None), "register_warmup", None)
    if register is not None and varies(drafter):
        for width in _COMPILED_APART:
            if width <= drafter.num_speculative_tokens:
                register(
                    parallel_drafting_token_id=drafter.parallel_drafting_token_id,
                    num_padding_slots_per_request=width,
                    shift_input_ids=drafter.pass_hidden_states_to_model,
                    max_num_tokens=drafter.max_num_tokens,
                )


def varies(drafter: Any) -> bool:
    """Whether the drafter prepares a slot for each token that it drafts, like P-EAGLE."""
    return bool(drafter.parallel_drafting and drafter.pass_hidden_states_to_model and drafter.method != "dflash")

"""Draft width: the drafter lays out as many positions as the step's largest K (at 0 it does not run: `undrafted`).

vLLM's P-EAGLE path (`parallel_drafting`) lays out `num_speculative_tokens` masked slots per request at any K of the
step, and then reshapes by the step's K, so any other K fails or misassigns drafts. The number of slots is read from two
attributes at each call; set to the step's width before the call, they make layout and reshape agree. Sequential
drafters (EAGLE, EAGLE-3) follow the step's K themselves.
"""

from typing import Any

from vllm.v1.spec_decode import utils

_COMPILED_APART = (1, 2, 16)
"""One width of each kind that Triton compiles a kernel for: 1, multiples of 16, and all others."""


def lay_out(drafter: Any, width: int) -> None:
    """Set the number of positions that a parallel `drafter` lays out for each request from its next call on."""
    if _varies(drafter):
        drafter.extra_slots_per_request = width
        drafter.net_num_new_slots_per_request = width - 1


def warm_up(drafter: Any) -> None:
    """Make vLLM compile the kernel that lays out slots for every width, as it does for K_max.

    Otherwise the first steps of some widths would wait for a compiler. vLLM before 0.30 compiles at first use anyway.
    """
    register = getattr(getattr(utils, "_copy_and_expand_eagle_inputs", None), "register_warmup", None)
    if register is not None and _varies(drafter):
        for width in _COMPILED_APART:
            if width <= drafter.num_speculative_tokens:
                register(
                    parallel_drafting_token_id=drafter.parallel_drafting_token_id,
                    num_padding_slots_per_request=width,
                    shift_input_ids=drafter.pass_hidden_states_to_model,
                    max_num_tokens=drafter.max_num_tokens,
                )


def _varies(drafter: Any) -> bool:
    """Whether the drafter lays out a slot for each token that it drafts: P-EAGLE does."""
    return bool(drafter.parallel_drafting and drafter.pass_hidden_states_to_model)

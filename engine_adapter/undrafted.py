"""Steps without drafts, prepared and sampled as in an engine without speculation.

vLLM treats every step of a speculating engine alike: it lays out the drafts to verify, runs the rejection sampler and
prepares the drafter's input even when there is nothing to verify and nothing to draft. At K = 0 that would be all that
is left of speculation, and for a small model a sixth of the step. So:

- a step whose drafts nobody wants (`num_spec_tokens_to_schedule` 0) is handled as one whose tokens do not fit into the
  drafter: vLLM then keeps the sampled tokens for the next step and neither prepares nor runs the drafter. What the
  drafter misses, here and where vLLM cannot draft, goes to its `backlog`;
- a step that verifies no draft is laid out and sampled as in an engine without speculation: while vLLM lays it out, the
  runner has no `speculative_config`. Older versions of vLLM lay it out so by themselves. The recurrent layers of hybrid
  models count on a layout with drafts in every step, so theirs is left as it is.

Both give what vLLM would have given. A step with a single draft in it goes vLLM's own way. Which CUDA graphs the
target's pass finds depends on K, and is left as it is (docs/engine.md).
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from engine_adapter.backlog import BACKLOG
from engine_adapter.plan import CATCH_UP

_INSTALLED = "_specpilot_undrafted"
_STATE = "_specpilot_state"


def install() -> None:
    """Wrap `GPUModelRunner`, which all of vLLM's runners derive from, once in this process."""
    if getattr(GPUModelRunner, _INSTALLED, False):
        return
    sample, sample_tokens = GPUModelRunner._sample, GPUModelRunner.sample_tokens
    fits = GPUModelRunner._input_fits_in_drafter

    def sample_undrafted(self: Any, logits: torch.Tensor | None, metadata: SpecDecodeMetadata | None) -> Any:
        """Sample without the rejection sampler when there is nothing to reject; then see to the backlog."""
        verified = metadata if metadata is not None and metadata.max_spec_len > 0 else None
        output = sample(self, logits, verified)
        state = getattr(self, _STATE, None)
        backlog = getattr(getattr(self, "drafter", None), BACKLOG, None)
        if state is None or backlog is None or state.spec_decode_common_attn_metadata is None:
            return output
        # A scheduler that is not the adapter's names nobody: then everyone catches up.
        backlog.catch_up(self, state, getattr(state.scheduler_output, CATCH_UP, self.input_batch.req_ids))
        if fits_if_wanted(self, state.spec_decode_common_attn_metadata):
            backlog.keep_waiting(self, state)
        else:
            backlog.keep(self, state, None if verified is None else rejected(verified, output.sampled_token_ids))
        return output

    def sample_tokens_noting(self: Any, grammar_output: Any) -> Any:
        setattr(self, _STATE, self.execute_model_state)
        try:
            return sample_tokens(self, grammar_output)
        finally:
            setattr(self, _STATE, None)

    def fits_if_wanted(self: Any, common_attn_metadata: Any) -> bool:
        return is_wanted(getattr(self, _STATE, None)) and fits(self, common_attn_metadata)

    GPUModelRunner._prepare_inputs = without_speculation(GPUModelRunner._prepare_inputs)
    # What this adds for an engine that speculates is to find placeholders of drafts, which only a draft brings.
    GPUModelRunner._preprocess = without_speculation(GPUModelRunner._preprocess)
    GPUModelRunner._sample = sample_undrafted
    GPUModelRunner.sample_tokens = sample_tokens_noting
    GPUModelRunner._input_fits_in_drafter = fits_if_wanted
    _hand_no_zeros_over()
    setattr(GPUModelRunner, _INSTALLED, True)


def without_speculation(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a runner's `method` of a step: without a draft to verify, it sees an engine that does not speculate."""

    @wraps(method)
    def wrapped(self: Any, scheduler_output: Any, *args: Any) -> Any:
        if scheduler_output.scheduled_spec_decode_tokens or self.model_config.is_hybrid:
            return method(self, scheduler_output, *args)
        config, self.speculative_config = self.speculative_config, None
        try:
            return method(self, scheduler_output, *args)
        finally:
            self.speculative_config = config

    return wrapped


def _hand_no_zeros_over() -> None:
    copy = GPUModelRunner._copy_draft_token_ids_to_cpu

    def copy_wanted(self: Any, scheduler_output: Any, zeros_only: bool = False) -> None:  # noqa: FBT001, FBT002 - vLLM's
        """Hand no drafts over where nobody asked for any; the synchronous scheduler would only drop the zeros."""
        if not zeros_only or self.use_async_scheduling or is_wanted(getattr(self, _STATE, None)):
            copy(self, scheduler_output, zeros_only)

    GPUModelRunner._copy_draft_token_ids_to_cpu = copy_wanted


def is_wanted(state: Any) -> bool:
    """Whether the scheduler asks for drafts after the step of which the runner keeps `state`, if it keeps one."""
    return state is None or state.scheduler_output.num_spec_tokens_to_schedule != 0


def rejected(metadata: SpecDecodeMetadata, sampled: torch.Tensor) -> torch.Tensor:
    """Return how many draft tokens of each request were rejected, from `sampled` [requests, K_max + 1]: [requests]."""
    return torch.diff(metadata.cu_num_sampled_tokens, prepend=metadata.cu_num_sampled_tokens.new_zeros(1)) - (
        sampled != PLACEHOLDER_TOKEN_ID
    ).sum(dim=1)

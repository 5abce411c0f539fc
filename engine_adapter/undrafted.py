"""Steps without drafts: run as in an engine without speculation, and kept for the drafter.

vLLM treats every step of a speculating engine alike: it lays out the drafts to verify and prepares the drafter's input
even when there is nothing to verify and nothing to draft. At K = 0 that would be all that is left of speculation, and
for a small model a sixth of the step. So:

- a *plain* step, in which requests decode one token each, without drafts to verify, to draft or to catch up for, is run
  as in an engine without speculation: for its time the runner has no `speculative_config`. The recurrent layers of
  hybrid models count on a layout with drafts in every step, so theirs are left as they are;
- another step whose drafts nobody wants (`num_spec_tokens_to_schedule` 0) is handled as one whose tokens do not fit
  into the drafter: vLLM then keeps the sampled tokens for the next step and neither prepares nor runs the drafter.

What the drafter misses, here and where vLLM cannot draft, goes to its `backlog`. Both give what vLLM would have given.
Which CUDA graphs the target's pass finds depends on K, and is left as it is (docs/engine.md).
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

PLAIN = "_specpilot_plain"
"""The attribute of a runner that says whether its latest step is plain."""

_INSTALLED = "_specpilot_undrafted"
_STATE = "_specpilot_state"


def install() -> None:
    """Wrap `GPUModelRunner`, which all of vLLM's runners derive from, once in this process."""
    if getattr(GPUModelRunner, _INSTALLED, False):
        return
    execute_model, sample_tokens = GPUModelRunner.execute_model, GPUModelRunner.sample_tokens
    sample, fits = GPUModelRunner._sample, GPUModelRunner._input_fits_in_drafter

    @wraps(execute_model)
    def execute_plainly(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        setattr(self, PLAIN, is_plain(self, scheduler_output))
        return without_speculation(self, execute_model, scheduler_output, *args, **kwargs)

    def sample_tokens_noting(self: Any, grammar_output: Any) -> Any:
        setattr(self, _STATE, self.execute_model_state)
        try:
            return without_speculation(self, sample_tokens, grammar_output)
        finally:
            setattr(self, _STATE, None)

    def sample_then_keep(self: Any, logits: torch.Tensor | None, metadata: SpecDecodeMetadata | None) -> Any:
        """Sample as vLLM does; then see to the backlog."""
        output = sample(self, logits, metadata)
        state = getattr(self, _STATE, None)
        backlog = getattr(getattr(self, "drafter", None), BACKLOG, None)
        if state is None or backlog is None:
            return output
        common = state.spec_decode_common_attn_metadata
        if getattr(self, PLAIN):
            backlog.keep_plain(self, state)
        elif common is not None:
            # A scheduler that is not the adapter's names nobody: then everyone catches up.
            backlog.catch_up(self, state, getattr(state.scheduler_output, CATCH_UP, self.input_batch.req_ids))
            if fits_if_wanted(self, common):
                backlog.keep_waiting(self, state)
            else:
                backlog.keep(self, state, None if metadata is None else rejected(metadata, output.sampled_token_ids))
        return output

    def fits_if_wanted(self: Any, common_attn_metadata: Any) -> bool:
        return is_wanted(getattr(self, _STATE, None)) and fits(self, common_attn_metadata)

    GPUModelRunner.execute_model = execute_plainly
    GPUModelRunner.sample_tokens = sample_tokens_noting
    GPUModelRunner._sample = sample_then_keep
    GPUModelRunner._input_fits_in_drafter = fits_if_wanted
    setattr(GPUModelRunner, _INSTALLED, True)


def is_plain(runner: Any, scheduler_output: Any) -> bool:
    """Whether a step is as in an engine without speculation; only the adapter's scheduler plans such steps."""
    return (
        scheduler_output.num_spec_tokens_to_schedule == 0
        and getattr(scheduler_output, CATCH_UP, None) == ()
        and not scheduler_output.scheduled_spec_decode_tokens
        and scheduler_output.total_num_scheduled_tokens == len(scheduler_output.num_scheduled_tokens)
        and not runner.model_config.is_hybrid
    )


def without_speculation(runner: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `method` of the `runner`; in a plain step, it sees an engine that does not speculate."""
    if not getattr(runner, PLAIN):
        return method(runner, *args, **kwargs)
    config, runner.speculative_config = runner.speculative_config, None
    try:
        return method(runner, *args, **kwargs)
    finally:
        runner.speculative_config = config


def is_wanted(state: Any) -> bool:
    """Whether the scheduler asks for drafts after the step of which the runner keeps `state`, if it keeps one."""
    return state is None or state.scheduler_output.num_spec_tokens_to_schedule != 0


def rejected(metadata: SpecDecodeMetadata, sampled: torch.Tensor) -> torch.Tensor:
    """Return how many draft tokens of each request were rejected, from `sampled` [requests, K_max + 1]: [requests]."""
    return torch.diff(metadata.cu_num_sampled_tokens, prepend=metadata.cu_num_sampled_tokens.new_zeros(1)) - (
        sampled != PLACEHOLDER_TOKEN_ID
    ).sum(dim=1)

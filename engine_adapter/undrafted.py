"""Steps without drafts: run as in an engine without speculation, and kept for the drafter.

vLLM treats every step of a speculating engine alike: it lays out the drafts to verify, samples against them and
prepares the drafter's input even when there is nothing to verify and nothing to draft. At K = 0 that would be all that
is left of speculation, and for a small model a tenth of the step. So, in an engine with the adapter's scheduler:

- a *plain* step, which has one token of each request and neither verifies, drafts nor catches up, is run by vLLM's code
  for engines without speculation: for its time the runner has no `speculative_config`;
- another step that verifies nothing is laid out so, and therefore sampled so. Older versions of vLLM do that by
  themselves;
- another step whose drafts nobody wants (`num_spec_tokens_to_schedule` 0) is handled as one whose tokens do not fit
  into the drafter: vLLM then keeps the sampled tokens for the next step and neither prepares nor runs the drafter.

All give what vLLM would have given. The recurrent layers of hybrid models count on a layout with drafts in every step,
so only the last holds for them. Which CUDA graphs the target's pass finds depends on K, and is left as it is
(docs/engine.md). What the drafter misses, here and where vLLM cannot draft, goes to its `backlog`.
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
from engine_adapter.rows import Rows

PLAIN = "_specpilot_plain"
"""The attribute of a runner that says whether its latest step is plain."""

_INSTALLED = "_specpilot_undrafted"
_STATE = "_specpilot_state"


def install() -> None:
    """Wrap `GPUModelRunner`, which all of vLLM's runners derive from, once in this process."""
    if getattr(GPUModelRunner, _INSTALLED, False):
        return
    execute_model, sample_tokens = GPUModelRunner.execute_model, GPUModelRunner.sample_tokens
    prepare, sample = GPUModelRunner._prepare_inputs, GPUModelRunner._sample
    fits = GPUModelRunner._input_fits_in_drafter

    @wraps(execute_model)
    def execute_plainly(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        backlog = getattr(getattr(self, "drafter", None), BACKLOG, None)
        if backlog is not None:
            forget_useless(backlog.rows, scheduler_output)
        setattr(self, PLAIN, is_plain(self, scheduler_output))
        return as_without_speculation(self, getattr(self, PLAIN), execute_model, scheduler_output, *args, **kwargs)

    def prepare_inputs(self: Any, scheduler_output: Any, *args: Any) -> Any:
        is_rest_of_them = not getattr(self, PLAIN, False) and is_undrafted(self, scheduler_output)
        return as_without_speculation(self, is_rest_of_them, prepare, scheduler_output, *args)

    def sample_tokens_noting(self: Any, grammar_output: Any) -> Any:
        setattr(self, _STATE, self.execute_model_state)
        try:
            return as_without_speculation(self, getattr(self, PLAIN, False), sample_tokens, grammar_output)
        finally:
            setattr(self, _STATE, None)

    def sample_then_keep(self: Any, logits: torch.Tensor | None, metadata: SpecDecodeMetadata | None) -> Any:
        output = sample(self, logits, metadata)
        state = getattr(self, _STATE, None)
        if state is not None and hasattr(getattr(self, "drafter", None), BACKLOG):
            see_to_backlog(self, state, metadata, output.sampled_token_ids)
        return output

    def fits_if_wanted(self: Any, common_attn_metadata: Any) -> bool:
        return is_wanted(getattr(self, _STATE, None)) and fits(self, common_attn_metadata)

    GPUModelRunner.execute_model = execute_plainly
    GPUModelRunner._prepare_inputs = prepare_inputs
    GPUModelRunner.sample_tokens = sample_tokens_noting
    GPUModelRunner._sample = sample_then_keep
    GPUModelRunner._input_fits_in_drafter = fits_if_wanted
    setattr(GPUModelRunner, _INSTALLED, True)


def forget_useless(rows: Rows, scheduler_output: Any) -> None:
    """Forget the `rows` of requests that have ended, and of those that a step prefills from the beginning."""
    new, resumed = scheduler_output.scheduled_new_reqs, scheduler_output.scheduled_cached_reqs.resumed_req_ids
    if scheduler_output.finished_req_ids or resumed or new:
        rows.forget([*scheduler_output.finished_req_ids, *resumed, *(request.req_id for request in new)])


def see_to_backlog(runner: Any, state: Any, metadata: SpecDecodeMetadata | None, sampled: torch.Tensor) -> None:
    """Let the drafter catch up, and keep what it misses of a step that verified what `metadata` says, if anything.

    `state` is the runner's, as it was before sampling; `sampled` [requests, tokens].
    """
    backlog, common = getattr(runner.drafter, BACKLOG), state.spec_decode_common_attn_metadata
    if getattr(runner, PLAIN, False):
        backlog.keep_plain(runner, state)
    elif common is not None:
        backlog.catch_up(runner, state, getattr(state.scheduler_output, CATCH_UP, ()))
        if runner._input_fits_in_drafter(common):
            backlog.keep_waiting(runner, state)
        else:
            backlog.keep(runner, state, None if metadata is None else rejected(metadata, sampled))


def is_plain(runner: Any, scheduler_output: Any) -> bool:
    """Whether a step has one token of each request and neither verifies, drafts nor catches up."""
    return (
        scheduler_output.num_spec_tokens_to_schedule == 0
        and scheduler_output.total_num_scheduled_tokens == len(scheduler_output.num_scheduled_tokens)
        and is_undrafted(runner, scheduler_output)
        and not getattr(scheduler_output, CATCH_UP)
    )


def is_undrafted(runner: Any, scheduler_output: Any) -> bool:
    """Whether a step that the adapter's scheduler planned verifies nothing, and the model can be told so."""
    return (
        is_own(scheduler_output)
        and not scheduler_output.scheduled_spec_decode_tokens
        and not runner.model_config.is_hybrid
    )


def is_own(scheduler_output: Any) -> bool:
    """Whether the adapter's scheduler planned a step."""
    return hasattr(scheduler_output, CATCH_UP)


def is_wanted(state: Any) -> bool:
    """Whether drafts are wanted after the step of which the runner keeps `state`; vLLM's own schedulers see to that."""
    return (
        state is None or not is_own(state.scheduler_output) or state.scheduler_output.num_spec_tokens_to_schedule != 0
    )


def as_without_speculation(
    runner: Any,
    is_hidden: bool,  # noqa: FBT001 - of each of a runner's methods
    method: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call `method` of the `runner`; if `is_hidden`, it sees an engine that does not speculate."""
    if not is_hidden:
        return method(runner, *args, **kwargs)
    config, runner.speculative_config = runner.speculative_config, None
    try:
        return method(runner, *args, **kwargs)
    finally:
        runner.speculative_config = config


def rejected(metadata: SpecDecodeMetadata, sampled: torch.Tensor) -> torch.Tensor:
    """Return how many draft tokens of each request were rejected, from `sampled` [requests, K_max + 1]: [requests]."""
    return torch.diff(metadata.cu_num_sampled_tokens, prepend=metadata.cu_num_sampled_tokens.new_zeros(1)) - (
        sampled != PLACEHOLDER_TOKEN_ID
    ).sum(dim=1)

"""Runs steps without drafts as in an engine without speculation, and keeps the positions that the drafter misses.

vLLM treats every step of a speculating engine in the same way: it prepares drafts to verify, samples against them and
prepares the drafter's input even if there is nothing to verify and nothing to draft. At K = 0 this would be the whole
cost of speculation, for a small model a tenth of the step. In an engine with the adapter's scheduler:

1. a *plain* step has one token of each request, and neither verifies, drafts nor catches up. vLLM's code for engines
   without speculation runs it: during the step the runner has no `speculative_config`;
2. any other step that verifies nothing is prepared, and therefore sampled, in the same way. Older versions of vLLM do
   that themselves;
3. any other step of width 0 is handled like a step whose tokens do not fit into the drafter: vLLM keeps the sampled
   tokens for the next step, and neither prepares nor runs the drafter.

The results are those of vLLM. The recurrent layers of hybrid models expect a layout with drafts in every step, so only
3 applies to them. `graphs` chooses the CUDA graphs of these steps. Positions that the drafter misses, here and in steps
in which vLLM cannot draft, go to its `backlog`.
"""

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID
from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

from specpilot.engine_adapter.vllm.scheduler_output import plan_of
from specpilot.engine_adapter.vllm.v1.backlog import multiple
from specpilot.engine_adapter.vllm.v1.drafting import Drafting


def see_to_backlog(drafting: Drafting, runner: Any, metadata: SpecDecodeMetadata | None, sampled: torch.Tensor) -> None:
    """Make the drafter catch up, and keep the rows of the step that it misses; `metadata` describes verified drafts.

    `sampled` [requests, tokens].
    """
    backlog, state, plan = drafting.backlog, drafting.state, drafting.plan
    common = state.spec_decode_common_attn_metadata
    if drafting.is_plain:
        backlog.keep_plain(runner, state)
    elif common is not None:
        backlog.catch_up(runner, state, plan.catch_up if plan is not None else ())
        if not runner._input_fits_in_drafter(common):
            if plan is None or plan.width == 0:  # a plan with a width counts on nothing that is read later
                deferred = plan.deferred if plan is not None else ()
                backlog.keep(runner, state, None if metadata is None else rejected(metadata, sampled), deferred)
        elif plan is not None and plan.left_out:
            backlog.keep_of(plan.left_out, runner, state)


def reads_ahead(drafting: Drafting, runner: Any, state: Any) -> bool:
    """Whether the drafter runs before some of the target's outputs of a step are read.

    Passes over rows, or over positions of the step, run before vLLM's drafting reads these outputs. vLLM's own drafting
    runs before the log-probabilities of a prompt's tokens are computed. `state` is the runner's between the target's
    pass and sampling.
    """
    if drafting.is_plain or drafting.plan is None:
        return False
    if drafting.plan.width > 0 and runner.num_prompt_logprobs:
        return True
    common = state.spec_decode_common_attn_metadata
    takes_in = common is not None and common.max_query_len > 1
    if takes_in and drafting.plan.width > 0:
        takes_in = not runner._input_fits_in_drafter(common)
    elif takes_in and drafting.plan.deferred:
        takes_in = len(multiple(runner, state)) > len(drafting.plan.deferred)
    return takes_in or bool(drafting.plan.catch_up)


def is_plain(runner: Any, scheduler_output: Any) -> bool:
    """Whether a step has one token of each request and neither verifies, drafts nor catches up."""
    plan = plan_of(scheduler_output)
    return (
        plan is not None
        and plan.width == 0
        and not plan.catch_up
        and scheduler_output.total_num_scheduled_tokens == len(scheduler_output.num_scheduled_tokens)
        and is_undrafted(runner, scheduler_output)
    )


def is_undrafted(runner: Any, scheduler_output: Any) -> bool:
    """Whether a step that the adapter's scheduler planned verifies nothing, and the model allows such a layout."""
    return (
        plan_of(scheduler_output) is not None
        and not scheduler_output.scheduled_spec_decode_tokens
        and not runner.model_config.is_hybrid
    )


def as_without_speculation(
    runner: Any,
    is_hidden: bool,  # noqa: FBT001 - one for each of a runner's methods
    method: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call `method` of the `runner`; if `is_hidden`, the engine seems not to speculate."""
    if not is_hidden:
        return method(runner, *args, **kwargs)
    config, runner.speculative_config = runner.speculative_config, None
    try:
        return method(runner, *args, **kwargs)
    finally:
        runner.speculative_config = config


def rejected(metadata: SpecDecodeMetadata, sampled: torch.Tensor) -> torch.Tensor:
    """Return the number of rejected draft tokens of each request, from `sampled` [requests, K_max + 1]: [requests]."""
    return torch.diff(metadata.cu_num_sampled_tokens, prepend=metadata.cu_num_sampled_tokens.new_zeros(1)) - (
        sampled != PLACEHOLDER_TOKEN_ID
    ).sum(dim=1)

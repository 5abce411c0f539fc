"""One step of a steered speculator of model runner V2: its requests, its width, and the rows before it.

vLLM's speculator runs its first pass in every step, so that its KV cache stays complete, and at width 0 omits the other
passes. Here the plan of the step (`engine_adapter.plan.planner`) decides:

- requests in `catch_up` catch up first, in any step;
- width 0: the speculator does not run; a row is kept for each request;
- `left_out`: a row is kept for each of these requests, and the speculator runs over the others alone.

A speculator without a backlog runs in every step as in vLLM, at the width of the plan.
"""

from collections.abc import Callable
from typing import Any

import torch

from specpilot.engine_adapter.vllm.scheduler_output import places_of
from specpilot.engine_adapter.vllm.v2.graphs import note_longest
from specpilot.engine_adapter.vllm.v2.steered import Steered
from specpilot.engine_adapter.vllm.v2.step import Step
from specpilot.engine_adapter.vllm.v2.subset import chosen, spread


def planned(
    speculator: Any, steered: Steered, propose: Callable[..., torch.Tensor], arguments: dict[str, Any]
) -> torch.Tensor:
    """Return the drafts [requests, K_max] of a step with a plan; -1 if nothing is drafted.

    `propose` is vLLM's method, `arguments` are its own by name, without the speculator.
    """
    plan, backlog, batch = steered.plan, steered.backlog, arguments["input_batch"]
    if plan is None:
        return propose(speculator, **arguments)
    if backlog is None:
        note_longest(speculator, batch)
        return propose(speculator, **arguments)
    step = Step.of(arguments)
    backlog.catch_up(step, plan.catch_up)
    if plan.width == 0:
        backlog.keep(step, plan.deferred)
        drafts: torch.Tensor = speculator.draft_tokens[: batch.num_reqs]
        confidences(speculator, batch.num_reqs).fill_(1.0)
        return drafts.fill_(-1)
    if not plan.left_out:
        note_longest(speculator, batch)
        return propose(speculator, **arguments)
    backlog.keep_of(plan.left_out, step)
    places = places_of(batch.req_ids, plan.left_out)
    drafts = propose(speculator, **chosen(speculator, arguments, places, step.cut))
    estimates = confidences(speculator, batch.num_reqs)
    estimates.copy_(spread(estimates[: len(places)], places, batch.num_reqs, 1.0))
    return spread(drafts, places, batch.num_reqs)


def confidences(speculator: Any, count: int) -> torch.Tensor:
    """Return the estimated acceptance of each draft token of `count` requests, [count, K_max], as vLLM will read it.

    vLLM's adaptive verification reads them after each step. If nothing is drafted the value is 1, vLLM's own for
    unknown.
    """
    estimates: torch.Tensor = speculator.draft_token_confidence_probs[:count]
    return estimates

"""Acceptance after a spell of K = 0 in a real engine: drafter never off, off and caught up, off and not caught up.

Caught up "in parts" means that every few steps of the spell another third of the requests did, and that in half of
these steps the drafter ran, for them alone. "Left out in turns" means that it ran in every step, at changing width, for
one half of them and then for the other, as in steps in which some have K = 0 and others not.

"Deferred" is "whole", except that the prompts wait as rows and go through the drafter some steps later.

"Not copied" is "caught up" without the copy of the target's states that an accelerator's graphs make necessary; only
for "poison", where it must show.

Finds for each way the accepted and verified draft tokens after the spell. Text and positions are the same in all, and
the KV blocks are recycled, so what a hole shows to the drafter is another request's cache.
"""

import sys
from collections import Counter
from importlib import import_module
from typing import Any

from vllm import SamplingParams

from specpilot.engine_adapter.evidence.meter import Draft
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.step_plan import StepPlan
from tests.support.engine_program import finish, head, start
from tests.support.interpreter import ON_V2
from tests.support.stack import prompts

backlog: Any = import_module(f"specpilot.engine_adapter.vllm.{'v2' if ON_V2 else 'v1'}.backlog")
BEGIN, SPELL, AFTER, K = (8, 20, 16, 7) if ON_V2 else (16, 64, 80, 7)
REQUESTS = 6 if ON_V2 else 18


def main(mode: str, drafter: str, *only: str) -> None:  # noqa: C901 - the ways stand side by side
    """Serve the same requests in each of the ways.

    `mode`: whether vLLM compiles the models, or runs them "eager", or eagerly with "poison": each pass of the drafter
    first writes NaN over what the target's pass left, as a CUDA graph may, whose outputs share memory with others.
    `drafter`: the demo model's `peagle`, `eagle3`, `mtp` or `dflash`. Also on model runner V2, through
    `tests.support.interpreter`: there `only` names the ways, else all.
    """
    llm = engine(mode, drafter)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    catch_up, commit = backlog.Backlog.catch_up, scheduler.meter.commit
    drafts: list[Draft] = []
    seen: Counter[str] = Counter()
    found: dict[str, Any] = {}
    step = 0
    way = ""

    def plan(states: list[DraftState], table: Any, **_: Any) -> StepPlan:
        nonlocal step
        step += 1
        for state in states:
            state.k = state.chosen_k = K if step >= BEGIN + SPELL else 0
        requests = [state.request_id for state in states]
        if way == "deferred" and step < BEGIN // 2:
            return StepPlan(
                0, deferred=tuple(state.request_id for state in states if state.is_text_prompt and state.positions > 1)
            )
        if way in ("whole", "deferred") or not BEGIN <= step < BEGIN + SPELL:
            return StepPlan(max(1, *(state.k for state in states), 0), catch_up=tuple(requests))
        width, part = 0, list[str]()
        if way == "in parts" and step % 5 == 0:
            width, part = step % 2, requests[step % 3 :: 3]
        elif way == "left out in turns":
            width, part = 1 + step % K, requests[step % 2 :: 2]
        others = set(requests) - set(part) if width else ()
        return StepPlan(width, catch_up=tuple(part), left_out=tuple(others))

    def caught_up_or_not(own: Any, *step_and_wanted: Any) -> None:
        if way == "hole":
            own.rows.drop()
        seen[way] += not own.rows.by_request().keys().isdisjoint(step_and_wanted[-1])
        catch_up(own, *step_and_wanted)

    def noted(shape: Any, seconds: float, context: int, outcome: Any) -> None:
        drafts.extend(outcome.drafts)
        commit(shape, seconds, context, outcome)

    scheduler.steps._planner.plan = plan
    scheduler.steps._planner.identical_steps_ahead = lambda *_: 0  # every step asks
    scheduler.meter.commit = noted
    backlog.Backlog.catch_up = caught_up_or_not
    every = [item["messages"] for _, item in (prompts(9)[3:] if ON_V2 else prompts(REQUESTS))]  # few, so not of chat
    sampling = SamplingParams(temperature=0, max_tokens=BEGIN + SPELL + AFTER, ignore_eos=True)
    ways = ["whole", "deferred", "caught up", "left out in turns", "hole"]
    ways = [way for way in ways if way in only or not only] if ON_V2 else ["warm-up", "in parts", *ways]
    for way in [*ways, "not copied"] if mode == "poison" else ways:
        step = 0
        drafts.clear()
        if way == "not copied":
            backlog.Backlog.beyond_passes = lambda _, state, **__: state
        replies = llm.chat(every if way != "warm-up" else every[::-1], sampling, use_tqdm=False)
        found[way] = {
            "accepted": sum(draft.accepted for draft in drafts),
            "verified": sum(draft.k for draft in drafts),
            "catch_ups": seen[way],
            "ids": [list(reply.outputs[0].token_ids) for reply in replies],
        }
    finish(found)


def engine(mode: str, drafter: str) -> Any:
    """Return an engine of the demo pair with this head, run so."""
    if mode == "poison":
        backlog.states_stay = lambda *_: False  # as on an accelerator
        backlog.largest_graph = lambda _: sys.maxsize  # every step's outputs are of a graph, as all are written over
    llm = start(
        head(drafter, K),
        enforce_eager=mode != "compiled",
        max_num_seqs=REQUESTS,
        max_model_len=512,
        num_gpu_blocks_override=80,
        enable_prefix_caching=False,
    )
    if mode == "poison":
        poison(llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner)
    return llm


def poison(runner: Any) -> None:
    """Let each pass of the drafter first fill the target's latest outputs with NaN."""
    execute_model, left = runner.execute_model, list[Any]()

    def noting(*args: Any, **kwargs: Any) -> Any:
        output = execute_model(*args, **kwargs)
        state = runner.execute_model_state
        left[:] = [] if state is None else [*(state.aux_hidden_states or ()), state.hidden_states]
        return output

    def fill(*_: Any) -> None:
        for outputs in left:
            outputs.fill_(float("nan"))

    runner.execute_model = noting
    runner.drafter.model.register_forward_pre_hook(fill)


if __name__ == "__main__":
    main(*sys.argv[1:])

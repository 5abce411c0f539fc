"""Acceptance after a spell of K = 0 in a real engine: drafter never off, off and caught up, off and not caught up.

Caught up "in parts" means that every few steps of the spell another third of the requests did, and that in half of
these steps the drafter ran, for them alone.

Run as a program it prints, for each way, accepted and verified draft tokens after the spell. Text and positions are the
same in all three, and the KV blocks are recycled, so what a hole shows to the drafter is another request's cache.
"""

import json
import os
import sys
from collections import Counter
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))), "OMP_NUM_THREADS": "1"}

from vllm import LLM, SamplingParams

from engine_adapter import backlog
from engine_adapter.measure import Draft
from engine_adapter.plan import DraftState, StepPlan
from tests.support.stack import DEMO_MODEL, prompts

BEGIN, SPELL, AFTER, K = 16, 128, 100, 7
REQUESTS = 18


def main(mode: str) -> None:
    """Serve the same requests in each of the ways; `mode`: whether vLLM compiles the models, or runs them "eager"."""
    llm = LLM(
        str(DEMO_MODEL / "target"),
        dtype="float32",
        enforce_eager=mode == "eager",
        max_num_seqs=REQUESTS,
        max_model_len=512,
        num_gpu_blocks_override=80,
        enable_prefix_caching=False,
        scheduler_cls="engine_adapter.scheduler.SpecPilotScheduler",
        speculative_config={
            "method": "eagle3",
            "model": str(DEMO_MODEL / "peagle"),
            "num_speculative_tokens": K,
            "parallel_drafting": True,
        },
    )
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
            state.k = state.due = K if step >= BEGIN + SPELL else 0
        requests = [state.request_id for state in states]
        if way == "whole" or not BEGIN <= step < BEGIN + SPELL:
            return StepPlan(max(1, *(state.k for state in states), 0), tuple(requests))
        is_part = way == "in parts" and step % 5 == 0
        return StepPlan(int(is_part and step % 2), tuple(requests[step % 3 :: 3]) if is_part else ())

    def caught_up_or_not(own: backlog.Backlog, runner: Any, state: Any, wanted: Any) -> None:
        if way == "hole":
            own.rows.drop()
        seen[way] += not own.rows.by_request().keys().isdisjoint(wanted)
        catch_up(own, runner, state, wanted)

    def noted(shape: Any, seconds: float, outcome: Any) -> None:
        drafts.extend(outcome.drafts)
        commit(shape, seconds, outcome)

    scheduler.steps._planner.plan = plan
    scheduler.steps._planner.repeats = lambda *_: 0  # every step asks
    scheduler.meter.commit = noted
    backlog.Backlog.catch_up = caught_up_or_not  # type: ignore[method-assign]
    every = [item["messages"] for _, item in prompts(REQUESTS)]
    sampling = SamplingParams(temperature=0, max_tokens=BEGIN + SPELL + AFTER, ignore_eos=True)
    for way in ("warm-up", "whole", "caught up", "in parts", "hole"):
        step = 0
        drafts.clear()
        replies = llm.chat(every if way != "warm-up" else every[::-1], sampling, use_tqdm=False)
        found[way] = {
            "accepted": sum(draft.accepted for draft in drafts),
            "verified": sum(draft.k for draft in drafts),
            "catch_ups": seen[way],
            "ids": [list(reply.outputs[0].token_ids) for reply in replies],
        }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # vLLM's own teardown expects a GPU's


if __name__ == "__main__":
    main(sys.argv[1])

"""The drafts of a real engine, token by token: what each request was drafted after how many tokens of its reply.

`python -m tests.support.drafts peagle|eagle3` on model runner V1, through `tests.support.interpreter` on V2. K is 7 for
one class, 3 for another, and 0 for the third until its requests have some tokens, so drafts follow steps of every kind.
Prints the token ids of the replies, the drafts, and accepted and tried draft tokens by position.
"""

import json
import os
import sys
import time
from collections import Counter
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))), "OMP_NUM_THREADS": "1"}

from vllm import LLM, SamplingParams

from specpilot.policy.schedule import KRange, Schedule
from tests.support.interpreter import ON_V2
from tests.support.stack import CLASSES, DEMO_MODEL, prompts

K_MAX, REQUESTS, TOKENS, LATE = 7, 6, 90, 40


def main(head: str) -> None:
    """Serve and report."""
    llm = LLM(
        str(DEMO_MODEL / "target"),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=REQUESTS,
        max_model_len=512,
        max_num_batched_tokens=192,
        num_gpu_blocks_override=40,
        enable_prefix_caching=False,
        scheduler_cls="specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler",
        speculative_config={
            "method": "eagle3",
            "model": str(DEMO_MODEL / head),
            "num_speculative_tokens": K_MAX,
            "parallel_drafting": head == "peagle",
        },
    )
    core = llm.llm_engine.engine_core.engine_core
    scheduler, drafts, seen = core.scheduler, dict[str, dict[int, list[int]]](), Counter[str]()
    watch(core, drafts, seen)
    engine, replies = llm.llm_engine, dict[str, list[int]]()
    for number, (name, item) in enumerate(prompts(REQUESTS)):
        text = llm.get_tokenizer().apply_chat_template(item["messages"], tokenize=False, add_generation_prompt=True)
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args={"traffic_class": name})
        engine.add_request(str(number), text, sampling)
    offer(scheduler.control, dict(zip(CLASSES, (0, 3, 7), strict=True)))
    is_early = True
    while engine.has_unfinished_requests():
        done = [request.num_output_tokens for request in scheduler.requests.values()]
        if is_early and done and min(done) >= LATE:
            is_early = False
            offer(scheduler.control, dict(zip(CLASSES, (5, 0, 7), strict=True)))
        for output in engine.step():
            if output.finished:
                replies[output.request_id] = list(output.outputs[0].token_ids)
    sys.stdout.write(json.dumps({"replies": replies, "drafts": drafts, "seen": seen}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # vLLM's own teardown expects a GPU's


def watch(core: Any, drafts: dict[str, dict[int, list[int]]], seen: Counter[str]) -> None:
    """Note in `drafts` what each request is drafted by the length of its reply, in `seen` what became of it."""
    scheduler = core.scheduler
    runner = core.model_executor.driver_worker.worker.model_runner
    update, stats = scheduler.update_draft_token_ids, scheduler.make_spec_decoding_stats

    def note(found: Any) -> None:
        tokens = found.draft_token_ids
        if ON_V2:  # there the host gets no tokens unless a grammar wants them
            own = runner.req_states
            tokens = own.draft_tokens[[own.req_id_to_index[name] for name in found.req_ids]].tolist()
        for name, ids in zip(found.req_ids, tokens, strict=True):
            request, state = scheduler.requests.get(name), scheduler.steps.states.get(name)
            if request is not None and state is not None and state.k:
                drafts.setdefault(name.split("-")[0], {})[request.num_output_tokens] = ids[: state.k]
        update(found)

    def count(before: Any, num_draft_tokens: int, num_accepted_tokens: int, *more: Any, **named: Any) -> Any:
        for position in range(1, num_draft_tokens + 1):
            seen[f"trials {position}"] += position <= num_accepted_tokens + 1
            seen[f"accepts {position}"] += position <= num_accepted_tokens
        return stats(before, num_draft_tokens, num_accepted_tokens, *more, **named)

    scheduler.update_draft_token_ids, scheduler.make_spec_decoding_stats = note, count


def offer(control: Any, k: dict[str, int]) -> None:
    """Put a K in force for each class, without probes."""
    classes = {name: (KRange(1, 32, value),) for name, value in ({"default": 0} | k).items()}
    control.offer(
        Schedule(control.model, control.pool, control.version + 1, 0.0, 3600.0, 0.0, classes), time.monotonic()
    )


if __name__ == "__main__":
    main(sys.argv[1])

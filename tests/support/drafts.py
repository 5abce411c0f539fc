"""The drafts of a real engine, token by token: what each request was drafted after how many tokens of its reply.

`run("drafts", "peagle|eagle3")` on model runner V1, through `tests.support.interpreter` on V2. K is 7 for one class, 3
for another, and 0 for the third until its requests have some tokens, so drafts follow steps of every kind. Finds the
token ids of the replies, the drafts, and accepted and tried draft tokens by position.
"""

import sys
from collections import Counter
from typing import Any

from vllm import SamplingParams

from specpilot.bench.gpu_engine.engine import chat_text
from tests.support.engine_program import finish, head, offer, replies, start
from tests.support.interpreter import ON_V2
from tests.support.stack import CLASSES, prompts

K_MAX, REQUESTS, TOKENS, LATE = 7, 6, 48, 20


def main(drafter: str) -> None:
    """Serve and report."""
    llm = start(
        head(drafter, K_MAX),
        max_num_seqs=REQUESTS,
        max_model_len=512,
        max_num_batched_tokens=192,
        num_gpu_blocks_override=40,
        enable_prefix_caching=False,
    )
    core = llm.llm_engine.engine_core.engine_core
    scheduler, drafts, seen = core.scheduler, dict[str, dict[int, list[int]]](), Counter[str]()
    watch(core, drafts, seen)
    for number, (name, item) in enumerate(prompts(REQUESTS)):
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args={"traffic_class": name})
        llm.llm_engine.add_request(str(number), chat_text(llm, item["messages"]), sampling)
    give(scheduler.control, 0, 3, 7)
    is_early = True

    def change(_: int) -> None:
        nonlocal is_early
        done = [request.num_output_tokens for request in scheduler.requests.values()]
        if is_early and done and min(done) >= LATE:
            is_early = False
            give(scheduler.control, 5, 0, 7)

    finish({"replies": replies(llm.llm_engine, change), "drafts": drafts, "seen": seen})


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


def give(control: Any, *k: int) -> None:
    """Put a K in force for each class."""
    offer(control, {"default": 0} | dict(zip(CLASSES, k, strict=True)))


if __name__ == "__main__":
    main(sys.argv[1])

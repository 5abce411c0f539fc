"""Acceptance after a spell of K = 0 in which two requests leave as many rows: one of them more than a pass takes.

Both come to what the drafter takes in a step at the same time. One catches up, so the other leaves one row more and
goes through in two passes. Run as a program it prints for the ways of `too_long` what that prints, and a pass's rows.
"""

import json
import os
import sys
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))), "OMP_NUM_THREADS": "1"}

from vllm import LLM, SamplingParams

from tests.support.exact_engine import make_asynchronous
from tests.support.stack import DEMO_MODEL, prompts
from tests.support.too_long import AFTER, BEGIN, SPELL, K, Watch

REQUESTS = 2
TOKENS = 96
"""A step's, and so a pass's: the spell is longer, and at its end the rows of both fit into one pass."""


def main(kind: str) -> None:
    """Serve the same requests in each of the ways."""
    if kind == "async":
        make_asynchronous()
    llm = LLM(
        str(DEMO_MODEL / "target"),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=REQUESTS,
        max_model_len=512,
        max_num_batched_tokens=TOKENS,
        num_gpu_blocks_override=16,
        enable_prefix_caching=False,
        async_scheduling=kind == "async",
        scheduler_cls=f"engine_adapter.scheduler.SpecPilot{'Async' if kind == 'async' else ''}Scheduler",
        speculative_config={
            "method": "eagle3",
            "model": str(DEMO_MODEL / "peagle"),
            "num_speculative_tokens": K,
            "parallel_drafting": True,
        },
    )
    watch = Watch(llm.llm_engine.engine_core.engine_core.scheduler)
    tokenizer = llm.get_tokenizer()
    texts = [
        tokenizer.apply_chat_template(item["messages"], tokenize=False, add_generation_prompt=True)
        for _, item in prompts(REQUESTS)[:REQUESTS]
    ]
    found: dict[str, Any] = {"pass": TOKENS}
    for way in ("warm-up", "whole", "caught up", "hole"):
        watch.begin(way)
        ids = _serve(llm.llm_engine, watch, texts[::-1] if way == "warm-up" else texts)
        found[way] = watch.found() | {"ids": ids}
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    os._exit(0)  # vLLM's own teardown expects a GPU's


def _serve(engine: Any, watch: Watch, texts: list[str]) -> dict[str, list[int]]:
    """Return the token ids of the replies."""
    sampling = SamplingParams(temperature=0, max_tokens=SPELL + AFTER + 3 * BEGIN, ignore_eos=True)
    for number, text in enumerate(texts):
        engine.add_request(str(number), text, sampling)
    ids: dict[str, list[int]] = {}
    while engine.has_unfinished_requests():
        watch.step += 1
        for output in engine.step():
            if output.finished:
                ids[output.request_id] = list(output.outputs[0].token_ids)
    return ids


if __name__ == "__main__":
    main(sys.argv[1])

"""The first tokens of many replies to one prompt at temperature 1, while K changes at random.

`python -m tests.support.draws plain|peagle|eagle3 DRAWS`, on model runner V2 through `tests.support.interpreter`.
Prints for each position how often each token was drawn.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from typing import Any

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": str(max(os.sched_getaffinity(0))), "OMP_NUM_THREADS": "1"}

from vllm import LLM, SamplingParams

from specpilot.bench.adapter.engine_worker import prompt_texts
from specpilot.policy.schedule import KRange, Schedule
from tests.support.stack import DEMO_MODEL

TOKENS, TOGETHER, K_MAX = 3, 32, 7


def main(kind: str, draws: int) -> None:
    """Draw, and report."""
    options: dict[str, Any] = {}
    if kind != "plain":
        options = {
            "scheduler_cls": "specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler",
            "speculative_config": {
                "method": "eagle3",
                "model": str(DEMO_MODEL / kind),
                "num_speculative_tokens": K_MAX,
                "parallel_drafting": kind == "peagle",
            },
        }
    llm = LLM(
        str(DEMO_MODEL / "target"),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=TOGETHER,
        max_model_len=256,
        max_num_batched_tokens=1024,
        **options,
    )
    control = getattr(llm.llm_engine.engine_core.engine_core.scheduler, "control", None)
    [text] = prompt_texts(DEMO_MODEL / "prompts", 1)
    found, rng = [Counter[int]() for _ in range(TOKENS)], random.Random(3)
    for number in range(draws):
        sampling = SamplingParams(temperature=1.0, max_tokens=TOKENS + 1, ignore_eos=True)
        llm.llm_engine.add_request(str(number), text[-80:], sampling)
    while llm.llm_engine.has_unfinished_requests():
        if control is not None and rng.random() < 0.5:
            classes = {"default": (KRange(1, TOGETHER, rng.choice([0, 1, 2, 3, 5, K_MAX])),)}
            version = control.version + 1
            control.offer(Schedule(control.model, control.pool, version, 0.0, 3600.0, 0.0, classes), time.monotonic())
        for output in llm.llm_engine.step():
            if output.finished:
                for position, token in enumerate(output.outputs[0].token_ids[:TOKENS]):
                    found[position][token] += 1
    sys.stdout.write(json.dumps({"counts": found}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # vLLM's own teardown expects a GPU's


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

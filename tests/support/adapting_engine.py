"""A real engine that adapts alone, in this process: no Redis, no controller, no server.

`python -m tests.support.adapting_engine SECONDS` keeps 6 JSON and 6 code requests running for so long and prints one
JSON object: where K came from, and the mean K that the law gave each kind in the second half of the time.
"""

import json
import os
import sys
import time
from collections import defaultdict

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
os.environ |= {"SPECPILOT_ENGINE_ADAPT": "1"}

from vllm import LLM, SamplingParams

from tests.support.stack import DEMO_MODEL, prompts

RUNNING = {"json": 6, "code": 6}


def main(seconds: float) -> None:
    """Run and report."""
    llm = LLM(
        str(DEMO_MODEL / "target"),
        enforce_eager=True,
        max_num_seqs=16,
        max_model_len=1024,
        seed=0,
        scheduler_cls="specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler",
        speculative_config={
            "method": "eagle3",
            "model": str(DEMO_MODEL / "peagle"),
            "num_speculative_tokens": 7,
            "parallel_drafting": True,
        },
    )
    engine, tokenizer = llm.llm_engine, llm.get_tokenizer()
    scheduler = engine.engine_core.engine_core.scheduler
    waiting = defaultdict(list)
    for name, item in prompts(90):
        text = tokenizer.apply_chat_template(item["messages"], tokenize=False, add_generation_prompt=True)
        waiting[name].append(text)
    begun = 0
    kinds: dict[str, str] = {}

    def begin(kind: str) -> None:
        nonlocal begun
        begun += 1
        kinds[str(begun)] = kind
        text = waiting[kind][begun % len(waiting[kind])]
        engine.add_request(str(begun), text, SamplingParams(temperature=0.0, max_tokens=150))

    for kind, count in RUNNING.items():
        for _ in range(count):
            begin(kind)
    given: defaultdict[str, list[int]] = defaultdict(list)
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        for output in engine.step():
            if output.finished:
                begin(kinds[output.request_id])
        if passed > seconds / 2:
            for state in scheduler.steps.decoding:
                given[kinds[state.request_id.split("-", maxsplit=1)[0]]].append(state.scheduled_k)
    report = {
        "source": scheduler.control.table(time.monotonic()).source,
        "k": {kind: sum(found) / len(found) for kind, found in given.items()},
        "law": scheduler.law.described(),
        "prices_probes": scheduler.planner.prices is not None,
    }
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(float(sys.argv[1]))

"""A real engine in this process under a mixed load, read at vLLM's own boundary: what it replied, what it counted.

`run("exact_engine", "plain|sync|async", "peagle|eagle3|mtp|dflash"[, "short"])` serves the same requests (a third of
them, and shorter ones, if "short", or on model runner V2 through `tests.support.interpreter`) and finds the token ids
of every reply that is determined (temperature 0, not aborted) and, with the adapter, what a brute-force reading of each
step gives beside what the adapter exported. K changes at random, by class and band, every few steps. A reply that a
stop string ended is given as its text: vLLM before 0.32 leaves the ids of accepted tokens past the stop beside it.

The load has every feature that touches the draft cache or the evidence: chunked prefill, prefix cache hits, a KV cache
so small that requests are preempted, priorities, a forced preemption of all, structured outputs, `n` of 2, stop
strings, least numbers of tokens, sampling with seeds, aborts, requests that reach the length limit, a class that the
schedule does not know, and prompts of one token, which vLLM pads with placeholders for drafts where they join running
decodes. It reports CUDA graphs, so that plans for graphs are made.

No LoRA: on a CPU, vLLM 0.32's changes the replies of the requests beside it, with speculation and without.

`async` is vLLM's asynchronous loop, its scheduler a step ahead of its model runner. vLLM switches it off on CPUs as
it gains nothing there. Its code paths need CUDA's streams and events and memory of the device's own, which
`tests.support.memory_apart` gives them, and the real `AsyncScheduler`, batch queue and model runner run. The adapter
copies what the target leaves at once, as it does on an accelerator.
"""

import os
import random
import sys
from dataclasses import asdict
from typing import Any

from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from specpilot.bench.gpu_engine.engine import chat_text
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.policy.bands import BANDS
from tests.support import memory_apart
from tests.support.brute_force import BruteForce, exported
from tests.support.engine_program import finish, head, offer, start
from tests.support.interpreter import ON_V2
from tests.support.stack import CLASSES, prompts

IS_SHORT = ON_V2 or "short" in sys.argv
COUNT = 24 if IS_SHORT else 48
LENGTH = 384 if IS_SHORT else 512
BLOCKS = 30 if IS_SHORT else 40
"""KV blocks of 128 tokens: about half of what the running requests want."""
OFTEN = list(range(300, 420))
"""Tokens that are seldom far away. Model runner V2 takes 128 stop tokens at most."""
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "maximum": 99}},
    "required": ["name", "count"],
    "additionalProperties": False,
}


def main(kind: str, drafter: str) -> None:
    """Serve the load and report."""
    states = 1 if drafter == "mtp" else 3
    os.environ["SPECPILOT_ENGINE_BACKLOG_MIB"] = str(states / 4)  # 256 rows of 256 numbers of each state: they fill up
    llm = start(
        None if kind == "plain" else head(drafter),
        is_async=kind == "async",
        max_num_seqs=24,
        max_model_len=LENGTH,
        max_num_batched_tokens=256,  # long prompts are prefilled in chunks, and a backlog is spread over steps
        num_gpu_blocks_override=BLOCKS,
        scheduling_policy="priority",
        disable_log_stats=False,
        seed=0,
    )
    core = llm.llm_engine.engine_core.engine_core
    assert core.async_scheduling == (kind == "async")
    control = getattr(core.scheduler, "control", None)
    watched = None if control is None else BruteForce(core.scheduler)
    core.scheduler.graphs = Graphs("FULL_AND_PIECEWISE")
    replies, changes = _serve(llm, control)
    # A step without requests lets the workers drop what they keep for ended ones.
    pool = core.scheduler.kv_cache_manager.block_pool
    report: dict[str, Any] = {"ids": replies, "leaked_blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()}
    report["determined"] = COUNT * 10 // 12  # of twelve kinds one is aborted, and one sampled
    if watched is not None and control is not None:
        expected = watched.counts()
        report |= {
            "expected": expected,
            "exported": exported(expected, core.scheduler._agent.exporter.text),
            "seen": watched.seen,
        }
        report |= {"changes": changes, "states": len(core.scheduler.steps.states)}
    report["copies"] = asdict(memory_apart.SEEN)
    finish(report)


def _serve(llm: Any, control: Any) -> tuple[dict[str, list[list[int] | str]], int]:
    """Serve every request; return the token ids (or text, after a stop string) of the determined ones, by choice.

    Beside them: how often K was changed.
    """
    engine, rng = llm.llm_engine, random.Random(5)
    tokenizer = llm.get_tokenizer()
    waiting = list(enumerate(prompts(COUNT)[:COUNT]))
    aborts: dict[str, int] = {}
    replies: dict[str, list[list[int] | str]] = {}
    step, changes = 0, 1
    _thrash(control, rng)
    while waiting or engine.has_unfinished_requests():
        while waiting and len(waiting) > COUNT - 6 - step // 3:
            number, (name, item) = waiting.pop(0)
            messages = item["messages"]
            if number % 12 == 5:
                content = "Read this, and then go on. " * 30 + messages[-1]["content"]
                messages = [{"role": "user", "content": content}]
            text = chat_text(llm, messages)
            ids = tokenizer(text)["input_ids"]
            sampling = _sampling(number, name, len(ids))
            prompt = {"prompt_token_ids": ids[-1:]} if number % 12 == 6 else text
            engine.add_request(str(number), prompt, sampling, priority=number % 3)
            if number % 12 == 3:
                aborts[str(number)] = step + 5 + number % 20
        step += 1
        if step % 3 == 0 or rng.random() < 0.1:
            changes += 1
            _thrash(control, rng)
        due = [request for request, at in aborts.items() if at == step]
        if due:
            engine.abort_request(due)
        if step in (60, 61, 150):
            engine.reset_prefix_cache(reset_running_requests=True)
        for output in engine.step():
            if output.finished and output.request_id not in aborts and int(output.request_id) % 12 != 4:
                replies[output.request_id] = [
                    choice.text if isinstance(choice.stop_reason, str) else list(choice.token_ids)
                    for choice in output.outputs
                ]
    return replies, changes


def _sampling(number: int, traffic_class: str, prompt_tokens: int) -> SamplingParams:
    label = "unheard-of" if number % 12 == 7 else traffic_class
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24 + number % 60, "ignore_eos": number % 2 == 0}
    match number % 12:
        case 0 | 9:
            options["structured_outputs"] = StructuredOutputsParams(json=SCHEMA)
            options["ignore_eos"] = False
        case 2:
            options["stop"] = [" the", "return", "e"] if number % 24 == 2 else [" a ", "self"]
        case 4:
            options |= {"temperature": 0.8, "n": 2, "seed": number}
        case 1 | 7:
            options |= {"min_tokens": 5 + number % 20, "stop_token_ids": OFTEN}
        case 6 if number % 24 == 6:
            options |= {"min_tokens": 2 + number % 5, "stop_token_ids": OFTEN}
        case 8 | 10:
            options["max_tokens"] = 120 if IS_SHORT else 200
        case 11:
            options |= {"max_tokens": LENGTH - prompt_tokens, "ignore_eos": True}
    return SamplingParams(extra_args={"traffic_class": label}, **options)


def _thrash(control: Any, rng: random.Random) -> None:
    """Change K of every class and band at random, often to 0 for some, or a spell of 0 for all; often with probes."""
    if control is None:
        return
    is_dark = rng.random() < 0.4
    named = ("default", *CLASSES)
    rows = [*named, *(f"{name}:{band}" for name in named for band in range(BANDS) if rng.random() < 0.6)]
    k = {name: 0 if is_dark else rng.choice([0, 0, 0, 1, 2, 3, 5, 7]) for name in rows}
    offer(control, k, probe_ratio=rng.choice([0.0, 0.02, 0.3, 1.0]))


if __name__ == "__main__":
    main(*sys.argv[1:3])

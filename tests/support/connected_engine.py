"""Prompts that a KV connector stored at K = 0 and loads again: what they reply, and what of their drafts is accepted.

`run("connected_engine", WAY, HEAD, FOLDER)`. Each way serves the same prompts twice: at K = 0, then at K_max. There is
no prefix cache, so the second time

- "computed": prompts are prefilled again, there is no connector;
- "loaded": their KV is loaded from vLLM's `ExampleConnector`, which stored it in `FOLDER`;
- "fallen behind": the same, with a drafter that may be left out, as in an engine without a connector. All but one of
  the prompts are short enough to be deferred, so what was stored has holes.
"""

import sys
from collections import Counter
from typing import Any

from vllm import SamplingParams

from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from tests.support.engine_program import finish, head, offer, start
from tests.support.interpreter import ON_V2

K_MAX, TOKENS, BLOCK = 7, 16 if ON_V2 else 64, 32
SHORT = (
    "The capital of France is Paris, the capital of Italy is Rome, and the capital of Spain is",
    '{"name": "Ann", "age": 31, "city": "Oslo"}, {"name": "Ben", "age": 27, "city":',
    "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n    return a - b\n\n\ndef times(a, b):\n    return a",
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen",
)
LONG = " and ".join(SHORT)


def main(way: str, drafter: str, folder: str) -> None:
    """Serve the prompts twice and report."""
    options: dict[str, Any] = {}
    if way != "computed":
        where = {"shared_storage_path": folder}
        connector = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_connector_extra_config": where}
        options["kv_transfer_config"] = connector
    if way == "fallen behind":
        ConfigFacts.why_in_every_step = None  # type: ignore[method-assign, assignment]
    llm = start(
        head(drafter, K_MAX),
        max_num_seqs=8,
        max_model_len=512,
        block_size=BLOCK,
        num_gpu_blocks_override=64,
        enable_prefix_caching=False,
        **options,
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    commit, seen = scheduler.meter.commit, Counter[str]()

    def noting(shape: Any, seconds: float, context: int, outcome: Any) -> None:
        for draft in outcome.drafts:
            seen["verified"] += draft.k
            seen["accepted"] += draft.accepted
        commit(shape, seconds, context, outcome)

    scheduler.meter.commit = noting
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    turns = []
    for k in (0, K_MAX):
        offer(scheduler.control, {"default": k})
        seen.clear()
        replies = llm.generate([*SHORT, LONG], sampling, use_tqdm=False)
        turns.append({
            "ids": [list(reply.outputs[0].token_ids) for reply in replies],
            "loaded": [reply.num_cached_tokens for reply in replies],
            "prompts": [len(reply.prompt_token_ids) for reply in replies],
            **{name: seen[name] for name in ("verified", "accepted")},
        })  # fmt: skip
    finish({"stored": turns[0], "served": turns[1]})


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Drafters of model runner V2 that run in every step, K cut by request: what they reply, what was verified.

`run("in_every_step", "ngram|draft_model|dflash|dspark|dspark from anchor|mtp")` through `tests.support.interpreter`,
and `run("in_every_step", "plain")` for the text without speculation, on model runner V1. K changes at random. The draft
model is the target itself, so what it drafts is accepted. The demo model's MTP head could be left out; here it is of a
kind that cannot.
"mtp left out" is the same with the head left out and catching up, "mtp in lockstep" with the head of a rank that makes
every pass together with others: the number of its passes in each step is counted too.
"""

import random
import sys
from collections import Counter
from typing import Any

from vllm import SamplingParams

from specpilot.engine_adapter.vllm import config_facts, data_parallel, engine_facts
from tests.support.engine_program import TARGET, finish, head, offer, replies, start
from tests.support.stack import CLASSES, DEMO_MODEL

K_MAX, REQUESTS, TOKENS = 3, 5, 24
OWN: dict[str, dict[str, Any]] = {
    "ngram": {"prompt_lookup_max": 3, "prompt_lookup_min": 1},
    "draft_model": {"model": TARGET},
    "dflash": {"model": str(DEMO_MODEL / "dflash")},
}
TEXTS = (  # what repeats, so that an n-gram is found
    '{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1,',
    "one two three one two three one two",
    "def add(a, b): return a + b\ndef add(a, b): return",
    "painting is painting is painting is",
    "Tell me about rivers",
)


def main(kind: str) -> None:
    """Serve a few requests while K changes, and report."""
    speculative: dict[str, Any] | None = None
    if kind != "plain":
        speculative = {"method": kind.partition(" ")[0], "num_speculative_tokens": K_MAX, **OWN.get(kind, {})}
    if kind.startswith("dspark"):
        speculative = head(kind, K_MAX)
    if kind == "mtp":
        config_facts.PLAIN_MTP = ()
    passes = [0]
    if kind.endswith("in lockstep"):
        data_parallel.in_lockstep = engine_facts.in_lockstep = lambda _: True
        config_facts.ConfigFacts.in_lockstep = True  # type: ignore[method-assign, assignment]
        count_passes(passes)
    llm = start(
        speculative,
        max_model_len=128,
        max_num_seqs=REQUESTS,
        max_num_batched_tokens=256,
        num_gpu_blocks_override=40,
        seed=0,
        disable_log_stats=False,
    )
    engine, seen = llm.llm_engine, Counter[str]()
    scheduler = engine.engine_core.engine_core.scheduler
    control = getattr(scheduler, "control", None)
    if control is not None:
        count(scheduler, seen)
    for number, text in enumerate(TEXTS):
        extra = {"traffic_class": CLASSES[number % len(CLASSES)]}
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, extra_args=extra)
        engine.add_request(str(number), text, sampling)
    rng = random.Random(3)

    def change(step: int) -> None:
        seen[f"{passes[0]} passes"] += step > 1
        passes[0] = 0
        if control is not None and step % 2 == 0:
            offer(control, {name: rng.choice([0, *range(K_MAX + 1)]) for name in ("default", *CLASSES)})

    finish({"ids": replies(engine, change), "seen": seen})


def count_passes(passes: list[int]) -> None:
    """Count the passes of the head in the only item of `passes`."""
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator import (  # noqa: PLC0415 - of V2
        TargetDependentARSpeculator,
    )

    run_model = TargetDependentARSpeculator._run_model

    def counted(*args: Any, **kwargs: Any) -> Any:
        passes[0] += 1
        return run_model(*args, **kwargs)

    TargetDependentARSpeculator._run_model = counted


def count(scheduler: Any, seen: Counter[str]) -> None:
    """Count in `seen` the verified drafts of each K, and tokens accepted."""
    commit = scheduler.meter.commit

    def noting(shape: Any, seconds: float, context: int, outcome: Any) -> None:
        for draft in outcome.drafts:
            seen[f"K = {draft.k}"] += 1
            seen["verified"] += draft.k
            seen["accepted"] += draft.accepted
        seen["K = 0"] += sum(outcome.plain.values())
        commit(shape, seconds, context, outcome)

    scheduler.meter.commit = noting


if __name__ == "__main__":
    main(sys.argv[1])

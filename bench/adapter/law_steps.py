"""`specpilot bench adapter --law-steps N`: what the engine's law adds to a step of vLLM's scheduler, over a table of K.

vLLM's own scheduler classes with the adapter, without a model: each request accepts draft tokens with a probability of
its own, and ends after some tokens; another one takes its place. In each step K is set by a table and then, for the
same requests, by the law; the difference of the two processor times is the law's extra work. The law learns these
steps with made-up times, and refreshes its choice every `REFRESH_STEPS` steps, as it does once a second.
"""

import json
import os
import random
import statistics
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import thread_time_ns
from typing import Any
from unittest.mock import patch

from specpilot.bench.report.output import say
from specpilot.engine_adapter import plugin_names
from specpilot.engine_adapter.evidence.meter import StepShape
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.plan import planner
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.request_facts import CLASS_ARGUMENT
from specpilot.engine_adapter.plan.speculation_control import KTable, fixed_table, law_table
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import ClassGuidance, Guidance, Objective

RUNNING = (64, 256)
REPLY_TOKENS = (100, 500)
"""Shortest and longest reply."""
REFRESH_STEPS = 50
WARM_UP_STEPS = 200
GUIDANCE = Guidance(
    Objective.THROUGHPUT,
    {DEFAULT_CLASS: ClassGuidance(), "code": ClassGuidance(weight=2.0), "chat": ClassGuidance(weight=0.5)},
)
_PROMPT, _BLOCK, _BLOCKS_OF_A_REQUEST = 4, 16, 40
_ACCEPTANCES = (0.1, 0.3, 0.5, 0.7, 0.9, 0.97)


def measure(model: Path, speculative: Mapping[str, Any], steps: int) -> None:
    """Play `steps` steps for each number of running requests on both schedulers; the last line is one JSON object."""
    figures: dict[str, float] = {}
    for is_async in (False, True):
        for running in RUNNING:
            extra, law = _played(_scheduler(model, speculative, running, is_async=is_async), running, steps)
            mean, p99 = statistics.fmean(extra) / 1e3, statistics.quantiles(extra, n=100)[98] / 1e3
            name = "asynchronous" if is_async else "synchronous"
            say(
                f"{running:3d} running, {name:<13} the law takes {mean:4.0f} us a step more than a table in the mean, "
                f"{p99:4.0f} at the 99th percentile; chosen anew in {law.choices / law.steps:.0%} of the steps"
            )
            figures |= {f"law_us_{name}_{running}": round(mean, 1), f"law_p99_us_{name}_{running}": round(p99, 1)}
    say(json.dumps(figures))


def _played(engine: Any, running: int, steps: int) -> tuple[list[int], EngineLaw]:
    """Return the law's extra nanoseconds in each step, and the law."""
    rng, law = random.Random(0), engine.law  # noqa: S311 - reproducible
    law.follow(GUIDANCE)
    by_law_table = law_table(law, 0.005)
    engine.control.table = lambda _: by_law_table
    k_max = engine.control.k_max
    fixed = fixed_table({name: min(k_max, 1 + at) for at, name in enumerate(GUIDANCE.classes)})
    acceptance: dict[str, float] = {}
    extra: list[int] = []
    set_k = planner._set_k  # noqa: SLF001 - its time is measured

    def timed(states: Sequence[DraftState], table: KTable, k_room: int, *, can_draft: bool) -> int:
        began = thread_time_ns()
        set_k(states, fixed, k_room, can_draft=can_draft)
        between = thread_time_ns()
        width = set_k(states, table, k_room, can_draft=can_draft)
        extra.append(thread_time_ns() - between - (between - began))
        return width

    with patch.object(planner, "_set_k", timed):
        for step in range(WARM_UP_STEPS + steps):
            if step == WARM_UP_STEPS:
                extra.clear()
                law.choices = law.steps = 0
            acceptance = {name: value for name, value in acceptance.items() if name in engine.requests}
            for number in range(running - len(acceptance)):
                _add(engine, f"{step}-{number}", rng)
                acceptance[f"{step}-{number}"] = rng.choice(_ACCEPTANCES)
            _step(engine, acceptance, rng, k_max)
            if step % REFRESH_STEPS == REFRESH_STEPS - 1:
                steps_taken = [(shape, _step_s(shape), 0) for shape, _, _ in engine.meter.take_steps()]
                law.learn(steps_taken, engine.meter.take_evidence())
                law.refresh()
                engine.planner.prices = law.probe_prices
    return extra, law


def _step_s(shape: StepShape) -> float:
    """Return the seconds of a step on a made-up device: drafting and verifying have a price, and many K pay."""
    return 0.008 + 2e-5 * shape.verified + (0.002 + 1e-6 * shape.slots) * (shape.slots > 0) + 1e-6 * shape.read


def _scheduler(model: Path, speculative: Mapping[str, Any], running: int, *, is_async: bool) -> Any:
    """Return vLLM's scheduler with the adapter, for so many running requests, without threads and without a worker."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
        import torch  # noqa: PLC0415 - vLLM loads for seconds, and only this needs it
        from vllm.engine.arg_utils import EngineArgs  # noqa: PLC0415
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: PLC0415
        from vllm.v1.structured_output import StructuredOutputManager  # noqa: PLC0415

        from specpilot.engine_adapter.vllm import scheduler as adapter  # noqa: PLC0415
    kind = adapter.SpecPilotAsyncScheduler if is_async else adapter.SpecPilotScheduler
    with ExitStack() as stack:
        stack.enter_context(patch.object(adapter, "start_agent", lambda *_: None))
        stack.enter_context(
            patch.dict(os.environ, {"VLLM_USE_V2_MODEL_RUNNER": "0", plugin_names.VARIABLE: plugin_names.ADAPTER})
        )
        config = EngineArgs(
            model=str(model), speculative_config=dict(speculative), scheduler_cls=kind, enforce_eager=True,
            max_num_seqs=running, max_model_len=1024, max_num_batched_tokens=8192, enable_prefix_caching=False,
        ).create_engine_config()  # fmt: skip
        config.scheduler_config.async_scheduling = is_async
        blocks = config.cache_config.num_gpu_blocks = _BLOCKS_OF_A_REQUEST * running
        attention = FullAttentionSpec(block_size=_BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        return kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=_BLOCK,
            log_stats=False,
        )


def _add(engine: Any, name: str, rng: random.Random) -> None:
    from vllm import SamplingParams  # noqa: PLC0415
    from vllm.v1.request import Request  # noqa: PLC0415

    sampling = SamplingParams(
        max_tokens=rng.randint(*REPLY_TOKENS),
        ignore_eos=True,
        extra_args={CLASS_ARGUMENT: rng.choice(list(GUIDANCE.classes))},
    )
    engine.add_request(Request(name, [3] * _PROMPT, sampling, None))


def _step(engine: Any, acceptance: dict[str, float], rng: random.Random, k_max: int) -> None:
    """Schedule a step and end it: of each draft so many tokens are accepted as are drawn before the first miss."""
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput  # noqa: PLC0415

    output = engine.schedule()
    names = list(output.num_scheduled_tokens)
    tokens: list[list[int]] = []
    for name in names:
        if engine.requests[name].is_prefill_chunk:
            tokens.append([])
            continue
        drafted, accepted = len(output.scheduled_spec_decode_tokens.get(name) or ()), 0
        while accepted < drafted and rng.random() < acceptance[name]:
            accepted += 1
        tokens.append([5] * (1 + accepted))
    engine.update_from_output(output, ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, tokens))
    if not engine.vllm_config.scheduler_config.async_scheduling:
        engine.update_draft_token_ids(DraftTokenIds(names, [[6] * k_max for _ in names]))

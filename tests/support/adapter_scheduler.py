"""The adapter's schedulers over vLLM's own, without threads, workers or a model: steps are played."""

import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from specpilot.engine_adapter.vllm import scheduler as adapter
from specpilot.policy.schedule import Guidance, Override, Schedule
from tests.support.stack import DEMO_MODEL

K_MAX = 7
BLOCKS_OF_A_REQUEST = 32


def scheduler(
    monkeypatch: pytest.MonkeyPatch, kind: type = adapter.SpecPilotScheduler, head: str = "peagle", **arguments: Any
) -> Any:
    """Return a scheduler of this `kind` for the demo model with `head`; none: without speculation."""
    monkeypatch.setattr(adapter, "start_agent", lambda *_: None)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    monkeypatch.setenv("VLLM_PLUGINS", "specpilot")
    method = "dflash" if head == "dflash" else "eagle3"
    speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": K_MAX}
    speculative |= {"model": str(DEMO_MODEL / head)} | ({"parallel_drafting": True} if head == "peagle" else {})
    given: dict[str, Any] = {"enforce_eager": True, "max_num_seqs": 8, "max_model_len": 512} | arguments
    config = EngineArgs(
        model=str(DEMO_MODEL / "target"),
        speculative_config=speculative if head else None,
        scheduler_cls=kind,
        **given,
    ).create_engine_config()
    config.scheduler_config.async_scheduling = issubclass(kind, AsyncScheduler)  # which vLLM does not do on a CPU
    blocks = config.cache_config.num_gpu_blocks = BLOCKS_OF_A_REQUEST * given["max_num_seqs"]
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], attention)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        log_stats=False,
    )


def stock(monkeypatch: pytest.MonkeyPatch, head: str = "", **arguments: Any) -> Any:
    """Return vLLM's own synchronous scheduler."""
    return scheduler(monkeypatch, Scheduler, head, **arguments)


def offer(engine: Any, version: int, k: int) -> None:
    """Have the schedule give K = `k` to everybody."""
    schedule = Schedule(engine.control.model, "default", version, 0.0, Guidance(override=Override(k)))
    engine.control.offer(schedule, time.monotonic())


def add(engine: Any, name: str, prompt: list[int], max_tokens: int = 100, priority: int = 0, **parameters: Any) -> None:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **parameters)
    engine.add_request(Request(name, prompt, sampling, None, priority=priority))


def sampled(engine: Any, output: Any) -> list[list[int]]:
    """Return what a step that has just been scheduled delivers: a token for each request that is past its prompt."""
    return [[] if engine.requests[name].is_prefill_chunk else [5] for name in output.num_scheduled_tokens]


def end(engine: Any, output: Any, tokens: list[list[int]], k_max: int = K_MAX) -> None:
    """End a step that delivers these `tokens`, with as many drafts as vLLM may make."""
    names = list(output.num_scheduled_tokens)
    engine.update_from_output(output, ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, tokens))
    if not isinstance(engine, AsyncScheduler):
        engine.update_draft_token_ids(DraftTokenIds(names, [[6] * k_max for _ in names]))


def step(engine: Any, k_max: int = K_MAX) -> Mapping[str, int]:
    """Schedule and end a step; return its positions by request."""
    output = engine.schedule()
    end(engine, output, sampled(engine, output), k_max)
    return dict(output.num_scheduled_tokens)

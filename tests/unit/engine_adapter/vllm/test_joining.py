"""How many positions a request gets that joins with one token left to prefill, from vLLM's own scheduler."""

import time
import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
    import torch
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    from specpilot.engine_adapter.vllm import scheduler as adapter

from specpilot.policy.types import KRange, Schedule
from tests.support.stack import DEMO_MODEL

K_MAX = 7
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # vLLM's own


def scheduler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The adapter's synchronous scheduler over vLLM's, without its threads."""
    monkeypatch.setattr(adapter, "start_agent", lambda *_: None)
    head = {"method": "eagle3", "num_speculative_tokens": K_MAX, "parallel_drafting": True}
    config = EngineArgs(
        model=str(DEMO_MODEL / "target"),
        speculative_config=head | {"model": str(DEMO_MODEL / "peagle")},
        scheduler_cls=adapter.SpecPilotScheduler,
        enforce_eager=True,
        max_num_seqs=8,
        max_model_len=512,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = 64
    attention = FullAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return adapter.SpecPilotScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], attention)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=16,
        log_stats=False,
    )


def add(engine: Any, name: str, prompt: list[int]) -> None:
    engine.add_request(Request(name, prompt, SamplingParams(max_tokens=100), None))


def step(engine: Any) -> dict[str, int]:
    """Schedule and end a step in which each request gets a token; return its positions by request."""
    output = engine.schedule()
    names = list(output.num_scheduled_tokens)
    engine.update_from_output(
        output, ModelRunnerOutput(names, {name: at for at, name in enumerate(names)}, [[5] for _ in names])
    )
    engine.update_draft_token_ids(DraftTokenIds(names, [[6] * K_MAX for _ in names]))
    return dict(output.num_scheduled_tokens)


@pytest.mark.parametrize("k", [0, 3, K_MAX])
def test_who_joins_gets_as_many_positions_as_the_others_have(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(monkeypatch)
    rows = {"default": (KRange(1, 8, k),)}
    engine.control.offer(Schedule(engine.control.model, "default", 1, 0.0, 3600.0, 0.0, rows), time.monotonic())
    add(engine, "first", [*range(1, 9)])
    assert step(engine) == {"first": 8}
    assert step(engine) == {"first": 1 + k}
    add(engine, "second", [1])
    assert step(engine) == {"first": 1 + k, "second": 1 + k}
    assert step(engine) == {"first": 1 + k, "second": 1 + k}
    assert engine.num_spec_tokens == K_MAX


def test_where_the_others_differ_nobody_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = scheduler(monkeypatch)
    add(engine, "first", [*range(1, 9)])
    add(engine, "second", [*range(1, 9)])
    step(engine)
    one, other = engine.steps.decoding
    one.k, other.k = 2, 5
    for state in (one, other):
        engine.requests[state.request_id].spec_token_ids = [6] * state.k
    add(engine, "third", [1])
    assert engine.schedule().num_scheduled_tokens == {"first": 3, "second": 6, "third": 1}

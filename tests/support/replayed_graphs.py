"""CUDA graphs of model runner V2 without CUDA: a graph calls again what it was captured from, with the same arguments.

`run("replayed_graphs", "eagle3|peagle|mtp|dflash"[, "adaptive"])` through `tests.support.interpreter`, and
`run("replayed_graphs", "plain")` for the text without speculation, on model runner V1.

The MTP head is of a kind that cannot be left out of a step.

"adaptive" turns vLLM's adaptive verification on, which starts with FULL graphs alone. It measures what a token costs on
the device; here a table stands in for that, by which every token costs something, so drafts are cut in most steps.

A CUDA graph repeats its kernels on the addresses that they had at its capture. Here a "graph" keeps vLLM's own
function with the arguments of its capture, buffers, slices and attention metadata, and `replay` calls it once more. So
a graph that a step must not find, or one that reads what the step did not write into the buffers, gives another text or
drafts that are rejected. Attention is vLLM's Triton kernel, interpreted: the CPU's own has no graphs. What it does not
show: times, streams, and memory that graphs share.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from vllm import SamplingParams
from vllm.config import CUDAGraphMode
from vllm.platforms.cpu import CpuPlatform
from vllm.v1.attention.backends import triton_attn
from vllm.v1.worker.gpu import cudagraph_utils
from vllm.v1.worker.gpu.spec_decode import adaptive_verification

from specpilot.bench.gpu_engine.engine import chat_text
from specpilot.engine_adapter.vllm import config_facts
from tests.support.engine_program import finish, head, offer, replies, start
from tests.support.interpreter import ON_V2
from tests.support.stack import CLASSES

K_MAX, REQUESTS = 3, 4
SIZES = [1, 2, 4, 8, 12, 16]
BEGINNINGS = ("Tell me about painting", "Write a function for rivers", "Give me JSON about maps", "Tell me about bread")

REPLAYS: Counter[str] = Counter()
"""How often a graph was replayed, by its kind."""


class Graph:
    """A graph that calls `forward` again."""

    def __init__(self, key: Any, forward: Callable[[Any], None]) -> None:
        is_varlen = key.uniform_token_count is None
        passes = getattr(key, "num_speculative_tokens", 0)
        self.kind = f"up to {key.max_query_len}" if is_varlen else f"{key.uniform_token_count} each"
        self.kind += f", width {passes}" if passes else ""
        self._forward = forward

    def replay(self) -> None:
        REPLAYS[self.kind] += 1
        self._forward(CUDAGraphMode.NONE)


def capture(manager: Any, create_forward_fn: Callable[..., Callable[[Any], None]], *_: Any) -> None:
    """`CudaGraphManager.capture`."""
    for key in manager._capture_descs.get(CUDAGraphMode.FULL, ()):
        forward = create_forward_fn(key, warmup=False)
        forward(CUDAGraphMode.NONE)
        manager.graphs[key] = Graph(key, forward)
    manager._graphs_captured = True


def install() -> None:
    """Let vLLM make graphs in this process, and attend by Triton."""
    update = CpuPlatform.check_and_update_config.__func__

    def with_graphs(cls: Any, vllm_config: Any) -> None:
        update(cls, vllm_config)
        compilation = vllm_config.compilation_config
        compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
        compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = [*SIZES], max(SIZES)

    backend = "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"
    CpuPlatform.check_and_update_config = classmethod(with_graphs)
    CpuPlatform.get_attn_backend_cls = classmethod(lambda *_, **__: backend)
    CpuPlatform.get_global_graph_pool = classmethod(lambda _: None)
    torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
    # Else each request's attention is split into 16 segments, and interpreted for minutes.
    triton_attn.MIN_LAUNCH_GRID_SIZE_2D = 0
    triton_attn.NUM_PAR_SOFTMAX_SEGMENTS = 2
    cudagraph_utils.CudaGraphManager.capture = capture


def install_costs() -> None:
    """Let adaptive verification begin without times, which nothing has here, and choose without a compiler."""
    adaptive_verification._assign_draft_token_budget_compiled = adaptive_verification._assign_draft_token_budget
    init = adaptive_verification.AdaptiveVerificationManager.__init__

    def init_with_costs(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        tokens = np.arange(self.req_states.max_num_batched_tokens + 1)
        self.cost_tables = np.zeros(REQUESTS + 1), 4.0 + 1.5 * tokens

    adaptive_verification.AdaptiveVerificationManager.__init__ = init_with_costs


def main(kind: str, *, is_adaptive: bool = False) -> None:
    """Serve a few requests while K changes, and report."""
    speculative, options = None, dict[str, Any]()
    if kind != "plain":
        install()
        if is_adaptive:
            install_costs()
        config_facts.PLAIN_MTP = ()
        speculative = head(kind, K_MAX, enable_adaptive_verification=is_adaptive)
        options = {"compilation_config": {"mode": 0}}
    llm = start(
        speculative,
        **options,
        enforce_eager=not ON_V2,
        max_num_seqs=REQUESTS,
        max_model_len=96,
        max_num_batched_tokens=96,
        num_gpu_blocks_override=40,
        block_size=32,
        seed=0,
        disable_log_stats=False,
    )
    core, engine = llm.llm_engine.engine_core.engine_core, llm.llm_engine
    seen, control = Counter[str](), getattr(core.scheduler, "control", None)
    if control is not None:
        capture_all(core.model_executor.driver_worker.worker.model_runner)
        count_drafts(core.scheduler, seen)
        count_verified(core.scheduler, seen)
    for number, content in enumerate(BEGINNINGS):
        text = chat_text(llm, [{"role": "user", "content": content}])
        extra = {"traffic_class": CLASSES[number % len(CLASSES)]}
        engine.add_request(
            str(number), text, SamplingParams(temperature=0, max_tokens=14 + number, ignore_eos=True, extra_args=extra)
        )
    rng = random.Random(3)

    def change(step: int) -> None:
        if control is not None and step % 2 == 0:
            offer(control, {name: rng.choice([0, 0, *range(K_MAX + 1)]) for name in ("default", *CLASSES)})

    finish({"ids": replies(engine, change), "seen": seen, "replays": REPLAYS})


def capture_all(runner: Any) -> None:
    """Capture what `GPUModelRunner.capture_model` does; that asks for the memory of a GPU besides."""
    with torch.inference_mode():
        runner.cudagraph_manager.capture(
            runner.model, runner.model_state, runner.input_buffers, None, runner.block_tables, runner.attn_groups,
            runner.kv_cache_config, use_aux_hidden_state_outputs=runner.use_aux_hidden_state_outputs,
        )  # fmt: skip
        runner.speculator.capture()
    REPLAYS.clear()


def count_drafts(scheduler: Any, seen: Counter[str]) -> None:
    """Count in `seen` what is verified and accepted."""
    stats = scheduler.make_spec_decoding_stats

    def count(before: Any, num_draft_tokens: int, num_accepted_tokens: int, *more: Any, **named: Any) -> Any:
        seen["verified"] += num_draft_tokens
        seen["accepted"] += num_accepted_tokens
        return stats(before, num_draft_tokens, num_accepted_tokens, *more, **named)

    scheduler.make_spec_decoding_stats = count


def count_verified(scheduler: Any, seen: Counter[str]) -> None:
    """Count in `seen` what the evidence has of a step's drafts, and how long the drafts in it are."""
    commit = scheduler.meter.commit

    def count(shape: Any, seconds: float, context: int, outcome: Any) -> None:
        for draft in outcome.drafts:
            seen["evidence_verified"] += draft.k
            seen["evidence_accepted"] += draft.accepted
            seen["cut_to_nothing"] += draft.k == 0
        seen["evidence_positions"] += shape.verified
        commit(shape, seconds, context, outcome)

    scheduler.meter.commit = count


if __name__ == "__main__":
    main(sys.argv[1], is_adaptive=sys.argv[2:] == ["adaptive"])

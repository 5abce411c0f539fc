"""The CUDA graphs of an engine on model runner V1, for the record (`engine_adapter.vllm.graph_record`)."""

from typing import Any

from vllm.config import CUDAGraphMode

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.vllm.graph_record import sizes, sizes_by_length
from specpilot.engine_adapter.vllm.v1 import drafting
from specpilot.engine_adapter.vllm.v1.draft_width import varies
from specpilot.engine_adapter.vllm.v1.graphs import StepDispatcher


def of_runner(runner: Any) -> Graphs | None:
    """Return the graphs of a model runner whose drafter is steered."""
    if drafting.of_runner(runner) is None or runner.cudagraph_dispatcher.cudagraph_mode == CUDAGraphMode.NONE:
        return None
    dispatcher = runner.cudagraph_dispatcher
    mode, keys = dispatcher.cudagraph_mode, dispatcher.cudagraph_keys
    has_pieces = mode.has_piecewise_cudagraphs()
    if isinstance(dispatcher, StepDispatcher) and dispatcher.replays_any_mix:
        mode = CUDAGraphMode.FULL
    uniform = [key for key in keys[CUDAGraphMode.FULL] if key.uniform]
    drafted = runner.drafter.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.PIECEWISE]
    return Graphs(
        mode=mode.name,
        mixed=sizes(key.num_tokens for key in keys.get(mode.mixed_mode(), ()) if not key.uniform),
        uniform=sizes_by_length((key.num_tokens // key.num_reqs, key.num_tokens) for key in uniform),
        drafter=sizes(key.num_tokens for key in drafted) if varies(runner.drafter) and has_pieces else (),
    )

"""The CUDA graphs of an engine on model runner V2, for the record that the controller reads."""

from typing import Any

from vllm.config import CUDAGraphMode

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.vllm.compat import needs_one_length
from specpilot.engine_adapter.vllm.graph_record import sizes, sizes_by_length
from specpilot.engine_adapter.vllm.v2.steered import of_speculator


def of_runner(runner: Any) -> Graphs | None:
    """Return the graphs of a model runner whose speculator is steered; `None` without graphs."""
    manager = runner.cudagraph_manager
    if of_speculator(runner.speculator) is None or not manager.needs_capture():
        return None
    full = manager._capture_descs.get(CUDAGraphMode.FULL, ())
    mixed = manager.cudagraph_mode.mixed_mode()
    uniform = [graph for graph in full if graph.uniform_token_count is not None]
    any_step = [
        graph.num_tokens
        for graph in manager._capture_descs.get(mixed, ())
        if graph.uniform_token_count is None and graph.max_query_len is None
    ]
    drafter = []
    if getattr(runner.speculator, "lays_out_itself", False):
        drafter_manager = runner.speculator.prefill_cudagraph_manager
        drafter = [graph.num_tokens for graphs in drafter_manager._capture_descs.values() for graph in graphs]
    return Graphs(
        mode=manager.cudagraph_mode.name,
        mixed=sizes(any_step),
        uniform=sizes_by_length((graph.uniform_token_count, graph.num_tokens) for graph in uniform),
        drafter=sizes(drafter),
        varlen=sizes(
            graph.num_tokens for graph in full if graph.uniform_token_count is None and graph.max_query_len is not None
        ),
        need_one_k=runner.model_config.is_hybrid
        or any(needs_one_length(group.backend.get_builder_cls()) for groups in runner.attn_groups for group in groups),
    )

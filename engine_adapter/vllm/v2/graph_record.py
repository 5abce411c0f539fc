"""The CUDA graphs of an engine on model runner V2, for the record that the controller reads."""

from typing import Any

from vllm.config import CUDAGraphMode

from specpilot.engine_adapter.vllm.v2.steered import of_speculator
from specpilot.policy.graphs import Graphs


def of_runner(runner: Any) -> Graphs | None:
    """Return the graphs of a model runner whose speculator is steered; `None` without graphs."""
    manager = runner.cudagraph_manager
    if of_speculator(runner.speculator) is None or not manager.needs_capture():
        return None
    full = manager._capture_descs.get(CUDAGraphMode.FULL, ())
    mixed = manager.cudagraph_mode.mixed_mode()
    uniform: dict[int, set[int]] = {}
    for graph in full:
        if graph.uniform_token_count is not None:
            uniform.setdefault(graph.uniform_token_count, set()).add(graph.num_tokens)
    any_step = [
        graph.num_tokens
        for graph in manager._capture_descs.get(mixed, ())
        if graph.uniform_token_count is None and graph.max_query_len is None
    ]
    drafter = []
    if getattr(runner.speculator, "lays_out_itself", False):
        own = runner.speculator.prefill_cudagraph_manager
        drafter = [graph.num_tokens for graphs in own._capture_descs.values() for graph in graphs]
    return Graphs(
        mode=manager.cudagraph_mode.name,
        mixed=_sorted(any_step),
        uniform={length: _sorted(sizes) for length, sizes in sorted(uniform.items())},
        drafter=_sorted(drafter),
        varlen=_sorted(graph.num_tokens for graph in full if graph.max_query_len is not None),
    )


def _sorted(sizes: Any) -> tuple[int, ...]:
    return tuple(sorted(set(sizes)))

"""What an engine's CUDA graphs are, from the worker that captured them to the record that the controller reads.

Which graphs there are is only known where they are captured, in the worker's process, and after it. vLLM's `EngineCore`
asks all workers to capture before it makes the scheduler; then it asks the first one what it has (`WORKER_METHOD`), and
the answer goes to the scheduler with the KV cache's configuration.
"""

from functools import cache, wraps
from typing import Any

from vllm.config import CUDAGraphMode
from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.worker_base import WorkerBase

from specpilot.engine_adapter.vllm.drafting import of_runner
from specpilot.engine_adapter.vllm.graphs import StepDispatcher
from specpilot.policy.codec import from_plain, to_plain
from specpilot.policy.graphs import Graphs

WORKER_METHOD = "specpilot_graphs"
"""The name of `of_worker` on vLLM's workers."""

GRAPHS = "specpilot_graphs"
"""The attribute of the `KVCacheConfig` that the scheduler is made with; as plain data, `None` for no graphs."""


@cache
def install() -> None:
    """Let workers tell their graphs, and the core ask them, once in this process."""
    initialize = EngineCore._initialize_kv_caches

    @wraps(initialize)
    def initialize_and_ask(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = initialize(self, *args, **kwargs)
        setattr(found, GRAPHS, self.model_executor.collective_rpc(WORKER_METHOD)[0])
        return found

    EngineCore._initialize_kv_caches = initialize_and_ask
    setattr(WorkerBase, WORKER_METHOD, of_worker)


def of_worker(worker: Any) -> dict[str, Any] | None:
    """Return a worker's graphs as plain data; `None` where it has none, or its drafter is not steered."""
    runner = worker.model_runner
    graphs = _of_v2(runner) if hasattr(runner, "speculator") else of_graphs(runner)
    return to_plain(graphs) if graphs is not None else None


def _of_v2(runner: Any) -> Graphs | None:
    """Return the graphs of a runner that is model runner V2."""
    from specpilot.engine_adapter.vllm.v2.graph_record import of_runner as of_v2  # noqa: PLC0415 - needs V2's modules

    return of_v2(runner)


def of_config(kv_cache_config: Any) -> Graphs | None:
    """Return the graphs that came with the configuration of the KV cache."""
    plain = getattr(kv_cache_config, GRAPHS, None)
    return from_plain(Graphs, plain) if plain is not None else None


def of_graphs(runner: Any) -> Graphs | None:
    """Return the graphs of a model runner whose drafter is steered."""
    if of_runner(runner) is None or runner.cudagraph_dispatcher.cudagraph_mode == CUDAGraphMode.NONE:
        return None
    dispatcher = runner.cudagraph_dispatcher
    mode, keys = dispatcher.cudagraph_mode, dispatcher.cudagraph_keys
    has_pieces = mode.has_piecewise_cudagraphs()
    if isinstance(dispatcher, StepDispatcher) and dispatcher.replays_any_mix:
        mode = CUDAGraphMode.FULL
    uniform: dict[int, set[int]] = {}
    for key in keys[CUDAGraphMode.FULL]:
        if key.uniform:
            uniform.setdefault(key.num_tokens // key.num_reqs, set()).add(key.num_tokens)
    drafted = runner.drafter.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.PIECEWISE]
    return Graphs(
        mode=mode.name,
        mixed=_sizes(key.num_tokens for key in keys.get(mode.mixed_mode(), ()) if not key.uniform),
        uniform={length: _sizes(sizes) for length, sizes in sorted(uniform.items())},
        drafter=_sizes(key.num_tokens for key in drafted) if runner.drafter.parallel_drafting and has_pieces else (),
    )


def _sizes(tokens: Any) -> tuple[int, ...]:
    return tuple(sorted(set(tokens)))

"""Passes the list of an engine's CUDA graphs from the worker that captured them to the scheduler, whose law uses it.

Only the worker's process has the list, after the capture. vLLM's `EngineCore` makes all workers capture before it
creates the scheduler. Then it calls `WORKER_METHOD` on the first one, and the result goes to the scheduler with the KV
cache's configuration.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache, wraps
from importlib import import_module
from typing import Any

from vllm.v1.engine.core import EngineCore
from vllm.v1.worker.worker_base import WorkerBase

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.policy.codec import from_plain, to_plain

WORKER_METHOD = "specpilot_graphs"
"""The name of `of_worker` on vLLM's workers."""

GRAPHS = "specpilot_graphs"
"""The attribute of the scheduler's `KVCacheConfig` with the graphs as plain data; `None` for no graphs."""


@cache
def install() -> None:
    """Add the method to the workers and its call to the core, once in this process."""
    initialize = EngineCore._initialize_kv_caches

    @wraps(initialize)
    def initialize_with_graphs(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = initialize(self, *args, **kwargs)
        setattr(config, GRAPHS, self.model_executor.collective_rpc(WORKER_METHOD)[0])
        return config

    EngineCore._initialize_kv_caches = initialize_with_graphs
    setattr(WorkerBase, WORKER_METHOD, of_worker)


def of_worker(worker: Any) -> dict[str, Any] | None:
    """Return a worker's graphs as plain data; `None` without graphs, or if its drafter is not steered."""
    runner = worker.model_runner
    kind = "v2" if hasattr(runner, "speculator") else "v1"
    graphs: Graphs | None = import_module(f"{__package__}.{kind}.graph_record").of_runner(runner)
    return to_plain(graphs) if graphs is not None else None


def of_config(kv_cache_config: Any) -> Graphs | None:
    """Return the graphs that came with the configuration of the KV cache."""
    plain = getattr(kv_cache_config, GRAPHS, None)
    return from_plain(Graphs, plain) if plain is not None else None


def sizes(tokens: Iterable[int]) -> tuple[int, ...]:
    """Return the sizes of graphs as the record has them: each once, the smallest first."""
    return tuple(sorted(set(tokens)))


def sizes_by_length(graphs: Iterable[tuple[int, int]]) -> Mapping[int, tuple[int, ...]]:
    """Return the sizes of uniform graphs by their query length, from pairs of query length and size."""
    tokens: defaultdict[int, set[int]] = defaultdict(set)
    for length, size in graphs:
        tokens[length].add(size)
    return {length: sizes(tokens[length]) for length in sorted(tokens)}

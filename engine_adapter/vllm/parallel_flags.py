"""What vLLM's flags state of an engine's parallelism, before a start. Pure."""

from typing import NamedTuple

from specpilot.engine_adapter.vllm import serve_flags
from specpilot.engine_adapter.vllm.serve_flags import Flags

_BALANCED_OUTSIDE = ("data-parallel-external-lb", "data-parallel-rank", "data-parallel-multi-port-external-lb")
"""Flags with which each data-parallel rank has a server of its own."""


class Parallelism(NamedTuple):
    """An engine's data, pipeline and context parallelism; 1: none. The other facts are as in `ConfigFacts`."""

    data: int
    pipeline: int
    context: int
    has_ranks_elsewhere: bool
    is_balanced_outside: bool
    is_launched_outside: bool


def parallelism(flags: Flags) -> Parallelism:
    """Return what the flags state, as vLLM makes its configuration of them (`vllm.data_parallel`)."""
    data, pipeline, tensor, *context = (
        serve_flags.whole(flags, f"{kind}-parallel-size", 1)
        for kind in ("data", "pipeline", "tensor", "decode-context", "prefill-context")
    )
    machines = max(1, serve_flags.whole(flags, "nnodes", 1))
    local = serve_flags.whole(flags, "data-parallel-size-local", max(1, data // machines))
    is_hybrid = "data-parallel-hybrid-lb" in flags
    is_hybrid = is_hybrid or ("data-parallel-start-rank" in flags and "headless" not in flags)
    is_outside = bool(balanced_outside(flags)) or (is_hybrid and local == 1)
    is_elsewhere = not (is_hybrid or is_outside) and local < data
    is_elsewhere = is_elsewhere or flags.get("data-parallel-backend") == "ray"
    is_launched = flags.get("distributed-executor-backend") == "external_launcher"
    return Parallelism(
        data,
        pipeline,
        max(context),
        data > 1 and is_elsewhere,
        is_outside,
        is_launched and data * pipeline * tensor * context[1] > 1,
    )


def balanced_outside(flags: Flags) -> list[str]:
    """Return the flags with which each data-parallel rank has a server of its own."""
    return [flag for flag in _BALANCED_OUTSIDE if flag in flags]

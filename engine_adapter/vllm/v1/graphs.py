"""CUDA graphs for the steps of any K: captures them, and finds the graph of a step.

vLLM runs a step of the target as one FULL graph, as PIECEWISE graphs with attention between them, or without a graph,
and pads it to the nearest captured size. A PIECEWISE step costs the host two to three times as much as a FULL one. On
model runner V1, vLLM captures FULL graphs for steps in which every request has 1 + K_max tokens, and for no others.

The *query length* q of a request is its number of tokens in the step: 1 + K for a decode, the size of the chunk for a
prompt. `StepDispatcher` replaces the runner's `CudagraphDispatcher` and searches in this order:

1. uniform graphs: for a step whose requests all have the same q, if this q has FULL graphs. q = 1 (K = 0) always has
   some.
2. graphs for any mix: for every other step, prompts included. With an attention backend that supports FULL graphs for
   any batch (`AttentionCGSupport.ALWAYS`: FlashAttention 3, Triton) the graph depends only on the number of tokens.
3. PIECEWISE graphs, if the backend does not support 2, or `may_mix` is false.

A step of q = 1 never replays a graph for any mix. By their sources, FlashAttention 3 writes less scheduler metadata for
such a step than a mixed graph reads, and Triton's attention selects another kernel for it. If the backend supports 2,
no further q needs graphs of its own. If it does not (FlashAttention 2 and 4, FlashInfer), each q of `UNIFORM_K` gets
some.

One of vLLM's own dispatchers makes the keys of each set, on a copy of the configuration with the sizes of that set.
vLLM profiles memory and captures from one list with the keys of all sets. Keys of two sets never collide: a key
contains tokens, requests and whether it is uniform.

Unchanged in vLLM: the modes that the attention backend supports (`resolve_cudagraph_mode_and_sizes`), capturing, and
the drafter's graphs. Those are PIECEWISE, and vLLM captures them together with the target's PIECEWISE graphs. So the
target keeps PIECEWISE graphs beside those for any mix. With `cudagraph_mode=FULL` vLLM compiles no pieces, and the
drafter has no graphs: `start_notes.graph_notes` warns of it. With `PIECEWISE` and `NONE` only the sizes change: they
are reset to the configured ones. With `FULL_DECODE_ONLY` no mixed step has a graph, and each q of `UNIFORM_K` gets
some.

Two kinds of engines keep vLLM's dispatcher: hybrid models, whose recurrent layers expect K_max drafts in each uniform
step, and data-parallel ranks in lockstep (`vllm.data_parallel`).
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

from specpilot.engine_adapter.vllm.data_parallel import in_lockstep
from specpilot.engine_adapter.vllm.engine_facts import is_steered
from specpilot.engine_adapter.vllm.query_lengths import ANY_MIX_BACKENDS, query_lengths
from specpilot.engine_adapter.vllm.start_notes import mode_note

ANY_MIX = 0
"""The key of graphs for any mix in lists of graphs by query length."""
_GROWTH = 4
"""Uniform graphs are captured for numbers of requests that grow by a quarter at most.

So a step is padded by 10 % on average, with 18 graphs for up to 64 requests.
"""
MEMORY_RATIO = 0.1
"""Share of the accelerator's memory above which only K = 0 and K_max get uniform graphs."""
_MIB = 1 << 20

logger = logging.getLogger("vllm.specpilot")


@dataclass(slots=True)
class CaptureCost:
    """Time and memory of capturing the FULL graphs of one set."""

    graphs: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0


class StepDispatcher(CudagraphDispatcher):
    """Finds the graph of a step (module docstring).

    `uniform_lengths` are the query lengths with FULL graphs of their own; 1 is always one of them. `any_mix`: whether
    the attention backend supports FULL graphs for any mix of query lengths. `step_length` is the query length of the
    step to be dispatched; it counts if the caller states that the step is uniform. `capturing` is the mode of the
    graph that is being captured, `None` outside of a capture. `costs`: those of capturing, by query length.
    """

    def __init__(self, vllm_config: Any, uniform_lengths: Iterable[int], *, any_mix: bool) -> None:
        super().__init__(vllm_config)
        compilation = vllm_config.compilation_config
        sizes = {*compilation.cudagraph_capture_sizes, *_full_batch(vllm_config)}
        self._configured = sorted(sizes), compilation.max_cudagraph_capture_size
        self._mode = compilation.cudagraph_mode  # as configured; vLLM resolves it before it makes keys
        self._uniform_lengths = sorted({1, *uniform_lengths})
        self._any_mix = any_mix
        self._uniform: dict[int, CudagraphDispatcher] = {}
        self._has_mixed = False
        self.uniform_decode_query_len = 1
        self.step_length = 1
        self.capturing: Any = None
        self.costs: dict[int, CaptureCost] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        """Query lengths with FULL graphs of their own."""
        return tuple(self._uniform)

    @property
    def replays_any_mix(self) -> bool:
        """Whether a step with any mix of query lengths replays one FULL graph."""
        return self._has_mixed

    def keep_fewest(self, k_max: int) -> bool:
        """Capture uniform graphs for K = 0 and K_max only; return whether these are fewer than before."""
        before = self._uniform_lengths
        self._uniform_lengths = sorted({1, 1 + k_max} & {*before})
        return self._uniform_lengths != before

    def initialize_cudagraph_keys(self, cudagraph_mode: Any, uniform_decode_query_len: int = 1) -> None:
        """Make the keys of all graphs; vLLM has already rounded the sizes for `uniform_decode_query_len`."""
        del uniform_decode_query_len
        note = mode_note(self._mode, cudagraph_mode)
        if note is not None:
            logger.warning("SpecPilot: %s", note)
        self._mode = cudagraph_mode
        compilation = self.compilation_config
        compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = self._configured
        super().initialize_cudagraph_keys(cudagraph_mode, 1)
        self._uniform, self._has_mixed, self.costs = {}, cudagraph_mode == CUDAGraphMode.FULL, {}
        if cudagraph_mode.decode_mode() != CUDAGraphMode.FULL:
            return
        for length in self._uniform_lengths:
            if length <= (compilation.max_cudagraph_capture_size or 0):
                sizes = self._configured[0] if length == 1 else _uniform_sizes(self.vllm_config, length)
                self._uniform[length] = self._add(sizes, CUDAGraphMode.FULL_DECODE_ONLY, length)
        if self._any_mix and cudagraph_mode == CUDAGraphMode.FULL_AND_PIECEWISE:
            # A step of one token is a step of q = 1. vLLM's `dispatch` looks for FULL keys before PIECEWISE ones.
            self._add([size for size in self._configured[0] if size > 1], CUDAGraphMode.FULL, 1)
            self._has_mixed = True

    def _add(self, sizes: list[int], mode: Any, length: int) -> CudagraphDispatcher:
        """Return a dispatcher of vLLM's for these `sizes`, and add its FULL keys to the list of all."""
        config = copy(self.vllm_config)
        config.compilation_config = compilation = copy(self.compilation_config)
        compilation.compile_sizes = None  # those sizes are for PIECEWISE steps
        compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = sizes, sizes[-1]
        dispatcher = CudagraphDispatcher(config)
        dispatcher.uniform_decode_query_len = length
        dispatcher.initialize_cudagraph_keys(mode, length)
        self.cudagraph_keys[CUDAGraphMode.FULL] |= dispatcher.cudagraph_keys[CUDAGraphMode.FULL]
        return dispatcher

    def dispatch(  # noqa: PLR0913, PLR0917 - vLLM's signature
        self,
        num_tokens: int,
        uniform_decode: bool = False,  # noqa: FBT001, FBT002
        has_lora: bool = False,  # noqa: FBT001, FBT002
        num_active_loras: int = 0,
        valid_modes: Any = None,
        invalid_modes: Any = None,
    ) -> tuple[Any, Any]:
        """Return mode and key of the graph for a step of `num_tokens`, as vLLM's dispatcher does."""
        dispatcher = self._uniform.get(self.step_length) if uniform_decode else None
        if dispatcher is not None and self.capturing != CUDAGraphMode.PIECEWISE:
            allowed = (valid_modes or CUDAGraphMode.valid_runtime_modes()) - (invalid_modes or frozenset())
            if CUDAGraphMode.FULL in allowed:
                mode, key = dispatcher.dispatch(num_tokens, True, has_lora, num_active_loras)
                if mode == CUDAGraphMode.FULL:
                    return mode, key
        if self.capturing == CUDAGraphMode.PIECEWISE or (uniform_decode and self.step_length == 1):
            invalid_modes = {CUDAGraphMode.FULL, *(invalid_modes or ())}
        mode, key = super().dispatch(num_tokens, False, has_lora, num_active_loras, valid_modes, invalid_modes)
        return mode, key


def replace_dispatcher(runner: Any, attention_backends: Any, kv_cache_groups: Any) -> None:
    """Give a model runner whose drafter is steered a `StepDispatcher`, before its keys are made.

    `attention_backends`, `kv_cache_groups`: as vLLM passes them to `_check_and_update_cudagraph_mode`.
    """
    config = runner.vllm_config
    if isinstance(runner.cudagraph_dispatcher, StepDispatcher) or not is_graphed(config):
        return
    any_mix = may_mix(config) and supports_any_mix(config, attention_backends, kv_cache_groups)
    lengths = query_lengths(config.num_speculative_tokens, any_mix=any_mix)
    runner.cudagraph_dispatcher = StepDispatcher(config, lengths, any_mix=any_mix)


def may_mix(vllm_config: Any) -> bool:
    """Whether one graph may serve any mix: the mode has graphs for mixed steps, and these read tokens alone.

    A FULL graph keeps the arguments of its capture. Two kinds of attention need other arguments for a prompt:

    - attention to images in both directions gets the images' places, so a replay would read a prompt with an image as
      text;
    - MLA reads prompts and decodes with different kernels, and the host sets where the prompts begin. FLASHINFER_MLA
      declares `ALWAYS` for decodes of any lengths; a replay would read a prompt with the decodes' kernel.
    """
    mode, model = vllm_config.compilation_config.cudagraph_mode, vllm_config.model_config
    reads_more = getattr(model, "is_mm_prefix_lm", False) or getattr(model, "use_mla", False)
    return mode.mixed_mode() != CUDAGraphMode.NONE and not reads_more


def supports_any_mix(vllm_config: Any, attention_backends: Any, kv_cache_groups: Any) -> bool:
    """Whether all attention backends of an engine can replay one FULL graph for any mix of query lengths."""
    return all(
        backend.get_name() in ANY_MIX_BACKENDS
        and backend.get_builder_cls().get_cudagraph_support(vllm_config, group.kv_cache_spec)
        == AttentionCGSupport.ALWAYS
        for backends, group in zip(attention_backends, kv_cache_groups, strict=False)
        for backend in backends
    )


def is_graphed(vllm_config: Any) -> bool:
    """Whether the graphs of an engine are captured for the query lengths of its K."""
    return (
        vllm_config.speculative_config is not None
        and is_steered(vllm_config)
        and not vllm_config.model_config.is_hybrid
        and not in_lockstep(vllm_config)
        and bool(vllm_config.compilation_config.cudagraph_capture_sizes)
    )


@contextmanager
def captured(runner: Any, key: Any, mode: Any) -> Iterator[None]:
    """Make the runner capture the graph of `key` and `mode`, and note the cost of a FULL one."""
    dispatcher = runner.cudagraph_dispatcher
    if not isinstance(dispatcher, StepDispatcher):
        yield
        return
    length = key.num_tokens // key.num_reqs if key.uniform else ANY_MIX
    began, free, dispatcher.capturing = time.monotonic(), _free_bytes(), mode
    try:
        with of_length(runner, length):
            yield
    finally:
        dispatcher.capturing = None
    if mode == CUDAGraphMode.FULL:
        cost = dispatcher.costs.setdefault(length, CaptureCost())
        cost.graphs += 1
        cost.seconds += time.monotonic() - began
        cost.memory_bytes += free - _free_bytes()


def capture_length(runner: Any, key: Any) -> int | None:
    """Return the length of the sequences for the capture of the graph of `key`; `None`: vLLM's own.

    vLLM uses as many tokens for each request as the whole mixed step has. If the model's limit is smaller, the
    warm-up's attention would read block numbers beyond the block table.
    """
    is_replaced, longest = isinstance(runner.cudagraph_dispatcher, StepDispatcher), runner.max_model_len
    return longest if is_replaced and not key.uniform and key.num_tokens > longest else None


def is_too_much(runner: Any, estimate_bytes: int) -> bool:
    """Reduce the graphs to those for K = 0 and K_max if they are too large; return whether they were reduced."""
    dispatcher = runner.cudagraph_dispatcher
    if not isinstance(dispatcher, StepDispatcher) or not torch.accelerator.is_available():
        return False
    total = int(torch.accelerator.get_memory_info()[1])
    if estimate_bytes <= MEMORY_RATIO * total or not dispatcher.keep_fewest(runner.vllm_config.num_speculative_tokens):
        return False
    logger.warning(
        "SpecPilot: CUDA graphs would take %.0f MiB, more than %.0f %% of the memory: FULL graphs for K = 0 and K_max "
        "alone are captured; name further K with --graph-k, or lower --max-cudagraph-capture-size",
        estimate_bytes / _MIB, 100 * MEMORY_RATIO,
    )  # fmt: skip
    return True


def say_captured(runner: Any) -> None:
    """Log the steps with FULL graphs, the cost of the graphs, and the size above which steps have none."""
    dispatcher = runner.cudagraph_dispatcher
    if not isinstance(dispatcher, StepDispatcher):
        return
    largest = dispatcher.compilation_config.max_cudagraph_capture_size
    for length, cost in sorted(dispatcher.costs.items()):
        logger.info(
            "SpecPilot: %d FULL graphs for %s, up to %d tokens a step: %.1f s, %.0f MiB",
            cost.graphs, "any mix of K and prompts" if length == ANY_MIX else f"K = {length - 1}", largest,
            cost.seconds, cost.memory_bytes / _MIB,
        )  # fmt: skip


@contextmanager
def of_length(runner: Any, length: int) -> Iterator[None]:
    """Make the runner treat a step as uniform if `length` is its query length and has graphs of its own.

    Dummy runs count as steps.
    """
    dispatcher = runner.cudagraph_dispatcher
    if not isinstance(dispatcher, StepDispatcher):
        yield
        return
    before = runner.uniform_decode_query_len, dispatcher.step_length
    # No step has the query length 0. The runner's own, 1 + K_max, may have no graphs.
    runner.uniform_decode_query_len = dispatcher.step_length = length if length in dispatcher.lengths else 0
    try:
        yield
    finally:
        runner.uniform_decode_query_len, dispatcher.step_length = before


def _free_bytes() -> int:
    return int(torch.accelerator.get_memory_info()[0]) if torch.accelerator.is_available() else 0


def _uniform_sizes(vllm_config: Any, length: int) -> list[int]:
    """Return the sizes, in tokens, of the uniform graphs for a query length, which is within the largest size."""
    largest = vllm_config.compilation_config.max_cudagraph_capture_size
    most = min(largest // length, vllm_config.scheduler_config.max_num_seqs)
    counts, count = {most}, 1
    while count < most:
        counts.add(count)
        count += max(1, count // _GROWTH)
    return sorted(count * length for count in counts)


def _full_batch(vllm_config: Any) -> set[int]:
    """Return the size of a step with one token of each request that may run; empty if it is too large for a graph.

    Without it the last few batch sizes below `max_num_seqs` would be padded to a size without a FULL graph.
    """
    size = vllm_config.scheduler_config.max_num_seqs
    return {size} if size <= vllm_config.compilation_config.max_cudagraph_capture_size else set()

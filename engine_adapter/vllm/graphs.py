"""CUDA graphs for the steps that K makes: FULL graphs for several query lengths, of sizes that these steps need.

A step of the target in which each request has the same number of positions q (its *query length*: 1 + K) can be
replayed as one FULL graph; any other step as PIECEWISE graphs with attention between them, or without a graph. A step
is padded to the nearest size that was captured. vLLM on model runner V1 captures FULL graphs for q = 1 + K_max alone,
and rounds every size to multiples of it, so that at K = 0 one request would be run as 1 + K_max rows without one.

`LengthDispatcher` takes the place of the runner's `CudagraphDispatcher`. It is one for q = 1 and for all mixed steps,
with the sizes that were configured, and holds one of vLLM's own for each further query length, with these sizes rounded
up to multiples of that length, the largest multiple that fits, and the size of a step of all requests that may run. The
FULL keys of all stand in its one list, from which vLLM profiles the memory and captures. Keys of two lengths never
meet: a key has tokens and requests, and so the length.

What vLLM keeps for itself: which modes the attention backend can do (`resolve_cudagraph_mode_and_sizes`); capturing;
the drafter's graphs, which are PIECEWISE. Where a mode has no FULL graphs of its own for uniform steps (`PIECEWISE`,
`FULL`, `NONE`), query lengths make no difference, and the configured sizes are all that is put back.

Hybrid models keep vLLM's dispatcher: their recurrent layers count on a layout with K_max drafts in each uniform step.
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
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm.compat import is_steered

_MIB = 1 << 20

logger = logging.getLogger("vllm.specpilot")


@dataclass(slots=True)
class Taken:
    """What capturing FULL graphs of one query length took."""

    graphs: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0


class LengthDispatcher(CudagraphDispatcher):
    """Finds the graph of a step, whatever the query length of its requests.

    `lengths` are the query lengths that get FULL graphs; 1 always does. `step_length` is that of the step to be
    dispatched, and counts where the caller says that it is uniform. `taken`: what capturing took, by query length.
    """

    def __init__(self, vllm_config: Any, lengths: Iterable[int]) -> None:
        super().__init__(vllm_config)
        compilation = vllm_config.compilation_config
        largest = compilation.max_cudagraph_capture_size
        sizes = {*compilation.cudagraph_capture_sizes, *_full_batch(vllm_config, 1)}
        self._configured = sorted(sizes), largest
        self._wanted = sorted({*lengths} - {1})
        self._of_length: dict[int, CudagraphDispatcher] = {}
        self.uniform_decode_query_len = 1
        self.step_length = 1
        self.taken: dict[int, Taken] = {}

    @property
    def lengths(self) -> tuple[int, ...]:
        """Query lengths that have FULL graphs of their own."""
        return (1, *self._of_length) if self.cudagraph_mode.separate_routine() else ()

    def sizes(self, length: int) -> list[int]:
        """Return the sizes, in tokens, of the FULL graphs for this query length."""
        keys = self.cudagraph_keys[CUDAGraphMode.FULL]
        return sorted({key.num_tokens for key in keys if key.uniform and key.num_tokens == length * key.num_reqs})

    def initialize_cudagraph_keys(self, cudagraph_mode: Any, uniform_decode_query_len: int = 1) -> None:
        """Make the keys of all graphs; by now vLLM has rounded the sizes for `uniform_decode_query_len`."""
        del uniform_decode_query_len
        compilation = self.compilation_config
        compilation.cudagraph_capture_sizes, compilation.max_cudagraph_capture_size = self._configured
        super().initialize_cudagraph_keys(cudagraph_mode, 1)
        self._of_length = {}
        self.taken = {}
        if cudagraph_mode.decode_mode() != CUDAGraphMode.FULL or not cudagraph_mode.separate_routine():
            return
        for length in self._wanted:
            if length <= (compilation.max_cudagraph_capture_size or 0):
                self._of_length[length] = own = _of_length(self.vllm_config, length)
                self.cudagraph_keys[CUDAGraphMode.FULL] |= own.cudagraph_keys[CUDAGraphMode.FULL]

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
        if uniform_decode and self.step_length > 1:
            uniform_decode = False
            own = self._of_length.get(self.step_length)
            may_be_full = CUDAGraphMode.FULL in (valid_modes or {CUDAGraphMode.FULL})
            if own is not None and may_be_full and CUDAGraphMode.FULL not in (invalid_modes or ()):
                found: tuple[Any, Any] = own.dispatch(num_tokens, True, has_lora, num_active_loras)
                if found[0] == CUDAGraphMode.FULL:
                    return found
        mode, key = super().dispatch(num_tokens, uniform_decode, has_lora, num_active_loras, valid_modes, invalid_modes)
        return mode, key


def replace_dispatcher(runner: Any) -> None:
    """Give a model runner whose drafter is steered a `LengthDispatcher`, before its keys are made."""
    config = runner.vllm_config
    if isinstance(runner.cudagraph_dispatcher, LengthDispatcher) or not is_graphed(config):
        return
    runner.cudagraph_dispatcher = LengthDispatcher(config, query_lengths(config.num_speculative_tokens))


def is_graphed(vllm_config: Any) -> bool:
    """Whether the graphs of an engine are made for the query lengths that K takes."""
    return (
        vllm_config.speculative_config is not None
        and is_steered(vllm_config)
        and not vllm_config.model_config.is_hybrid
        and bool(vllm_config.compilation_config.cudagraph_capture_sizes)
    )


def query_lengths(k_max: int) -> tuple[int, ...]:
    """Return the query lengths that get FULL graphs: of K = 0, of K_max, and of each K that the operator names."""
    return tuple(sorted({1, 1 + k_max, *(1 + k for k in AdapterSettings().graph_k if k <= k_max)}))


@contextmanager
def captured(runner: Any, key: Any) -> Iterator[None]:
    """Let the runner capture the graph of `key` for its query length, and note what it takes of a FULL one."""
    if not key.uniform:
        yield
        return
    length, began, free = key.num_tokens // key.num_reqs, time.monotonic(), _free_bytes()
    with of_length(runner, length):
        yield
    if isinstance(runner.cudagraph_dispatcher, LengthDispatcher):
        taken = runner.cudagraph_dispatcher.taken.setdefault(length, Taken())
        taken.graphs += 1
        taken.seconds += time.monotonic() - began
        taken.memory_bytes += free - _free_bytes()


def say_captured(runner: Any) -> None:
    """Log what the FULL graphs of each K took, after all were captured."""
    if isinstance(runner.cudagraph_dispatcher, LengthDispatcher):
        for length, taken in sorted(runner.cudagraph_dispatcher.taken.items()):
            logger.info(
                "SpecPilot: %d FULL graphs for K = %d: %.1f s, %.0f MiB",
                taken.graphs, length - 1, taken.seconds, taken.memory_bytes / _MIB,
            )  # fmt: skip


@contextmanager
def of_length(runner: Any, length: int) -> Iterator[None]:
    """Let the runner take a step or a dummy run of query length `length` for a uniform one, if it has such graphs."""
    dispatcher = runner.cudagraph_dispatcher
    if not isinstance(dispatcher, LengthDispatcher) or length not in dispatcher.lengths:
        yield
        return
    before = runner.uniform_decode_query_len, dispatcher.step_length
    runner.uniform_decode_query_len = dispatcher.step_length = length
    try:
        yield
    finally:
        runner.uniform_decode_query_len, dispatcher.step_length = before


def _free_bytes() -> int:
    return int(torch.accelerator.get_memory_info()[0]) if torch.accelerator.is_available() else 0


def _of_length(vllm_config: Any, length: int) -> CudagraphDispatcher:
    """Return vLLM's own dispatcher of FULL graphs for one query length, which is within the largest size."""
    own = copy(vllm_config)
    own.compilation_config = sizes = copy(vllm_config.compilation_config)
    sizes.compile_sizes = None  # what is compiled apart is of mixed steps
    largest = sizes.max_cudagraph_capture_size
    multiples = {-(-size // length) * length for size in sizes.cudagraph_capture_sizes} | {largest // length * length}
    multiples |= _full_batch(vllm_config, length)
    sizes.cudagraph_capture_sizes = sorted(size for size in multiples if size <= largest)
    sizes.max_cudagraph_capture_size = sizes.cudagraph_capture_sizes[-1]
    dispatcher = CudagraphDispatcher(own)
    dispatcher.uniform_decode_query_len = length
    dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_DECODE_ONLY, length)
    return dispatcher


def _full_batch(vllm_config: Any, length: int) -> set[int]:
    """Return the size of a step of all requests that may run, where keys of FULL graphs end; none if it is too large.

    Without it the last few batch sizes below `max_num_seqs` would be padded beyond, to a size without such a graph.
    """
    size = length * vllm_config.scheduler_config.max_num_seqs
    return {size} if size <= vllm_config.compilation_config.max_cudagraph_capture_size else set()

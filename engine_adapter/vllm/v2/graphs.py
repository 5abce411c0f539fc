"""CUDA graphs on model runner V2 for the steps of any K: one graph for any mix of lengths, if attention supports it.

vLLM's V2 captures FULL graphs of decodes only for 1 + K_max positions of each request; every other step is PIECEWISE.
It has graphs of variable length (`varlen_decode`), and captures them only for adaptive verification. Before the capture
a steered engine gets these graphs, instead of those of vLLM's managers:

- *the target*: graphs of variable length for any mix of 1 to 1 + K_max positions, if every attention backend supports
  them (`get_varlen_cudagraph_unsupported_backend`) and is one of `ANY_MIX_BACKENDS`. An engine with adaptive
  verification always has them: vLLM starts it on no other backend. Every engine has graphs for each length of
  `query_lengths`: kernels are faster for a known length, such as one position of each request, K = 0. Recurrent layers
  have these alone;
- *a sequential head's first pass*: the same lengths, because it runs over the target's step;
- *its further passes*: one graph of all passes for each width. vLLM's own graph has K_max passes at any width.

Graphs exist in modes with FULL graphs of decodes separate from mixed steps (`FULL_AND_PIECEWISE`, `FULL_DECODE_ONLY`).
Mode `FULL` has one set of graphs for any step, and stays unchanged.
"""

import logging
from collections.abc import Iterable
from typing import Any

from vllm.config import CUDAGraphMode
from vllm.v1.worker.gpu.attn_utils import get_varlen_cudagraph_unsupported_backend
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager, ModelCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import (
    SpeculatorBatchDescriptor,
    SpeculatorCudaGraphManager,
)

from specpilot.engine_adapter.vllm.data_parallel import in_lockstep
from specpilot.engine_adapter.vllm.query_lengths import ANY_MIX_BACKENDS, query_lengths

logger = logging.getLogger("vllm.specpilot")


class _OfLengths(CudaGraphManager):
    """Adds FULL graphs for steps in which all requests have the same number of positions, one of `lengths`.

    They are preferred to graphs of variable length. `longest` is the largest number of positions of a request in the
    step, for a caller that does not pass it to `dispatch`; `None` if the step is no decode.

    `is_hybrid`: attention receives 1 + K_max as the largest number of positions, at the capture and at each replay,
    because vLLM's Mamba layers refuse to be captured for another one. They read the real numbers from the step.
    """

    def __init__(self, *args: Any, lengths: Iterable[int], is_hybrid: bool = False, **kwargs: Any) -> None:
        self._lengths, self._is_hybrid = tuple(lengths), is_hybrid
        self.longest: int | None = None
        super().__init__(*args, **kwargs)

    def _init_candidates(self) -> None:
        super()._init_candidates()
        if self.cudagraph_mode.decode_mode() != CUDAGraphMode.FULL or not self.cudagraph_mode.separate_routine():
            return
        for loras in self.lora_capture_cases:
            for length in self._lengths:
                self._add([self._uniform(length, size, loras) for size in self._sizes(length)])

    def dispatch(  # noqa: PLR0913, PLR0917 - vLLM's
        self,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> BatchExecutionDescriptor:
        """Return the descriptor of the graph for a step, as vLLM's manager does."""
        if max_query_len is None:
            max_query_len = self.longest
        descriptor: BatchExecutionDescriptor = super().dispatch(
            num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len, num_ubatches
        )
        return descriptor

    def _sizes(self, length: int) -> list[int]:
        """Return the sizes, in tokens, of graphs for this length: configured ones, rounded up, and of a full batch."""
        compilation = self.compilation_config
        largest = min(compilation.max_cudagraph_capture_size or 0, self.max_num_reqs * length)
        sizes = {-(-size // length) * length for size in compilation.cudagraph_capture_sizes or ()}
        return sorted(size for size in sizes | {self.max_num_reqs * length} if size <= largest)

    def _uniform(self, length: int, size: int, loras: int) -> BatchExecutionDescriptor:
        longest = self.decode_query_len if self._is_hybrid and length < self.decode_query_len else None
        return BatchExecutionDescriptor(CUDAGraphMode.FULL, size, size // length, length, longest, loras)

    def _add(self, graphs: list[BatchExecutionDescriptor]) -> None:
        """Capture `graphs` too, smallest first; prefer them for their steps."""
        known = self._capture_descs.setdefault(CUDAGraphMode.FULL, list[BatchExecutionDescriptor]())
        known.extend(graph for graph in graphs if graph not in known)
        known.sort(key=lambda graph: graph.num_tokens, reverse=True)
        begin = 0
        for graph in graphs:
            for tokens in range(begin, graph.num_tokens + 1):
                offered = self._candidates.setdefault((tokens, graph.num_active_loras), [])
                if graph not in offered:
                    offered.insert(0, graph)
            begin = graph.num_tokens + 1


class TargetGraphs(_OfLengths, ModelCudaGraphManager):
    """The target's graphs."""


class FirstPassGraphs(_OfLengths, SpeculatorCudaGraphManager):
    """The graphs of a sequential head's first pass."""


class FurtherPassGraphs(SpeculatorCudaGraphManager):
    """The graphs of a sequential head's further passes, all in one, for each width from 2 on."""

    def capture(self, *args: Any, **kwargs: Any) -> None:
        """Capture the graphs."""
        widths = range(self.vllm_config.num_speculative_tokens, 1, -1)
        self._capture_descs = {
            mode: [
                SpeculatorBatchDescriptor(**vars(graph), num_speculative_tokens=width)
                for graph in graphs
                for width in widths
            ]
            for mode, graphs in self._capture_descs.items()  # type: ignore[has-type]
        }
        super().capture(*args, **kwargs)


def replace_managers(runner: Any) -> None:
    """Replace the managers that vLLM has just made for a runner by managers for the steps of any K.

    A rank in lockstep keeps vLLM's (`vllm.data_parallel`).
    """
    if in_lockstep(runner.vllm_config):
        return
    speculator, target = runner.speculator, runner.cudagraph_manager
    k_max = runner.vllm_config.num_speculative_tokens
    is_varlen = runner.adaptive_verification is not None or can_mix(runner)
    if target.cudagraph_mode.separate_routine() and not is_varlen:
        logger.warning(
            "SpecPilot: this attention has graphs for decodes of one length only: a step of different K has no FULL "
            "CUDA graph; if the GPU supports it, choose --attention-backend FLASH_ATTN (3), or TRITON_ATTN"
        )
    lengths, is_hybrid = query_lengths(k_max, any_mix=is_varlen), runner.model_config.is_hybrid
    runner.cudagraph_manager = TargetGraphs(
        runner.vllm_config,
        runner.device,
        target.cudagraph_mode,
        decode_query_len=target.decode_query_len,
        lora_capture_cases=target.lora_capture_cases,
        varlen_decode=is_varlen,
        ubatch_runner=target.ubatch_runner,
        lengths=lengths,
        is_hybrid=is_hybrid,
    )
    first, further = (getattr(speculator, f"{kind}_cudagraph_manager", None) for kind in ("prefill", "decode"))
    if first is None or further is None:  # it drafts in parallel and has made its own, or has no graphs
        return
    speculator.prefill_cudagraph_manager = FirstPassGraphs(
        runner.vllm_config,
        runner.device,
        first.cudagraph_mode,
        first.decode_query_len,
        varlen_decode=is_varlen,
        lengths=lengths,
        is_hybrid=is_hybrid,
    )
    if speculator.supports_decode_metadata_update:
        speculator.decode_cudagraph_manager = FurtherPassGraphs(
            runner.vllm_config, runner.device, further.cudagraph_mode, decode_query_len=1
        )


def note_longest(speculator: Any, batch: Any) -> None:
    """Make a sequential head's first pass over `batch` find graphs of variable length; vLLM passes no length."""
    manager = speculator.prefill_cudagraph_manager
    if isinstance(manager, _OfLengths):
        manager.longest = None if batch.has_prefill else int(batch.num_scheduled_tokens.max())


def can_mix(runner: Any) -> bool:
    """Whether the FULL graphs of every attention backend allow decodes of any lengths up to 1 + K_max in one step."""
    return (
        are_known(runner.attn_groups)
        and get_varlen_cudagraph_unsupported_backend(runner.attn_groups, runner.vllm_config, runner.decode_query_len)
        is None
    )


def are_known(attn_groups: Any) -> bool:
    """Whether graphs of variable length are captured for these attention backends."""
    return all(group.backend.get_name() in ANY_MIX_BACKENDS for groups in attn_groups for group in groups)

"""The part of vLLM's runner that captures and finds graphs, over attention backends of three kinds."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specpilot.engine_adapter.vllm.scheduler import SpecPilotAsyncScheduler
from specpilot.engine_adapter.vllm.v1.installation import install

K_MAX = 7
LONG_SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16)]
SIZES = [size for size in LONG_SIZES if size <= 512]  # vLLM's own on an H100
FULL, PIECEWISE, NONE = "FULL", "PIECEWISE", "NONE"


class UniformBackend:
    """An attention backend with FULL graphs for uniform steps alone, like FlashAttention 2 and MLA."""

    @classmethod
    def get_builder_cls(cls) -> type:
        return cls

    @staticmethod
    def get_name() -> str:
        return "FLASH_ATTN"

    @staticmethod
    def get_cudagraph_support(*_: object) -> AttentionCGSupport:
        return AttentionCGSupport.UNIFORM_BATCH


class AnyMixBackend(UniformBackend):
    """An attention backend with FULL graphs for any batch, like FlashAttention 3 and Triton's."""

    @staticmethod
    def get_name() -> str:
        return "TRITON_ATTN"

    @staticmethod
    def get_cudagraph_support(*_: object) -> AttentionCGSupport:
        return AttentionCGSupport.ALWAYS


class UntriedBackend(AnyMixBackend):
    """A backend that declares the same, like FLEX_ATTENTION, and whose graphs nobody ran."""

    @staticmethod
    def get_name() -> str:
        return "FLEX_ATTENTION"


def runner(
    scheduler: object = SpecPilotAsyncScheduler,
    mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE,
    *,
    max_num_seqs: int = 256,
    is_hybrid: bool = False,
    is_mm_prefix_lm: bool = False,
    use_mla: bool = False,
    backend: type = UniformBackend,
    largest: int = SIZES[-1],
    ranks: int = 1,
) -> Any:
    """The part of vLLM's runner that finds graphs: its configuration is a stub, dispatcher and wrappers are real."""
    install()
    compilation = CompilationConfig(
        mode=3,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=[size for size in LONG_SIZES if size <= largest],
        max_cudagraph_capture_size=largest,
    )
    compilation.set_splitting_ops_for_v1(all2all_backend="", data_parallel_size=1)
    config = SimpleNamespace(
        compilation_config=compilation,
        num_speculative_tokens=K_MAX,
        lora_config=None,
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs, scheduler_cls=scheduler, async_scheduling=scheduler is SpecPilotAsyncScheduler
        ),
        speculative_config=SimpleNamespace(method="eagle3"),
        model_config=SimpleNamespace(
            is_hybrid=is_hybrid, is_encoder_decoder=False, is_mm_prefix_lm=is_mm_prefix_lm, use_mla=use_mla, is_moe=True
        ),
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
        observability_config=SimpleNamespace(cudagraph_metrics=False),
    )
    made = SimpleNamespace(
        vllm_config=config,
        compilation_config=compilation,
        model_config=config.model_config,
        uniform_decode_query_len=1 + K_MAX,
        cudagraph_dispatcher=CudagraphDispatcher(config),
        _is_uniform_decode=GPUModelRunner._is_uniform_decode,
        input_batch=SimpleNamespace(lora_id_to_lora_request={}),
        speculative_config=None,  # the drafter's keys are its own
        kv_cache_config=None,
        max_num_reqs=max_num_seqs,
        max_model_len=4096,
    )
    GPUModelRunner._check_and_update_cudagraph_mode(made, [{backend}], [SimpleNamespace(kv_cache_spec=None)])
    return made


def key_of(made: Any, positions: list[int]) -> tuple[Any, Any]:
    """Mode and key of the graph of a step whose requests have so many positions each."""
    mode, key, *_ = GPUModelRunner._determine_batch_execution_and_padding(
        made,
        num_tokens=sum(positions),
        num_reqs=len(positions),
        num_scheduled_tokens_np=np.array(positions),
        max_num_scheduled_tokens=max(positions),
    )
    return mode, key


def found(made: Any, positions: list[int]) -> tuple[str, int]:
    """Mode and padded tokens of a step whose requests have so many positions each."""
    mode, key = key_of(made, positions)
    assert not key.uniform or key.num_tokens == key.num_reqs * positions[0]
    return mode.name, key.num_tokens

"""What of an engine's configuration decides whether the adapter can steer it, as plain values.

The rules (`compat`) read nothing else. At a start the facts come from vLLM's own configuration (`of_engine`), before
one from the models' `config.json` and vLLM's flags (`before_start`).
"""

from dataclasses import dataclass
from typing import Any

from specpilot.engine_adapter.vllm import data_parallel
from specpilot.engine_adapter.vllm.engine_facts import has_block, is_windowed, uses_mla
from specpilot.engine_adapter.vllm.versions import vllm_version

MASK_TOKENS = ("ptd_token_id", "pard_token")
"""Fields of a head's configuration that name the mask token of parallel drafting."""


@dataclass(frozen=True, slots=True)
class ConfigFacts:
    """An engine with speculation. A fact that is left out is the harmless one; `None`: not known.

    `version` of vLLM; `device`: `cuda` or `cpu`; `asks_async`: the user chose loop or scheduler; `k_max`: draft tokens
    per request at most; `head_kind`: the `model_type` that vLLM gives an MTP head, or the class of a DFlash head;
    `head_modules`: the number of an MTP head's modules; `mask_token`: the field that names the token of parallel
    drafting; `is_recurrent`: the target has layers such as GDN and Mamba; `sees_both_ways`: it attends to images in
    both directions; `graph_mode`: the `cudagraph_mode` by name; `attention`: attention backends that vLLM may choose,
    empty if it has not chosen yet; `is_moe`: the target is a mixture of experts; `has_ranks_elsewhere`: data-parallel
    ranks may run on other machines; `is_balanced_outside`: each of these ranks has a server of its own;
    `is_launched_outside`: each worker has a scheduler of its own.
    """

    method: str
    version: str = ""
    device: str | None = None
    is_v2: bool = False
    is_async: bool = False
    asks_async: bool = False
    k_max: int = 1
    is_parallel: bool = False
    is_adaptive: bool = False
    has_table: bool = False
    head_kind: str | None = None
    head_modules: int = 1
    head_uses_mla: bool = False
    head_is_windowed: bool = False
    head_length: int | None = None
    mask_token: str | None = None
    is_recurrent: bool = False
    uses_mla: bool = False
    is_multimodal: bool = False
    sees_both_ways: bool = False
    length: int | None = None
    takes_embeddings: bool = False
    graph_mode: str | None = None
    is_moe: bool = False
    data_parallel: int = 1
    has_ranks_elsewhere: bool = False
    is_balanced_outside: bool = False
    is_launched_outside: bool = False
    pipeline_parallel: int = 1
    context_parallel: int = 1
    has_connector: bool = False
    attention: tuple[str, ...] = ()

    @property
    def in_lockstep(self) -> bool:
        """Whether the engine is a data-parallel rank that makes every pass together with others."""
        return self.is_moe and self.data_parallel > 1


def of_engine(vllm_config: Any) -> ConfigFacts:
    """Return the facts of a configuration of vLLM's that has speculation."""
    speculative, model, parallel = (
        vllm_config.speculative_config,
        vllm_config.model_config,
        vllm_config.parallel_config,
    )
    head_model = getattr(speculative, "draft_model_config", None)
    head, is_mtp = getattr(head_model, "hf_config", None), speculative.method == "mtp"
    mode = getattr(getattr(vllm_config, "compilation_config", None), "cudagraph_mode", None)
    return ConfigFacts(
        method=speculative.method,
        version=vllm_version(),
        device=getattr(getattr(vllm_config, "device_config", None), "device_type", None),
        is_v2=vllm_config.use_v2_model_runner,
        is_async=bool(vllm_config.scheduler_config.async_scheduling),
        k_max=vllm_config.num_speculative_tokens,
        is_parallel=bool(getattr(speculative, "parallel_drafting", False)),
        is_adaptive=bool(getattr(speculative, "enable_adaptive_verification", False)),
        has_table=bool(speculative.num_speculative_tokens_per_batch_size),
        head_kind=_kind(speculative.method, head),
        head_modules=(getattr(head, "num_nextn_predict_layers", None) if is_mtp else None) or 1,
        head_uses_mla=uses_mla(head_model),
        head_is_windowed=head_model is not None and is_windowed(head_model),
        head_length=getattr(head_model, "max_model_len", None) or model.max_model_len,
        mask_token=next((name for name in MASK_TOKENS if getattr(head, name, None) is not None), None),
        is_recurrent=bool(getattr(model, "is_hybrid", False) or getattr(model, "has_inner_state", False)),
        uses_mla=uses_mla(model),
        is_multimodal=model.is_multimodal_model,
        sees_both_ways=bool(getattr(model, "is_mm_prefix_lm", False)),
        length=model.max_model_len,
        takes_embeddings=bool(model.enable_prompt_embeds),
        graph_mode=getattr(mode, "name", None),
        is_moe=bool(model.is_moe),
        data_parallel=data_parallel.size_of(vllm_config),
        has_ranks_elsewhere=data_parallel.has_ranks_elsewhere(parallel),
        is_balanced_outside=parallel.data_parallel_external_lb,
        is_launched_outside=data_parallel.is_launched_outside(parallel),
        pipeline_parallel=parallel.pipeline_parallel_size,
        context_parallel=max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size),
        has_connector=vllm_config.kv_transfer_config is not None,
    )


def _kind(method: str, head: Any) -> str | None:
    if has_block(method):
        return next(iter(getattr(head, "architectures", None) or ()), None)
    return getattr(head, "model_type", None) if method == "mtp" else None

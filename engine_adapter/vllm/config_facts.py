"""What of an engine's configuration decides whether the adapter can steer it, as plain values.

The rules (`compat`) read nothing else. At a start the facts come from vLLM's own configuration (`of_engine`), before
one from the models' `config.json` and vLLM's flags (`before_start`).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from specpilot.engine_adapter.vllm import data_parallel, model_facts
from specpilot.engine_adapter.vllm.versions import vllm_version


class Drafter(NamedTuple):
    """What the adapter knows of the drafters of one of vLLM's methods.

    `runners`: the model runners on which it steers them. `reads_states`: they read the target's hidden states, so these
    can be kept for them, and they can be left out of a step; others draft in every step, and the adapter only cuts K.
    `has_block`: at any K they draft a block of constant width (`block`).
    """

    runners: tuple[str, ...]
    reads_states: bool = True
    has_block: bool = False


DRAFTERS = {
    "eagle": Drafter(("V1", "V2")),
    "eagle3": Drafter(("V1", "V2")),
    "mtp": Drafter(("V1", "V2")),
    "dflash": Drafter(("V1", "V2"), has_block=True),
    "dspark": Drafter(("V2",), has_block=True),
    "ngram": Drafter(("V2",), reads_states=False),
    "draft_model": Drafter(("V2",), reads_states=False),
}
"""The methods that the adapter steers."""
STEERABLE_METHODS = tuple(method for method, drafter in DRAFTERS.items() if drafter.reads_states)
PLAIN_MTP = ("mimo_mtp", "glm4_moe_mtp", "ernie_mtp", "hy_v3_mtp")
"""Kinds of MTP heads (vLLM's `model_type`) that read one hidden state of the target, with attention like the target's,
so they can catch up. Heads of other kinds may read wider states, share the indices of sparse attention between passes,
or have recurrent layers."""

MTP_ON_RECURRENT = ("qwen3_next_mtp", "qwen3_5_mtp", "nemotron_h_mtp")
"""Kinds of MTP heads of targets with gated delta nets or Mamba2, which are exact at any K of each request. Other
recurrent layers were not examined."""

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

    @property
    def why_in_every_step(self) -> str | None:
        """Why the drafter must not have a backlog, so that it runs in every step; `None`: it can be left out.

        A KV connector stores and sends blocks at the end of the step that fills them, after the drafter has run.
        Positions that the drafter reads later would be missing in what it stored. With sliding-window attention, vLLM
        gives the blocks outside of the window to other requests, and late writes would go into these blocks. With MLA,
        rows that are read late count as a prompt, whose exact length the host needs; after rejected drafts the host has
        only a bound.
        """
        method, kind = self.method, self.head_kind
        reasons = (
            (method not in STEERABLE_METHODS, f"method {method!r} reads each token when it is there"),
            (self.has_connector, "a KV connector stores blocks as soon as they are full"),
            (self.in_lockstep, "data-parallel ranks of a mixture of experts make every pass together"),
            (has_block(method) and self.is_v2, "vLLM's block drafter does on model runner V2"),
            (
                self.head_uses_mla,
                "the drafter's attention is MLA, which treats the host's bound of a sequence's length as exact",
            ),
            (
                self.head_is_windowed,
                "the drafter's attention has a sliding window, outside of which blocks are given away",
            ),
            (
                method == "mtp" and kind not in PLAIN_MTP,
                f"catching up was not examined for MTP heads of the kind {kind!r}",
            ),
        )
        return next((reason for holds, reason in reasons if holds), None)


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


def has_block(method: str) -> bool:
    """Whether the drafters of a method draft a block of constant width."""
    return method in DRAFTERS and DRAFTERS[method].has_block


def uses_mla(model_config: Any) -> bool:
    """Return whether a model has multi-head latent attention."""
    return bool(getattr(model_config, "use_mla", False))


def is_windowed(model_config: Any) -> bool:
    """Return whether a model has a sliding window; a DFlash head states its own."""
    block_of = getattr(model_config.hf_text_config, "dflash_config", None)
    if block_of is not None:
        return model_facts.has_window(block_of, getattr(model_config.hf_text_config, "layer_types", None))
    is_used = getattr(model_config.hf_text_config, "use_sliding_window", True)
    return bool(is_used and model_config.get_sliding_window())

"""The configurations of engines that the adapter accepts.

A configuration that the adapter cannot steer is rejected with all reasons at once, each with its remedy: unsupported
drafters, vLLM's own table of K, pipeline and context parallelism, data parallelism over machines, KV connectors beside
recurrent layers, a synchronous scheduler in the asynchronous loop or the reverse.
`check_config` rejects it before the engine serves; `specpilot check` applies the same rules (`faults_of`) before a
start. An engine without speculation may carry the adapter in any configuration.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import config_facts
from specpilot.engine_adapter.vllm.config_facts import (
    DRAFTERS,
    MTP_ON_RECURRENT,
    PLAIN_MTP,
    STEERABLE_METHODS,
    ConfigFacts,
)
from specpilot.engine_adapter.vllm.versions import ACCEPTED_ON_V2, is_among

_EAGLE = ("eagle", "eagle3")
_VERIFIED_ADAPTIVELY = (*_EAGLE, "dspark")
"""Methods that ran under vLLM's adaptive verification."""

_DSPARK = "Qwen3DSparkModel"
_WITH_CANDIDATES = ("DFlash2DraftModel", "LiLiCorrDraftModel")
"""Classes of DFlash heads with a candidate head, which reads states of the last context beside the block."""

_LOSES_RECURRENT_STATE = ("0.29", "0.30", "0.31")
"""Versions of vLLM on which steps without drafts read a stale state of recurrent layers."""

_INEXACT_ATTENTION = frozenset(
    (
        "FLASHMLA",
        "FLASHMLA_SPARSE",
        "CUTLASS_MLA",
        "TRITON_MLA",
        "TOKENSPEED_MLA",
        "ROCM_AITER_MLA",
        "ROCM_AITER_TRITON_MLA",
    )
)
"""vLLM 0.32's attention backends that `attention_fault` rejects, for engines that have not loaded theirs."""


def check_config(vllm_config: Any, *, is_async_scheduler: bool) -> None:
    """Raise `UnsupportedEngineError` for an engine configuration whose K the adapter cannot steer."""
    if vllm_config.speculative_config is None:
        return
    facts = config_facts.of_engine(vllm_config)
    faults = faults_of(facts) + setting_faults(facts, AdapterSettings.read())
    faults += scheduler_faults(facts, is_async_scheduler=is_async_scheduler)
    if faults:
        raise UnsupportedEngineError("; ".join(faults))


def check_parallel(vllm_config: Any) -> None:
    """Raise `UnsupportedEngineError` for parallelism that the adapter cannot steer; for the server's process."""
    faults = [*parallel_faults(config_facts.of_engine(vllm_config))]
    if faults:
        raise UnsupportedEngineError("; ".join(faults))


def faults_of(facts: ConfigFacts) -> list[str]:
    """Return why the adapter cannot steer an engine, each reason with its remedy."""
    return [
        *drafter_faults(facts),
        *parallel_faults(facts),
        *recurrent_faults(facts),
        *head_faults(facts),
        *v2_faults(facts),
        *step_faults(facts),
    ]


def setting_faults(facts: ConfigFacts, settings: AdapterSettings) -> list[str]:
    """Return the adapter's own settings that name a K above K_max."""
    named = {"--graph-k": max(settings.graph_k or (), default=0), "--static-k": settings.static_k or 0}
    return [
        f"{flag} names K = {k} and K_max is {facts.k_max}: name none above it"
        for flag, k in named.items()
        if k > facts.k_max
    ]


def scheduler_faults(facts: ConfigFacts, *, is_async_scheduler: bool) -> list[str]:
    """Return a fault if the adapter's scheduler is not the one of vLLM's loop."""
    if is_async_scheduler == facts.is_async:
        return []
    right = "SpecPilotScheduler" if is_async_scheduler else "SpecPilotAsyncScheduler"
    loop = "synchronously" if is_async_scheduler else "asynchronously"
    return [f"vLLM schedules {loop} here: use --scheduler-cls specpilot.engine_adapter.vllm.scheduler.{right}"]


def drafter_faults(facts: ConfigFacts) -> Iterator[str]:
    """Yield why the adapter cannot steer a speculative configuration: its method, vLLM's own table of K."""
    runner, drafter = "V2" if facts.is_v2 else "V1", DRAFTERS.get(facts.method)
    if drafter is None:
        yield (
            f"the adapter steers {', '.join(DRAFTERS)} drafters, not method {facts.method!r}: start vLLM without the "
            "adapter for it"
        )
    elif runner not in drafter.runners:
        yield (
            f"the adapter steers method {facts.method!r} on model runner {drafter.runners[0]} alone: set "
            f"VLLM_USE_V2_MODEL_RUNNER={int(not facts.is_v2)}, or start vLLM without the adapter for it"
        )
    if facts.has_table:
        yield ("num_speculative_tokens_per_batch_size and the adapter both set K: remove it from --speculative-config")


def parallel_faults(facts: ConfigFacts) -> Iterator[str]:
    """Yield the configured kinds of parallelism that the adapter does not steer.

    It steers tensor parallelism, and data parallelism, whose ranks are engines of their own (`vllm.data_parallel`).
    """
    if facts.has_ranks_elsewhere:
        yield (
            "data-parallel ranks on other machines than their server are not steered: start a server on each machine "
            "(--data-parallel-hybrid-lb), with --data-parallel-backend mp"
        )
    if facts.is_launched_outside:
        yield (
            "workers of an external launcher each have a scheduler, and would choose different K for steps that they "
            "run together: leave --distributed-executor-backend unset"
        )
    if facts.pipeline_parallel > 1:
        yield "pipeline parallelism is not steered: use tensor parallelism, or one stage"
    if facts.context_parallel > 1:
        yield "context parallelism is not steered: use tensor parallelism alone"


def v2_faults(facts: ConfigFacts) -> Iterator[str]:
    """Yield why the adapter cannot steer this engine on model runner V2; none on V1."""
    if not facts.is_v2:
        return
    if not is_among(facts.version, ACCEPTED_ON_V2):
        yield (
            f"model runner V2 is steered on vLLM {', '.join(ACCEPTED_ON_V2)}, and this is {facts.version}: "
            "set VLLM_USE_V2_MODEL_RUNNER=0, or install one of these"
        )
    if facts.is_adaptive and facts.method not in _VERIFIED_ADAPTIVELY:
        yield (
            f"adaptive verification was run with {' and '.join(_VERIFIED_ADAPTIVELY)} drafters, not with method "
            f"{facts.method!r}: remove enable_adaptive_verification from --speculative-config"
        )
    if facts.in_lockstep and facts.is_parallel and facts.method in _EAGLE:
        yield (
            "P-EAGLE on model runner V2 is not steered for data-parallel ranks of a mixture of experts: set "
            "VLLM_USE_V2_MODEL_RUNNER=0"
        )
    if facts.in_lockstep and facts.method == "draft_model":
        yield (
            "on data-parallel ranks of a mixture of experts vLLM ends the engine at the first draft of a draft model, "
            "whose steps are larger than the target's: choose another method"
        )
    if facts.is_multimodal and facts.is_parallel and facts.method in _EAGLE:
        yield (
            "P-EAGLE on model runner V2 reads no images, and this model is multimodal: set VLLM_USE_V2_MODEL_RUNNER=0"
        )


def recurrent_faults(facts: ConfigFacts) -> Iterator[str]:
    """Yield why the text of a model with recurrent layers (GDN, Mamba) could change.

    vLLM keeps K_max + 1 states of such a layer, one for each token of a draft. Which of them a KV connector stores
    while K changes was not examined.

    A verifying step leaves such a layer's state in the slot of the last accepted token. Before 0.32 the next step reads
    the first slot if it verifies no drafts (`zero_draft_decode_mask` in vLLM 0.32's `gpu_model_runner`), which is stale
    if drafts were accepted. vLLM alone verifies drafts in every step; the adapter does not. On a CPU the convolution of
    such a layer takes a constant number of drafts, and ends an engine that verifies fewer than it accepted before.
    """
    if facts.is_recurrent and facts.has_connector:
        yield (
            "whether a KV connector stores the right state of recurrent layers (GDN, Mamba) while K changes was not "
            "examined: remove --kv-transfer-config and --kv-offloading-size, or start vLLM without the adapter"
        )
    if facts.is_recurrent and facts.device == "cpu":
        yield (
            "vLLM's recurrent layers (GDN, Mamba) take one number of drafts on a CPU, and another K would end the "
            "engine: start without speculation or without the adapter"
        )
    elif facts.is_recurrent and is_among(facts.version, _LOSES_RECURRENT_STATE):
        yield (
            f"on vLLM {facts.version} a model with recurrent layers (GDN, Mamba) loses their state in steps without "
            "drafts, and its text would be wrong: install vLLM 0.32, or start without speculation or without the "
            "adapter"
        )


def head_faults(facts: ConfigFacts) -> Iterator[str]:
    """Yield why the adapter cannot steer a head of this kind."""
    if facts.mask_token is not None and facts.method in STEERABLE_METHODS and not facts.is_parallel:
        yield (
            f"the head's configuration names a mask token ({facts.mask_token}), so it drafts in parallel; one token at "
            'a time most of its drafts are rejected: add "parallel_drafting": true to --speculative-config'
        )
    if facts.method == "mtp" and facts.head_kind is not None:
        yield from _mtp_faults(facts, facts.head_kind)
    if facts.method == "dspark" and facts.head_kind != _DSPARK:
        yield (
            f"a DSpark head of the class {facts.head_kind} was not examined, only {_DSPARK}: start vLLM without the "
            "adapter"
        )
    if facts.method == "dflash" and facts.head_kind in _WITH_CANDIDATES:
        yield (
            f"a DFlash head with candidates ({facts.head_kind}) was not examined: name a head of the class "
            "DFlashDraftModel, or start vLLM without the adapter"
        )
    elif facts.method == "dflash" and facts.head_is_windowed and not facts.is_v2:
        yield (
            "a DFlash head with a sliding window was not examined on model runner V1, and vLLM runs some of them on V2 "
            "alone: set VLLM_USE_V2_MODEL_RUNNER=1, or start vLLM without the adapter"
        )


def _mtp_faults(facts: ConfigFacts, kind: str) -> Iterator[str]:
    """Yield the same of an MTP head: those of one module that drafts one token after the other are steered."""
    if kind == "gemma4_mtp":
        yield "a Gemma 4 MTP head reads the target's own KV cache and was not examined: start without the adapter"
    elif min(facts.head_modules, facts.k_max) > 1:
        yield (
            f"this MTP head has {facts.head_modules} modules, one for each draft token, and the adapter steers heads "
            "of one: set num_speculative_tokens to 1, or start vLLM without the adapter"
        )
    elif facts.is_recurrent and kind not in MTP_ON_RECURRENT:
        yield (
            f"whether the recurrent layers of a target with an MTP head of the kind {kind} are exact while K changes "
            f"was not examined (they are with {', '.join(MTP_ON_RECURRENT)}): start vLLM without the adapter"
        )
    elif not facts.is_v2 and kind not in PLAIN_MTP:
        yield (
            f"on model runner V1 the adapter steers MTP heads of the kinds {', '.join(PLAIN_MTP)}, not {kind}: set "
            "VLLM_USE_V2_MODEL_RUNNER=1 (vLLM 0.32), or start vLLM without the adapter"
        )


def step_faults(facts: ConfigFacts) -> Iterator[str]:
    """Yield why a step of this engine would end it, or read its tokens wrongly.

    With `cudagraph_mode=FULL` vLLM replays one graph for prompts and decodes, with the arguments of its capture. MLA
    attention reads prompts with another kernel than decodes, and the host sets where the prompts begin. For models that
    attend to images in both directions, attention also gets the places of the images. Backends that still declare FULL
    graphs for any batch (FLASHINFER_MLA, FlashAttention) would read such a prompt wrongly, also without the adapter.
    """
    if facts.graph_mode == "FULL" and (facts.uses_mla or facts.sees_both_ways):
        by_kernel = "MLA attention reads prompts and decodes by different kernels"
        yield (
            f"{by_kernel if facts.uses_mla else 'this model attends to images in both directions'}, and "
            "cudagraph_mode=FULL replays one graph for both: leave cudagraph_mode unset (FULL_AND_PIECEWISE), or set "
            "FULL_DECODE_ONLY"
        )
    inexact = inexact_attention(facts)
    if inexact and facts.asks_async:
        yield _inexact_fault(inexact)
    if facts.takes_embeddings:
        yield "a prompt of embeddings ends an engine that drafts after it: remove --enable-prompt-embeds"


def attention_fault(attention_backends: Iterable[Iterable[Any]], *, is_async: bool) -> str | None:
    """Return a fault for attention backends that cannot read decodes of different lengths exactly; `None`: all can.

    Most MLA backends treat a decode with drafts, or of another length than the other decodes, as a prompt. For a prompt
    they take the length of the context from the host's bound of the sequence's length. Asynchronous scheduling
    (`is_async`) runs before the rejected drafts are known, so the bound is too large, and the text would be wrong. With
    synchronous scheduling the bound is exact.
    """
    inexact = {
        backend.get_name()
        for group in attention_backends
        for backend in group
        if is_async and not _reads_any_lengths(backend.get_builder_cls())
    }
    return _inexact_fault(inexact) if inexact else None


def inexact_attention(facts: ConfigFacts) -> list[str]:
    """Return the attention backends that an engine may have, and that are inexact as it is scheduled."""
    return sorted(_INEXACT_ATTENTION.intersection(facts.attention)) if facts.is_async else []


def synchronous_note(backends: str) -> str:
    """Return what an engine with these attention backends does less of, if the adapter chooses the loop."""
    return (
        f"with attention backend {backends} steps are scheduled synchronously, because it reads decodes of different "
        "lengths exactly only so: --attention-backend FLASH_ATTN_MLA or FLASHINFER_MLA, where the GPU has it, needs "
        "no such step"
    )


def _inexact_fault(inexact: Iterable[str]) -> str:
    return (
        f"attention backend {', '.join(sorted(inexact))} reads decodes with different numbers of drafts from a bound "
        "of their length, which asynchronous scheduling makes too long: choose one that does not (--attention-backend "
        "FLASH_ATTN_MLA or FLASHINFER_MLA, where the GPU has it), schedule synchronously (--no-async-scheduling), or "
        "start vLLM without the adapter"
    )


def _reads_any_lengths(builder: Any) -> bool:
    """Whether attention with this metadata `builder` treats decodes of any length as decodes."""
    support = getattr(builder, "query_len_support", None)
    return (support is None or support.name == "VARLEN") and not getattr(builder, "require_uniform_decodes", False)


def needs_one_length(builder: Any) -> bool:
    """Whether attention with this metadata `builder` treats decodes as decodes only if all have one length."""
    support = getattr(builder, "query_len_support", None)
    return (support is not None and support.name == "UNIFORM") or getattr(builder, "require_uniform_decodes", False)

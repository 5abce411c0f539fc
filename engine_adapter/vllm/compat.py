"""The configurations of engines that the adapter accepts.

A configuration that the adapter cannot steer is rejected before the engine serves, with all reasons at once, each with
its remedy: unsupported drafters, vLLM's own table of K, data, pipeline and context parallelism, a synchronous scheduler
in the asynchronous loop or the reverse. An engine without speculation may carry the adapter in any configuration.
"""

import logging
from collections.abc import Iterable
from typing import Any

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm.engine_facts import IN_STEP_ON_V2, PLAIN_MTP, STEERABLE_METHODS
from specpilot.engine_adapter.vllm.versions import TESTED_ON_V2, is_tested, vllm_version

_MASK_TOKENS = ("ptd_token_id", "pard_token")
"""Fields of a head's configuration that name the mask token of parallel drafting."""

_VERIFIED_ADAPTIVELY = ("eagle", "eagle3")
"""Methods that ran under vLLM's adaptive verification."""

_LOSES_RECURRENT_STATE = ("0.29", "0.30", "0.31")
"""Versions of vLLM on which steps without drafts read a stale state of recurrent layers."""

logger = logging.getLogger("vllm.specpilot")


def check_config(vllm_config: Any, *, is_async_scheduler: bool) -> None:
    """Raise `UnsupportedEngineError` for an engine configuration whose K the adapter cannot steer."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return
    parallel = vllm_config.parallel_config
    # For a dense model vLLM reports a size of 1 to every rank. All ranks except the first see their index, and end the
    # start.
    ranks = max(parallel.data_parallel_size, parallel.data_parallel_index + 1)
    faults = [
        *drafter_faults(
            speculative.method,
            has_table=bool(speculative.num_speculative_tokens_per_batch_size),
            is_v2=vllm_config.use_v2_model_runner,
        ),
        *parallel_faults(
            ranks,
            parallel.pipeline_parallel_size,
            max(parallel.decode_context_parallel_size, parallel.prefill_context_parallel_size),
        ),
        *transfer_faults(vllm_config.model_config, has_connector=vllm_config.kv_transfer_config is not None),
    ]
    faults += filter(None, [head_fault(speculative), mtp_fault(vllm_config), full_graph_fault(vllm_config)])
    device = getattr(getattr(vllm_config, "device_config", None), "device_type", None)
    faults += recurrent_faults(vllm_version(), vllm_config.model_config, device)
    deepest = max(AdapterSettings().graph_k or (), default=0)
    if deepest and deepest > vllm_config.num_speculative_tokens:
        faults.append(
            f"--graph-k names K = {deepest} and K_max is {vllm_config.num_speculative_tokens}: leave out larger ones"
        )
    if vllm_config.model_config.enable_prompt_embeds:
        faults.append("a prompt of embeddings ends an engine that drafts after it: remove --enable-prompt-embeds")
    if vllm_config.use_v2_model_runner:
        faults += v2_faults(vllm_version(), speculative, is_multimodal=vllm_config.model_config.is_multimodal_model)
    if is_async_scheduler != bool(vllm_config.scheduler_config.async_scheduling):
        right = "SpecPilotScheduler" if is_async_scheduler else "SpecPilotAsyncScheduler"
        loop = "synchronously" if is_async_scheduler else "asynchronously"
        faults.append(
            f"vLLM schedules {loop} here: use --scheduler-cls specpilot.engine_adapter.vllm.scheduler.{right}"
        )
    if faults:
        raise UnsupportedEngineError("; ".join(faults))


def drafter_faults(method: str, *, has_table: bool, is_v2: bool = False) -> list[str]:
    """Return why the adapter cannot steer a speculative configuration: its `method`, vLLM's own table of K.

    `is_v2`: the engine runs model runner V2.
    """
    faults = []
    if method in IN_STEP_ON_V2 and not is_v2:
        faults.append(
            f"the adapter steers method {method!r} on model runner V2 alone: set VLLM_USE_V2_MODEL_RUNNER=1, "
            "or start vLLM without the adapter for it"
        )
    elif method not in STEERABLE_METHODS and method not in IN_STEP_ON_V2:
        faults.append(
            f"the adapter steers {', '.join(STEERABLE_METHODS)} drafters, and on model runner V2 "
            f"{' and '.join(IN_STEP_ON_V2)}, not method {method!r}: start vLLM without the adapter for it"
        )
    if has_table:
        faults.append(
            "num_speculative_tokens_per_batch_size and the adapter both set K: remove it from --speculative-config"
        )
    return faults


def parallel_faults(data_parallel: int, pipeline_parallel: int, context_parallel: int) -> list[str]:
    """Return the configured kinds of parallelism that the adapter does not steer; it steers tensor parallelism."""
    faults = []
    if data_parallel > 1:
        faults.append("data parallelism inside one engine is not steered: start one engine per rank behind the gateway")
    if pipeline_parallel > 1:
        faults.append("pipeline parallelism is not steered: use tensor parallelism, or one stage")
    if context_parallel > 1:
        faults.append("context parallelism is not steered: use tensor parallelism alone")
    return faults


def v2_faults(version: str, speculative: Any, *, is_multimodal: bool) -> list[str]:
    """Return why the adapter cannot steer an engine on model runner V2 of vLLM `version`."""
    faults = []
    if not is_tested(version, TESTED_ON_V2):
        faults.append(
            f"model runner V2 is steered on vLLM {', '.join(TESTED_ON_V2)}, and this is {version}: "
            "set VLLM_USE_V2_MODEL_RUNNER=0, or install one of these"
        )
    if getattr(speculative, "enable_adaptive_verification", False) and speculative.method not in _VERIFIED_ADAPTIVELY:
        faults.append(
            f"adaptive verification was run with {' and '.join(_VERIFIED_ADAPTIVELY)} drafters, not with method "
            f"{speculative.method!r}: remove enable_adaptive_verification from --speculative-config"
        )
    if is_multimodal and getattr(speculative, "parallel_drafting", False):
        faults.append(
            "P-EAGLE on model runner V2 reads no images, and this model is multimodal: set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    return faults


def recurrent_faults(version: str, model: Any, device: str | None = None) -> list[str]:
    """Return why K = 0 would change the text of a model with recurrent layers (GDN, Mamba) on vLLM `version`.

    A verifying step leaves such a layer's state in the slot of the last accepted token. Before 0.32 the next step reads
    the first slot if it verifies no drafts (`zero_draft_decode_mask` in vLLM 0.32's `gpu_model_runner`), which is stale
    if drafts were accepted. vLLM alone verifies drafts in every step; the adapter does not. On a CPU the convolution of
    such a layer takes a constant number of drafts, and ends an engine that verifies fewer than it accepted before.
    """
    is_recurrent = getattr(model, "is_hybrid", False) or getattr(model, "has_inner_state", False)
    if is_recurrent and device == "cpu":
        fault = (
            "vLLM's recurrent layers (GDN, Mamba) take one number of drafts on a CPU, and another K would end the "
            "engine: start without speculation or without the adapter"
        )
        return [fault]
    if not is_recurrent or not is_tested(version, _LOSES_RECURRENT_STATE):
        return []
    fault = (
        f"on vLLM {version} a model with recurrent layers (GDN, Mamba) loses their state in steps without drafts, and "
        "its text would be wrong: install vLLM 0.32, or start without speculation or without the adapter"
    )
    return [fault]


def head_fault(speculative: Any) -> str | None:
    """Return a fault if an EAGLE head trained to draft in parallel would draft one token at a time."""
    head = getattr(getattr(speculative, "draft_model_config", None), "hf_config", None)
    named = next((name for name in _MASK_TOKENS if getattr(head, name, None) is not None), None)
    if named is None or speculative.method not in STEERABLE_METHODS or speculative.parallel_drafting:
        return None
    return (
        f"the head's configuration names a mask token ({named}), so it drafts in parallel; one token at a time most of "
        'its drafts are rejected: add "parallel_drafting": true to --speculative-config'
    )


def mtp_fault(vllm_config: Any) -> str | None:
    """Return why the adapter cannot steer an MTP head; `None` if it can, or if the drafter is of another method.

    It steers heads of one module that drafts one token after the other, as an EAGLE head does.
    """
    speculative, model = vllm_config.speculative_config, vllm_config.model_config
    if speculative.method != "mtp":
        return None
    head, k_max = speculative.draft_model_config.hf_config, vllm_config.num_speculative_tokens
    kind, modules = head.model_type, getattr(head, "num_nextn_predict_layers", None) or 1
    if kind == "gemma4_mtp":
        return "a Gemma 4 MTP head reads the target's own KV cache and was not examined: start without the adapter"
    if min(modules, k_max) > 1:
        return (
            f"this MTP head has {modules} modules, one for each draft token, and the adapter steers heads of one: set "
            "num_speculative_tokens to 1, or start vLLM without the adapter"
        )
    if getattr(model, "is_hybrid", False) or getattr(model, "has_inner_state", False):
        return (
            "this model has recurrent layers (GDN, Mamba), and steps of different K have no FULL CUDA graph with them, "
            "so its MTP head may cost more than it gains: start vLLM without the adapter"
        )
    if not vllm_config.use_v2_model_runner and kind not in PLAIN_MTP:
        return (
            f"on model runner V1 the adapter steers MTP heads of the kinds {', '.join(PLAIN_MTP)}, not {kind}: set "
            "VLLM_USE_V2_MODEL_RUNNER=1 (vLLM 0.32), or start vLLM without the adapter"
        )
    return None


def full_graph_fault(vllm_config: Any) -> str | None:
    """Return why `cudagraph_mode=FULL` would read prompts wrongly on this model; `None` if it reads them correctly.

    In that mode vLLM replays one graph for prompts and decodes, with the arguments of its capture. MLA attention reads
    prompts with another kernel than decodes, and the host sets where the prompts begin. For models that attend to
    images in both directions, attention also gets the places of the images. Backends that still declare FULL graphs for
    any batch (FLASHINFER_MLA, FlashAttention) would read such a prompt wrongly, also without the adapter.
    """
    mode = getattr(getattr(vllm_config, "compilation_config", None), "cudagraph_mode", None)
    model = vllm_config.model_config
    if getattr(mode, "name", "") != "FULL":
        return None
    if getattr(model, "use_mla", False):
        read = "MLA attention reads prompts and decodes by different kernels"
    elif getattr(model, "is_mm_prefix_lm", False):
        read = "this model attends to images in both directions"
    else:
        return None
    return (
        f"{read}, and cudagraph_mode=FULL replays one graph for both: leave cudagraph_mode unset (FULL_AND_PIECEWISE), "
        "or set FULL_DECODE_ONLY"
    )


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
    if not inexact:
        return None
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


def transfer_faults(model: Any, *, has_connector: bool) -> list[str]:
    """Return a fault for a KV connector beside recurrent layers.

    vLLM keeps K_max + 1 states of such a layer, one for each token of a draft. Which of them a connector stores while K
    changes was not examined.
    """
    if not has_connector or not (getattr(model, "is_hybrid", False) or getattr(model, "has_inner_state", False)):
        return []
    fault = (
        "whether a KV connector stores the right state of recurrent layers (GDN, Mamba) while K changes was not "
        "examined: remove --kv-transfer-config and --kv-offloading-size, or start vLLM without the adapter"
    )
    return [fault]

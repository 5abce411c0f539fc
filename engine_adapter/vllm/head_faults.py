"""Why vLLM itself would not start, or not serve, with a draft head: from both models' `config.json`. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from specpilot.engine_adapter.vllm import model_facts, model_lengths, serve_flags
from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from specpilot.engine_adapter.vllm.model_facts import Config

_EAGLE = ("eagle", "eagle3")
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Fields of a head's configuration in which vLLM finds the mask token (`_init_parallel_drafting_params`)."""
_CLASS_OF = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}
"""What vLLM puts before the class of a head of each method (`transformers_utils/configs/eagle.py`)."""
_EAGLE_OF_MTP = {"eagle": ("deepseek_mtp",), "eagle3": ()}
"""Kinds of models that are MTP heads by themselves, of which vLLM makes EAGLE heads too (its registry of models)."""


def of_head(method: str, head: Config, target: Config, *, is_parallel: bool) -> Iterator[str]:
    """Yield the faults of a head of `method`; none of methods that have no head of this kind."""
    if is_parallel and method in (*_EAGLE, "draft_model") and all(head.get(name) is None for name in _MASKS):
        yield (
            "vLLM drafts in parallel with a head whose config.json names a mask token (ptd_token_id or pard_token), "
            "and this one names none: remove parallel_drafting from --speculative-config, or name a P-EAGLE head"
        )
    if method == "draft_model":
        yield from _vocabulary_faults(head, target)
    if method not in (*_EAGLE, "dflash", "dspark"):
        return
    mtp = model_facts.mtp_head(head) if method in _EAGLE else None
    if mtp is not None and mtp.kind not in _EAGLE_OF_MTP[method]:
        yield (
            f"vLLM takes this head ({model_facts.architecture(head)}) for an MTP head, not for one of method "
            f'{method!r}: set "method": "mtp" in --speculative-config, or name an EAGLE head'
        )
    text, width = model_facts.text_of(head), model_facts.text_of(target).get("hidden_size")
    reads = text.get("target_hidden_size") or text.get("hidden_size")
    if mtp is None and width is not None and reads is not None and width != reads:
        yield (
            f"the head reads hidden states of {reads} numbers, and the target's have {width}: name a head of this "
            "target"
        )


def assumed(method: str, head: Config, target: Config, lists_model: Callable[[str], bool | None]) -> Iterator[str]:
    """Yield what is assumed of a head, given its file as published: its tokens, and its class.

    vLLM compares the vocabularies of draft models alone. It pads embeddings, so one tokenizer may have two sizes.
    """
    of_head, of_target = (model_facts.text_of(config).get("vocab_size") for config in (head, target))
    is_head = method in (*_EAGLE, "dflash", "dspark") and None not in (of_head, of_target)
    if is_head and of_head != of_target:
        yield f"that one tokenizer fits both: the head has {of_head} tokens and the target {of_target}"
    yield from _unlisted(method, head, lists_model)


def _unlisted(method: str, head: Config, lists_model: Callable[[str], bool | None]) -> Iterator[str]:
    """Yield what is assumed of a head whose class vLLM does not list.

    Heads in the format of `speculators` get their class from that format, and MTP heads from their kind.
    """
    name, prefix = model_facts.architecture(head), _CLASS_OF.get(method)
    if prefix is None or not name or "speculators_config" in head or model_facts.mtp_head(head) is not None:
        return
    has_it = name.startswith(prefix) or (method != "eagle" and name.endswith(prefix)) or name == "LiLiCorrDraftModel"
    name = name if has_it else prefix + name
    if lists_model(name) is False:
        yield f"that a plugin brings the head's class {name}, which vLLM does not list"


def of_fields(facts: ConfigFacts, speculative: Mapping[str, Any], *, tensor_parallel: int) -> Iterator[str]:
    """Yield the faults of fields that vLLM takes only beside others (`SpeculativeConfig._verify_args`, V1's drafters).

    V1 drafts in parallel with padded batches alone.
    """
    drafts_on = speculative.get("draft_tensor_parallel_size")
    if speculative.get("tensor_parallel_size") is not None:
        yield "vLLM has no tensor_parallel_size in --speculative-config: name it draft_tensor_parallel_size"
    if drafts_on not in (None, 1, tensor_parallel):
        yield (
            f"draft_tensor_parallel_size is {drafts_on}, and vLLM takes 1 or that of the target, {tensor_parallel}: "
            "remove it from --speculative-config"
        )
    has_slots = facts.is_parallel and (facts.k_max > 1 or facts.method == "dflash")
    if speculative.get("disable_padded_drafter_batch") and has_slots and not facts.is_v2:
        yield (
            "on model runner V1 vLLM drafts in parallel with padded batches alone: remove disable_padded_drafter_batch "
            "from --speculative-config"
        )
    if speculative.get("use_heterogeneous_vocab") and facts.method != "draft_model":
        yield "vLLM takes use_heterogeneous_vocab for draft models alone: remove it from --speculative-config"


def of_length(facts: ConfigFacts, speculative: Mapping[str, Any], head: Config, *, allows_long: bool) -> Iterator[str]:
    """Yield a fault if the head is stated to read more than it, or its target, can.

    `_maybe_override_draft_max_model_len` compares with the target's own, and it has no variable that allows more.
    """
    stated = serve_flags.whole(speculative, "max_model_len", 0)
    reads = None if allows_long else model_lengths.length(head)
    least = min((length for length in (reads, facts.length) if length is not None), default=stated)
    if stated > least:
        yield (
            f"max_model_len in --speculative-config is {stated}, and head or target read {least} tokens: state no more"
        )


def of_adaptive(facts: ConfigFacts, *, has_lora: bool, is_eager: bool) -> Iterator[str]:
    """Yield why vLLM would not verify adaptively (`_validate_adaptive_verification`)."""
    remedy = "remove enable_adaptive_verification from --speculative-config"
    if not facts.is_v2:
        yield f"vLLM verifies adaptively on model runner V2 alone, and this engine runs V1: {remedy}"
    if has_lora:
        yield f"vLLM does not verify adaptively beside LoRA: {remedy}, or --enable-lora"
    if is_eager or facts.graph_mode in ("NONE", "PIECEWISE"):
        yield f"vLLM verifies adaptively with FULL CUDA graphs alone: {remedy}, or the flag that excludes them"


def _vocabulary_faults(head: Config, target: Config) -> Iterator[str]:
    """Yield a fault if a draft model has another vocabulary; one with `use_heterogeneous_vocab` is not steered."""
    sizes = [model_facts.text_of(config).get("vocab_size") for config in (head, target)]
    if None not in sizes and sizes[0] != sizes[1]:
        yield (
            f"the draft model has {sizes[0]} tokens and the target {sizes[1]}: name a draft model with the target's "
            "vocabulary"
        )

"""Why vLLM itself would not start, or not serve, with what the flags and both models' `config.json` state. Pure."""

from collections.abc import Iterator

from specpilot.engine_adapter.head_config import MTP
from specpilot.engine_adapter.vllm import model_facts, model_lengths, serve_flags
from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from specpilot.engine_adapter.vllm.serve_flags import Flags
from specpilot.engine_adapter.vllm.stated_engine import StatedEngine, named

_EAGLE = ("eagle", "eagle3")
WITH_STATES = (*_EAGLE, "dflash", "dspark")
"""Methods with a head of its own files that reads the target's hidden states."""
_MASKS = ("mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
"""Fields of a head's configuration in which vLLM finds the mask token (`_init_parallel_drafting_params`)."""
_EAGLE_OF_MTP = {"eagle": ("deepseek_mtp",), "eagle3": ()}
"""Kinds of models that are MTP heads by themselves, of which vLLM makes EAGLE heads too (its registry of models)."""
_BALANCED_OUTSIDE = ("data-parallel-external-lb", "data-parallel-rank", "data-parallel-multi-port-external-lb")
"""Flags with which each data-parallel rank has a server of its own."""
_FIELD = "from --speculative-config"


def faults(engine: StatedEngine, facts: ConfigFacts) -> Iterator[str]:
    """Yield each reason with its remedy."""
    yield from _of_mtp(engine, facts)
    yield from _of_adaptive(engine, facts)
    yield from _of_flags(engine, facts)
    yield from _of_head(engine)
    yield from _of_fields(engine, facts)
    yield from _of_lengths(engine, facts)


def _of_mtp(engine: StatedEngine, facts: ConfigFacts) -> Iterator[str]:
    mtp, remedy = engine.mtp, "leave out --speculative-config, or name another method"
    if engine.method == MTP and mtp is None:
        yield f"vLLM 0.32 makes no MTP head of this {engine.head.get('model_type')!r} model: {remedy}"
    elif mtp and mtp.tokens == 0:
        yield f"this model's config.json says that it has no MTP layer (0 or null): {remedy}"
    elif mtp and mtp.tokens and facts.k_max > mtp.tokens and facts.k_max % mtp.tokens:
        field = named(engine.flags, "num_speculative_tokens")
        yield f"vLLM takes a multiple of {mtp.tokens} for this head: set {field} to {mtp.tokens}"


def _of_adaptive(engine: StatedEngine, facts: ConfigFacts) -> Iterator[str]:
    """Yield why vLLM would not verify adaptively (`_validate_adaptive_verification`)."""
    if not facts.is_adaptive:
        return
    remedy = f"remove enable_adaptive_verification {_FIELD}"
    if not facts.is_v2:
        yield f"vLLM verifies adaptively on model runner V2 alone, and this engine runs V1: {remedy}"
    if engine.flags.get("enable-lora"):
        yield f"vLLM does not verify adaptively beside LoRA: {remedy}, or --enable-lora"
    if engine.flags.get("enforce-eager") or facts.graph_mode in ("NONE", "PIECEWISE"):
        yield f"vLLM verifies adaptively with FULL CUDA graphs alone: {remedy}, or the flag that excludes them"


def balanced_outside(flags: Flags) -> list[str]:
    """Return the flags with which each data-parallel rank has a server of its own."""
    return [flag for flag in _BALANCED_OUTSIDE if flag in flags]


def _of_flags(engine: StatedEngine, facts: ConfigFacts) -> Iterator[str]:
    external = balanced_outside(engine.flags)
    if external and facts.data_parallel > 1 and not facts.is_moe:
        yield (
            f"vLLM takes --{external[0]} for a mixture of experts alone: start a server without --data-parallel flags "
            "for each rank"
        )
    reason = engine.why_synchronous(is_v2=facts.is_v2)
    if reason is not None and engine.flags.get("async-scheduling"):
        yield f"vLLM does not schedule {reason} asynchronously: remove --async-scheduling"


def _of_head(engine: StatedEngine) -> Iterator[str]:
    method, head = engine.method, engine.head
    of_head, of_target = model_facts.text_of(head), model_facts.text_of(engine.target)
    names_no_mask = all(head.get(name) is None for name in _MASKS)
    if engine.is_parallel and method in (*_EAGLE, "draft_model") and names_no_mask:
        yield (
            "vLLM drafts in parallel with a head whose config.json names a mask token (ptd_token_id or pard_token), "
            f"and this one names none: remove parallel_drafting {_FIELD}, or name a P-EAGLE head"
        )
    sizes = [text.get("vocab_size") for text in (of_head, of_target)]
    if method == "draft_model" and None not in sizes and sizes[0] != sizes[1]:
        yield (  # one with `use_heterogeneous_vocab` is not steered
            f"the draft model has {sizes[0]} tokens and the target {sizes[1]}: name a draft model with the target's "
            "vocabulary"
        )
    if method not in WITH_STATES:
        return
    mtp = model_facts.mtp_head(head) if method in _EAGLE else None
    if mtp is not None and mtp.kind not in _EAGLE_OF_MTP[method]:
        yield (
            f"vLLM takes this head ({model_facts.architecture(head)}) for an MTP head, not for one of method "
            f'{method!r}: set "method": "mtp" in --speculative-config, or name an EAGLE head'
        )
    reads, width = of_head.get("target_hidden_size") or of_head.get("hidden_size"), of_target.get("hidden_size")
    if mtp is None and None not in (reads, width) and width != reads:
        yield (
            f"the head reads hidden states of {reads} numbers, and the target's have {width}: name a head of this "
            "target"
        )


def _of_fields(engine: StatedEngine, facts: ConfigFacts) -> Iterator[str]:
    """Yield the faults of fields that vLLM takes only beside others (`SpeculativeConfig._verify_args`, V1's drafters).

    V1 drafts in parallel with padded batches alone.
    """
    speculative, tensor_parallel = engine.speculative, engine.tensor_parallel
    drafts_on = speculative.get("draft_tensor_parallel_size")
    if speculative.get("tensor_parallel_size") is not None:
        yield "vLLM has no tensor_parallel_size in --speculative-config: name it draft_tensor_parallel_size"
    if drafts_on not in (None, 1, tensor_parallel):
        yield (
            f"draft_tensor_parallel_size is {drafts_on}, and vLLM takes 1 or that of the target, {tensor_parallel}: "
            f"remove it {_FIELD}"
        )
    has_slots = facts.is_parallel and (facts.k_max > 1 or facts.method == "dflash")
    if speculative.get("disable_padded_drafter_batch") and has_slots and not facts.is_v2:
        yield (
            "on model runner V1 vLLM drafts in parallel with padded batches alone: remove disable_padded_drafter_batch "
            f"{_FIELD}"
        )
    if speculative.get("use_heterogeneous_vocab") and facts.method != "draft_model":
        yield f"vLLM takes use_heterogeneous_vocab for draft models alone: remove it {_FIELD}"


def _of_lengths(engine: StatedEngine, facts: ConfigFacts) -> Iterator[str]:
    """Yield a fault if head or engine are stated to read longer sequences than they can.

    The head's length is compared with the target's own too, without a variable that allows more
    (`_maybe_override_draft_max_model_len`), the engine's with the model's (`_get_and_verify_max_len`).
    """
    stated = serve_flags.whole(engine.speculative, "max_model_len", 0)
    reads = None if engine.machine.allows_long else model_lengths.length(engine.head)
    least = min((length for length in (reads, facts.length) if length is not None), default=stated)
    if stated > least:
        yield (
            f"max_model_len in --speculative-config is {stated}, and head or target read {least} tokens: state no more"
        )
    length = model_lengths.length(engine.target)
    longest = max(length or 0, engine.target.get("model_max_length") or 0)
    is_too_long = length is not None and facts.length is not None and facts.length > longest
    if is_too_long and not engine.machine.allows_long:
        yield (
            f"--max-model-len is {facts.length}, and this model's config.json says that it reads {longest} tokens: "
            "state no more, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        )

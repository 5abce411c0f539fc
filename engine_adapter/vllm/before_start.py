"""The facts of an engine before its start: from the models' `config.json` and vLLM's flags. Pure.

vLLM completes a configuration in its own order, partly by the machine. What it would decide later is taken as the
tested versions decide it, and listed as assumed.
"""

from collections.abc import Iterator
from typing import Any

from specpilot.engine_adapter.vllm import attention_choice, model_facts, model_lengths, serve_flags, vllm_faults
from specpilot.engine_adapter.vllm.config_facts import MASK_TOKENS, ConfigFacts
from specpilot.engine_adapter.vllm.serve_flags import Flags
from specpilot.engine_adapter.vllm.stated_engine import BLOCK_METHODS, ON_V1_ALONE, StatedEngine

_FULL_GRAPHS = (
    "an attention backend with FULL CUDA graphs for any mix of K (FlashAttention 3, Triton); FlashInfer, vLLM's choice "
    "on Blackwell GPUs, and FlashAttention 2 have them for one K at a time"
)


def facts_of(engine: StatedEngine) -> ConfigFacts:
    """Return the facts of an engine as vLLM would make them (`config_facts.of_engine`)."""
    method, speculative, target, head = engine.method, engine.speculative, engine.target, engine.head
    flags, machine, mtp = engine.flags, engine.machine, engine.mtp
    is_v2, parallel = _is_v2(engine), parallel_facts(flags)
    may_be_async = engine.why_synchronous(is_v2=is_v2) is None and (parallel["pipeline_parallel"] == 1 or is_v2)
    is_async = bool(flags.get("async-scheduling", may_be_async))
    mode = serve_flags.config(flags, "compilation-config").get("cudagraph_mode")
    length = serve_flags.whole(flags, "max-model-len", -1) if flags.get("max-model-len") != "auto" else -1
    longest = length if length > 0 else model_lengths.usual_length(target)
    stated = serve_flags.whole(speculative, "max_model_len", 0, "--speculative-config: max_model_len")
    lengths = [length for length in (stated or model_lengths.usual_length(head), longest) if length]
    backends = attention_choice.backends(target, speculative, flags) if machine.device == "cuda" else {}
    kind = mtp.kind if mtp else None
    return ConfigFacts(
        method,
        version=machine.version,
        device=machine.device,
        is_v2=is_v2,
        is_async=is_async and machine.device == "cuda",
        asks_async="async-scheduling" in flags or "scheduler-cls" in flags,
        k_max=engine.k_max,
        is_parallel=engine.is_parallel,
        is_adaptive=bool(speculative.get("enable_adaptive_verification")),
        has_table=bool(speculative.get("num_speculative_tokens_per_batch_size")),
        head_kind=model_facts.block_class(head) if method in BLOCK_METHODS else kind,
        head_modules=mtp.modules if mtp else 1,
        head_uses_mla=model_facts.uses_mla(head, kind=kind, is_eagle=method in ("eagle", "eagle3", "dflash")),
        head_is_windowed=model_facts.is_windowed(head),
        head_length=min(lengths, default=None),
        mask_token=next((name for name in MASK_TOKENS if head.get(name) is not None), None),
        is_recurrent=model_facts.is_recurrent(target),
        uses_mla=model_facts.uses_mla(target),
        is_multimodal=model_facts.is_multimodal(target),
        sees_both_ways=model_facts.sees_both_ways(target),
        length=longest,
        takes_embeddings=bool(flags.get("enable-prompt-embeds")),
        graph_mode=str(mode).upper() if mode is not None else None,
        is_moe=model_facts.is_moe(target),
        has_connector="kv-transfer-config" in flags or "kv-offloading-size" in flags,
        attention=tuple(backends.values()),
        **parallel,
    )


def _is_v2(engine: StatedEngine) -> bool:
    """Whether the engine runs model runner V2: as the variable says, else as vLLM chooses."""
    machine, method = engine.machine, engine.method
    if machine.runner_v2 is not None:
        return machine.runner_v2
    may_be_v2 = machine.is_accepted_on_v2 and machine.device == "cuda" and not engine.flags.get("enable-dbo")
    is_p_eagle = engine.is_parallel and method not in BLOCK_METHODS
    heterogeneous = engine.speculative.get("use_heterogeneous_vocab")
    return may_be_v2 and method not in ON_V1_ALONE and not is_p_eagle and not heterogeneous


def parallel_facts(flags: Flags) -> dict[str, Any]:
    """Return the facts about parallelism (`ConfigFacts`), as vLLM makes its configuration of the flags."""
    data, pipeline, tensor, decode_context, prefill_context = (
        serve_flags.whole(flags, f"{kind}-parallel-size", 1)
        for kind in ("data", "pipeline", "tensor", "decode-context", "prefill-context")
    )
    machines = max(1, serve_flags.whole(flags, "nnodes", 1))
    local = serve_flags.whole(flags, "data-parallel-size-local", max(1, data // machines))
    is_hybrid = "data-parallel-hybrid-lb" in flags
    is_hybrid = is_hybrid or ("data-parallel-start-rank" in flags and "headless" not in flags)
    is_outside = bool(vllm_faults.balanced_outside(flags)) or (is_hybrid and local == 1)
    is_elsewhere = not (is_hybrid or is_outside) and local < data
    is_elsewhere = is_elsewhere or flags.get("data-parallel-backend") == "ray"
    is_launched = flags.get("distributed-executor-backend") == "external_launcher"
    return {
        "data_parallel": data,
        "pipeline_parallel": pipeline,
        "context_parallel": max(decode_context, prefill_context),
        "has_ranks_elsewhere": data > 1 and is_elsewhere,
        "is_balanced_outside": is_outside,
        "is_launched_outside": is_launched and data * pipeline * tensor * prefill_context > 1,
    }


def assumed(engine: StatedEngine, facts: ConfigFacts) -> Iterator[str]:
    """Yield what vLLM decides only when it starts, as the facts take it."""
    machine, target, flags = engine.machine, engine.target, engine.flags
    if machine.runner_v2 is None:
        yield f"model runner {'V2' if facts.is_v2 else 'V1'} (VLLM_USE_V2_MODEL_RUNNER is not set)"
    architecture = model_facts.architecture(target)
    unknown = "vLLM does not list this class of models" if architecture else "it names no architectures"
    if not architecture or machine.lists_model(architecture) is False:
        yield (
            f"what config.json states of {architecture or target['model_type']}: {unknown}, so whether it has "
            "recurrent layers, MLA or an MTP head is not known"
        )
    if facts.data_parallel > 1 and not facts.is_moe:
        yield "a dense model: its config.json states no number of experts"
    if facts.is_async and "async-scheduling" not in flags:
        yield "asynchronous scheduling, vLLM's default on GPUs"
    backends = attention_choice.backends(target, {}, flags)
    by_gpu = {gpu: name for gpu, name in backends.items() if not gpu.startswith("--")}
    if facts.device == "cuda" and by_gpu:
        names = ", ".join(f"{name} on {gpu} GPUs" for gpu, name in by_gpu.items())
        yield f"attention backend {names}; on others vLLM takes one that the start may refuse"
    elif facts.device == "cuda" and not backends:
        yield _FULL_GRAPHS
    yield from _assumed_of_head(engine)


_CLASS_OF = {"eagle": "Eagle", "eagle3": "Eagle3", "dflash": "DFlash"}
"""What vLLM puts before the class of a head of each method (`transformers_utils/configs/eagle.py`)."""


def _assumed_of_head(engine: StatedEngine) -> Iterator[str]:
    """Yield what is assumed of a head: its tokens, and that vLLM has its class.

    vLLM compares the vocabularies of draft models alone. It pads embeddings, so one tokenizer may have two sizes. Heads
    in the format of `speculators` get their class from that format, and MTP heads from their kind.
    """
    head, prefix = engine.published, _CLASS_OF.get(engine.method)
    sizes = [model_facts.text_of(config).get("vocab_size") for config in (head, engine.target)]
    if engine.method in vllm_faults.WITH_STATES and None not in sizes and sizes[0] != sizes[1]:
        yield f"that one tokenizer fits both: the head has {sizes[0]} tokens and the target {sizes[1]}"
    name = model_facts.architecture(head)
    if prefix is None or not name or "speculators_config" in head or model_facts.mtp_head(head) is not None:
        return
    has_it = name.startswith(prefix) or (engine.method != "eagle" and name.endswith(prefix))
    name = name if has_it or name == "LiLiCorrDraftModel" else prefix + name
    if engine.machine.lists_model(name) is False:
        yield f"that a plugin brings the head's class {name}, which vLLM does not list"

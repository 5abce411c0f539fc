"""An engine as vLLM's flags and the models' files state it, before a start. Pure.

The head and the method are those that vLLM takes them for (`SpeculativeConfig.__post_init__`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.head_config import MTP
from specpilot.engine_adapter.vllm import model_facts, serve_flags
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
BLOCK_METHODS = ("dflash", "dspark")
ON_V1_ALONE = ("suffix", "medusa", "mlp_speculator", "custom_class")
_SYNCHRONOUS = ("ngram", *ON_V1_ALONE)
"""Methods that vLLM does not schedule asynchronously by itself."""
_SUFFIX_K = 24


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


@dataclass(frozen=True, slots=True)
class StatedEngine:
    """`target` and `head` as vLLM reads them, `published` the head's file; without a head of its own the target's."""

    target: Config
    method: str
    published: Config
    speculative: Mapping[str, Any]
    flags: Flags
    machine: Machine

    @property
    def head(self) -> Config:
        """The head's configuration as vLLM reads it."""
        return model_facts.as_vllm_reads(self.published)

    @property
    def mtp(self) -> MtpHead | None:
        """The MTP head that vLLM makes of it; `None` for another method, and if vLLM makes none."""
        return model_facts.mtp_head(self.head) if self.method == MTP else None

    @property
    def is_parallel(self) -> bool:
        """Whether the drafter drafts all tokens in one pass."""
        return bool(self.speculative.get("parallel_drafting")) or self.method in BLOCK_METHODS

    @property
    def tensor_parallel(self) -> int:
        """The number of tensor-parallel workers."""
        return serve_flags.whole(self.flags, "tensor-parallel-size", 1)

    @property
    def k_max(self) -> int:
        """The draft tokens per request: the user's, or the head's own."""
        default, field = None, named(self.flags, _K)
        if self.speculative.get("model") is not None:  # vLLM reads a head's own number only if the head is named
            of_block = self.head.get("block_size") if self.method == "dspark" else None
            default = (self.mtp.tokens or None) if self.mtp else of_block
        default = _SUFFIX_K if self.method == "suffix" else default
        if default is None and self.speculative.get(_K) is None:
            raise InvalidSettingsError([f"{field} is missing: add it, for instance 3"])
        k_max = serve_flags.whole(self.speculative, _K, default or 0, field)
        if k_max < 1:
            raise InvalidSettingsError([f"{field} is {k_max}; it must be above 0"])
        return k_max

    def why_synchronous(self, *, is_v2: bool) -> str | None:
        """Return what of the drafter vLLM does not schedule asynchronously; `None`: nothing, as on V2 from 0.33 on."""
        if is_v2 and not self.machine.version.startswith("0.32."):
            return None
        if self.method in _SYNCHRONOUS:
            return f"method {self.method!r}"
        return "disable_padded_drafter_batch" if self.speculative.get("disable_padded_drafter_batch") else None


def of_flags(name: str, read: Callable[[str], Config], flags: Flags, machine: Machine) -> StatedEngine | None:
    """Return the engine of the model `name`, `None` without speculation; `read` returns a model's `config.json`.

    Raises `InvalidSettingsError` for what cannot be understood.
    """
    if "config" in flags:
        raise InvalidSettingsError(["--config: the file is not read: give its flags on the command line"])
    target, speculative = read(name), _speculative(flags)
    if isinstance(target.get("speculators_config"), Mapping):  # `vllm serve HEAD`: the head names its target
        speculative = _with_its_head(target, name, speculative, flags)
        target = read(target["speculators_config"]["verifier"]["name_or_path"])
    if not speculative:
        return None
    target = model_facts.overridden(model_facts.as_vllm_reads(target), serve_flags.config(flags, "hf-overrides"))
    if not model_facts.architecture(target) and not target.get("model_type"):
        fault = f"{name}: its config.json has neither architectures nor model_type: name a model that vLLM can serve"
        raise InvalidSettingsError([fault])
    head_name, method = _head_and_method(speculative, name, flags)
    # Overrides are of the target alone, also if the head is in its files.
    published = target if head_name is None else read(head_name)
    if method in SPECULATIVE_METHODS and head_name is not None and method not in _TAKEN:
        method = _by_head(method, head_name, model_facts.as_vllm_reads(published))
    return StatedEngine(target, method, published, speculative, flags, machine)


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


def named(flags: Flags, field: str) -> str:
    """Return the name of a field of the speculative configuration, in the form in which the flags state it."""
    return f"--{SHORT_FLAGS[field]}" if SHORT_FLAGS[field] in flags or _FLAG not in flags else f"--{_FLAG}: {field}"


def _head_and_method(speculative: Mapping[str, Any], target: str, flags: Flags) -> tuple[str | None, str]:
    """Return the name of the head, `None` if the method has none, and the method if the user names one."""
    model, method = speculative.get("model"), speculative.get("method")
    for field, value in (("model", model), ("method", method)):
        if value is not None and not isinstance(value, str):
            raise InvalidSettingsError([f"{named(flags, field)} is {value!r}; it must be text"])
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    method = MTP if method.endswith("_mtp") else method.strip("[]")
    serve_flags.check_method(method, named(flags, "method"))
    if method in _WITHOUT_HEAD:
        return None, method
    if model is None and method in _WITH_OWN_FILES:
        return target, method
    if model is None:
        fault = f"{named(flags, 'model')} is missing: name the draft head, or a method without one"
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

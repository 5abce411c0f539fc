"""Facts about a model from its `config.json`, as vLLM 0.33 reads them. Pure.

Each function names its origin in vLLM's source; the tests compare them with the installed vLLM.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Config = Mapping[str, Any]

RECURRENT = frozenset(
    (
        "AliceAIForCausalLM",
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "BailingMoeV3VLForConditionalGeneration",
        "FalconH1ForCausalLM",
        "FalconMambaForCausalLM",
        "Glm5NextForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GraniteMoeHybridForCausalLM",
        "InternS2MobiusForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "JambaForCausalLM",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "Lfm2ForCausalLM",
        "Lfm2MoeForCausalLM",
        "Lfm2VlForConditionalGeneration",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "MiniCPMOcrForConditionalGeneration",
        "MiniCPMV4_6ForConditionalGeneration",
        "MiniCPMV4_7ForConditionalGeneration",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "NemotronH_Super_Omni_Reasoning_V3",
        "OlmoHybridForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForCausalLM",
        "Qwen4ExpForConditionalGeneration",
        "Zamba2ForCausalLM",
    )
)
"""Generating models whose classes are `IsHybrid` or `HasInnerState` (`model_executor/models/registry.py`)."""

_RECURRENT_LAYERS = frozenset(("linear_attention", "mamba", "recurrent", "conv"))
"""Kinds of layers (`layer_types`) that mark a model of another class as recurrent too."""

_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
"""Fields with the number of experts (`ModelArchConfigConvertorBase.get_num_experts`)."""

_MLA = frozenset(
    (
        "axk1",
        "bailing_hybrid",
        "bailing_hybrid_mtp",
        "bailing_hybrid_v3_mtp",
        "deepseek_mtp",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "deepseek_v41",
        "dots3_note",
        "glm4_moe_lite",
        "glm4_moe_lite_mtp",
        "glm5_next",
        "glm5_next_text",
        "glm_moe_dsa",
        "hy_v4",
        "hy_v4_mtp",
        "k3_dspark",
        "kimi_k2",
        "kimi_linear",
        "longcat_flash",
        "pangu_ultra_moe",
        "pangu_ultra_moe_mtp",
    )
)
"""`model_type` of models with MLA (`is_deepseek_mla` in `transformers_utils/model_arch_config_convertor.py`)."""
_MLA_OF_EAGLE = frozenset(("axk1", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_mtp"))
"""The same for EAGLE heads."""

_SEES_BOTH_WAYS = frozenset(("bagel", "gemma3", "molmo2", "moondream3", "paligemma"))
"""`model_type` of models that attend to images in both directions (`is_mm_prefix_lm`, same file)."""

_MTP_BY_ARCHITECTURE = {
    "MiMoForCausalLM": "mimo_mtp",
    "MiMoV2ForCausalLM": "mimo_v2_mtp",
    "MiMoV2OmniForCausalLM": "mimo_v2_mtp",
    "MiMoV2FlashForCausalLM": "mimo_v2_mtp",
    "Glm4MoeForCausalLM": "glm4_moe_mtp",
    "Glm4MoeLiteForCausalLM": "glm4_moe_lite_mtp",
    "GlmOcrForConditionalGeneration": "glm_ocr_mtp",
    "BailingMoeV3ForCausalLM": "bailing_hybrid_v3_mtp",
    "BailingMoeV3VLForConditionalGeneration": "bailing_hybrid_v3_mtp",
    "BailingMoeV2_5ForCausalLM": "bailing_hybrid_mtp",
    "Step3p5ForCausalLM": "step3p5_mtp",
    "Step3p7ForConditionalGeneration": "step3p5_mtp",
    "Step5ForCausalLM": "step5_mtp",
    "Step5ForConditionalGeneration": "step5_mtp",
    "MiniMaxM3SparseForConditionalGeneration": "minimax_m3_mtp",
    "NemotronH_Super_Omni_Reasoning_V3": "nemotron_h_mtp",
    "NemotronH_Omni_Reasoning_V3": "nemotron_h_mtp",
}
_MTP_BY_TYPE = {
    "dots3_note": "dots3_note_mtp",
    "deepseek_v3": "deepseek_mtp",
    "deepseek_v32": "deepseek_mtp",
    "deepseek_v4": "deepseek_mtp",
    "glm_moe_dsa": "deepseek_mtp",
    "pangu_ultra_moe": "pangu_ultra_moe_mtp",
    "kimi_k3": "kimi_k3_mtp",
    "ernie4_5_moe": "ernie_mtp",
    "nemotron_h": "nemotron_h_mtp",
    "nemotron_h_puzzle": "nemotron_h_mtp",
    "qwen3_next": "qwen3_next_mtp",
    "qwen4_exp": "qwen4_exp_mtp",
    "qwen4_exp_text": "qwen4_exp_mtp",
    "bailing_hybrid": "bailing_hybrid_mtp",
    "exaone_moe": "exaone_moe_mtp",
    "exaone4_5": "exaone4_5_mtp",
    "qwen3_5": "qwen3_5_mtp",
    "qwen3_5_moe": "qwen3_5_mtp",
    "qwen3_5_text": "qwen3_5_mtp",
    "qwen3_5_moe_text": "qwen3_5_mtp",
    "intern_s2_preview": "qwen3_5_mtp",
    "interns2_mobius": "qwen3_5_mtp",
    "longcat_flash": "longcat_flash_mtp",
    "step3p5": "step3p5_mtp",
    "step3p7": "step3p5_mtp",
    "step5": "step5_mtp",
    "step5_vl": "step5_mtp",
    "hy_v3": "hy_v3_mtp",
    "hy_v4": "hy_v4_mtp",
    "inkling_mm_model": "inkling_mtp",
    "inkling_model": "inkling_mtp",
    "gemma4_assistant": "gemma4_mtp",
    "gemma4_unified_assistant": "gemma4_mtp",
    "minimax_m3_vl": "minimax_m3_mtp",
    "glm5_next": "glm5_next_mtp",
}
"""The kind of MTP head that vLLM makes of a model (`SpeculativeConfig.hf_config_override`)."""
_OF_TEXT = frozenset(
    ("step3p5_mtp", "step5_mtp", "minimax_m3_mtp", "inkling_mtp", "nemotron_h_mtp", "bailing_hybrid_v3_mtp")
)
"""Kinds whose fields vLLM takes from the text part of a model."""

_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "vision_config", "audio_config")
"""Parts of a model's configuration that are configurations of their own."""


class MtpHead(NamedTuple):
    """`kind`: vLLM's `model_type` of it. `modules` as `use_multi_module_mtp` counts.

    `tokens`: those it proposes; 0: the configuration says that there is no head, `None`: it says nothing.
    """

    kind: str
    modules: int
    tokens: int | None


def block_class(head: Config) -> str | None:
    """Return the class of a DFlash or DSpark head as vLLM names it (`SpeculativeConfig`); `None`: it states none."""
    name = architecture(head)
    is_plain = name == "DSparkDraftModel" and head.get("model_type") == "qwen3"
    return "Qwen3DSparkModel" if is_plain else name or None


def architecture(config: Config) -> str:
    """Return the name of the model's class; empty if the configuration names none."""
    return str((config.get("architectures") or [""])[0])


def text_of(config: Config) -> Config:
    """Return the part of a multimodal model's configuration that is about text; of others the whole."""
    thinker = config.get("thinker_config")
    for name in ("text_config", "llm_config", "language_config"):
        part = (thinker if isinstance(thinker, Mapping) else config).get(name)
        if isinstance(part, Mapping):
            return part
    return config


def is_recurrent(config: Config) -> bool:
    """Whether a model has layers such as GDN and Mamba (`ModelConfig.is_hybrid`, `has_inner_state`)."""
    kinds = [*(config.get("layer_types") or ()), *(text_of(config).get("layer_types") or ())]
    return architecture(config) in RECURRENT or not _RECURRENT_LAYERS.isdisjoint(kinds)


def is_moe(config: Config) -> bool:
    """Whether a model is a mixture of experts (`ModelConfig.is_moe`)."""
    text = text_of(config)
    parts = [text, *(text.get("block_configs") or ())]
    return any(part.get(name) for part in parts for name in _EXPERTS)


def is_multimodal(config: Config) -> bool:
    """Whether a model reads images or sound: its configuration has a part for them."""
    return any(name in config for name in ("vision_config", "audio_config", "thinker_config"))


def uses_mla(config: Config, *, kind: str | None = None, is_eagle: bool = False) -> bool:
    """Whether a model has MLA (`ModelConfig.use_mla`); `kind`: the `model_type` that vLLM gives an MTP head."""
    text = text_of(config)
    model_type = kind if kind is not None and text is config else text.get("model_type")
    if is_eagle:
        model_type = _MTP_BY_TYPE.get(str(model_type), model_type)
        return model_type in _MLA_OF_EAGLE and text.get("kv_lora_rank") is not None
    rank = text.get("head_dim") if "compress_ratios" in text else text.get("kv_lora_rank")
    return model_type in _MLA and rank is not None and bool(text.get("is_causal", True))


def sees_both_ways(config: Config) -> bool:
    """Whether a model attends to images in both directions (`ModelConfig.is_mm_prefix_lm`)."""
    return bool(config.get("is_mm_prefix_lm", config.get("model_type") in _SEES_BOTH_WAYS))


def is_windowed(config: Config) -> bool:
    """Whether a model has a sliding window; Qwen's classes switch theirs off unless the configuration says so."""
    text = text_of(config)
    if isinstance(text.get("dflash_config"), Mapping):
        return has_window(text["dflash_config"], text.get("layer_types"))
    used = text.get("use_sliding_window", not str(text.get("model_type")).startswith("qwen"))
    return bool(used and text.get("sliding_window"))


def has_window(dflash: Config, layer_types: Sequence[str] | None) -> bool:
    """Whether a DFlash head has a layer with a sliding window (`_resolve_layer_attention` in `qwen3_dflash.py`)."""
    return bool(dflash.get("use_swa")) or "sliding_attention" in (layer_types or ())


def overridden(config: Config, overrides: Config) -> dict[str, Any]:
    """Return a configuration with vLLM's `hf_overrides` (`ModelConfig._apply_dict_overrides`).

    What they state of a part that is a configuration of its own completes this part; anything else is replaced.
    """
    parts = {
        name: _completed(config[name], value)
        for name, value in overrides.items()
        if name in _PARTS and isinstance(value, Mapping) and isinstance(config.get(name), Mapping)
    }
    return {**config, **overrides, **parts}


def _completed(part: Config, changes: Config) -> dict[str, Any]:
    nested = {
        name: _completed(part[name], value)
        for name, value in changes.items()
        if isinstance(value, Mapping) and isinstance(part.get(name), Mapping)
    }
    return {**part, **changes, **nested}


def mtp_head(config: Config) -> MtpHead | None:
    """Return the MTP head that vLLM makes of a model, or of a head's own configuration; `None`: it makes none."""
    model_type = str(config.get("model_type"))
    kind = _MTP_BY_ARCHITECTURE.get(architecture(config)) or _MTP_BY_TYPE.get(model_type)
    if kind is None and model_type.endswith("_mtp"):
        kind = model_type
    if kind is None:
        return None
    text = text_of(config)
    part = text if kind in _OF_TEXT else config
    modules = _count("num_nextn_predict_layers", part)
    if kind == "nemotron_h_mtp" and not modules:
        return None
    if kind == "mimo_v2_mtp":
        modules = 1  # vLLM runs the first one alone
    if kind == "inkling_mtp":
        modules = _count("num_nextn_predict_layers", config.get("mtp_config") or {})
    stated = {"qwen3_5_mtp": "mtp_num_hidden_layers", "qwen4_exp_mtp": "mtp_num_hidden_layers"}
    stated |= {"minimax_m3_mtp": "num_mtp_modules"}
    tokens = modules
    if kind in stated:
        tokens = _count(stated[kind], part, text)
    elif kind in ("kimi_k3_mtp", "glm5_next_mtp"):
        tokens = _count("num_nextn_predict_layers", text)
    elif kind == "gemma4_mtp":
        tokens = 1
    return MtpHead(kind, modules or 1, tokens)


def _count(field: str, *parts: Config) -> int | None:
    """Return the number that the first part states; 0 if it is null there, `None` if no part has the field."""
    stated = [part[field] for part in parts if field in part]
    return next((value for value in stated if value is not None), 0 if stated else None)


def as_vllm_reads(config: Config) -> Config:
    """Return a file's configuration as vLLM reads it, if it is in the format of `speculators` or of Mistral."""
    layer = config.get("transformer_layer_config")
    if isinstance(layer, Mapping):
        return dict(layer) | _of_speculators(config)
    return _of_mistral(config) if "dim" in config and "architectures" not in config else config


def _of_speculators(config: Config) -> dict[str, Any]:
    """Return what vLLM adds to the configuration of such a head (`transformers_utils/configs/speculators/algos.py`)."""
    kind, mask_token, width = map(config.get, ("speculators_model_type", "mask_token_id", "target_hidden_size"))
    added: dict[str, Any] = {} if width is None else {"target_hidden_size": width}
    if kind == "peagle":
        return added | {"pard_token": mask_token}
    if kind == "dspark":
        is_omni = "Qwen3OmniDSparkModel" in (config.get("architectures") or ())
        return added | {"architectures": ["Qwen3OmniDSparkModel" if is_omni else "Qwen3DSparkModel"]}
    named = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel"}
    if kind in named:
        added |= {"architectures": [named[kind]], "dflash_config": {"mask_token_id": mask_token}}
    return added


def _of_mistral(params: Config) -> Config:
    """Return the configuration that vLLM makes of a `params.json` (`transformers_utils/configs/mistral.py`)."""
    experts = params.get("moe") or {}
    is_large = bool(params.get("qk_nope_head_dim") or experts.get("num_shared_experts"))
    text = dict(params) | {"model_type": "deepseek_v3" if is_large else "mistral"}
    plain = "MixtralForCausalLM" if experts else "MistralForCausalLM"
    text["architectures"] = ["MistralLarge3ForCausalLM" if is_large else plain]
    if (params.get("multimodal") or {}).get("vision_encoder_args") or params.get("vision_encoder"):
        names = {"model_type": "pixtral", "architectures": ["PixtralForConditionalGeneration"]}
        return {**names, "text_config": text, "vision_config": {}}
    return text

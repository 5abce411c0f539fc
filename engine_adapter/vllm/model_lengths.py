"""The longest sequence of a model from its `config.json`, as vLLM 0.33 reads it (`_get_and_verify_max_len`). Pure."""

from specpilot.engine_adapter.vllm.model_facts import Config, text_of

_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""Fields of which the smallest counts (`derive_max_model_len_and_key`), unless there is `model_max_length`."""
_SCALED_ALREADY = frozenset(
    (None, "default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
)
"""Kinds of RoPE scaling that the fields include."""
_LONG_ROPE = ("longrope", "su")
"""LongRoPE, by its present and by its former name."""


def length(config: Config) -> int | None:
    """Return the longest sequence that a model reads, in tokens; `None`: its configuration does not say."""
    text = text_of(config)
    stated = [text[name] for name in _FIELDS if isinstance(text.get(name), int)]
    longest = text.get("model_max_length") or min(stated, default=None)
    if not isinstance(longest, int):
        return None
    includes_scaling = any("gemma3" in str(part.get("model_type")) for part in (config, text))
    is_scaled = _rope_type(text) not in _SCALED_ALREADY and not includes_scaling
    return int(longest * ((_rope(text).get("factor") or 1) if is_scaled else 1))


def usual_length(config: Config) -> int | None:
    """Return the longest sequence if no flag states one: a LongRoPE model's is the one before its extension."""
    text = text_of(config)
    original = text.get("original_max_position_embeddings")
    return original if _rope_type(text) in _LONG_ROPE and isinstance(original, int) else length(config)


def _rope(text: Config) -> Config:
    return text.get("rope_parameters") or text.get("rope_scaling") or {}


def _rope_type(text: Config) -> str | None:
    scaling = _rope(text)
    kind: str | None = scaling.get("rope_type", scaling.get("type"))
    return kind

"""vLLM's flags, as `vllm serve` takes them, without vLLM. Pure.

A flag's name may have underscores for dashes, and may be cut short if the rest is clear. `--no-NAME` sets a switch to
`False`. A JSON flag may be given by fields (`--speculative-config.method mtp`), which replace the flag as a whole, as
in vLLM. Flags that nobody asks for are read over.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.engine_adapter.errors import InvalidSettingsError

Flags = dict[str, Any]
"""By name without dashes in front: the last text given, `True` for a flag without a value, a dict for fields."""

NAMES = frozenset(
    (
        "async-scheduling",
        "attention-backend",
        "attention-config",
        "compilation-config",
        "config",
        "data-parallel-backend",
        "data-parallel-external-lb",
        "data-parallel-hybrid-lb",
        "data-parallel-multi-port-external-lb",
        "data-parallel-rank",
        "data-parallel-size",
        "data-parallel-size-local",
        "data-parallel-start-rank",
        "decode-context-parallel-size",
        "enable-dbo",
        "enable-prompt-embeds",
        "hf-overrides",
        "kv-cache-dtype",
        "kv-offloading-size",
        "kv-transfer-config",
        "max-model-len",
        "no-async-scheduling",
        "pipeline-parallel-size",
        "prefill-context-parallel-size",
        "scheduler-cls",
        "spec-method",
        "spec-model",
        "spec-tokens",
        "speculative-config",
        "tensor-parallel-size",
    )
)
"""The flags that are asked for, whose names may be cut short."""

_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-dpb": "data-parallel-backend",
    "-dpe": "data-parallel-external-lb",
    "-dph": "data-parallel-hybrid-lb",
    "-dpl": "data-parallel-size-local",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-ep": "enable-expert-parallel",
    "-sc": "speculative-config",
    "-cc": "compilation-config",
    "-ac": "attention-config",
}
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def read(arguments: Sequence[str]) -> Flags:
    """Return the flags in `arguments`; raises `InvalidSettingsError` for a value without a flag."""
    flags: Flags = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not _is_flag(word):
            raise InvalidSettingsError([f"{word}: is no flag and belongs to none: name the model first, then flags"])
        name, mark, value = word.partition("=")
        name, dot, field = name.partition(".")
        name = _SHORT.get(name) or _whole_name(name.lstrip("-").replace("_", "-"))
        values: list[str] = [value] if mark else []
        while not mark and words and not _is_flag(words[0]):
            values.append(words.pop(0))
        last: Any = values[-1] if values else True
        if last is True and name.startswith("no-"):
            name, last = name.removeprefix("no-"), False
        if not dot:
            if not isinstance(flags.get(name), dict):
                flags[name] = last
            continue
        *path, leaf = [name, *field.removesuffix("+").split(".")]
        within = flags
        for key in path:
            if not isinstance(within.get(key), dict):
                within[key] = {}
            within = within[key]
        within[leaf] = _value(last)
    return flags


def config(flags: Flags, name: str) -> dict[str, Any]:
    """Return the flag `name` that holds JSON, with underscores in its fields; empty if it is absent."""
    value = flags.get(name, {})
    if not isinstance(value, dict):
        try:
            value = json.loads(value) if isinstance(value, str) else None
        except (json.JSONDecodeError, RecursionError) as error:
            raise InvalidSettingsError([f"--{name}: not JSON ({error})"]) from error
        if not isinstance(value, dict):
            raise InvalidSettingsError([f"--{name}: must be a JSON object"])
    return {str(field).replace("-", "_"): content for field, content in value.items()}


def whole(flags: Mapping[str, Any], name: str, default: int) -> int:
    """Return the flag, or the field of a flag that holds JSON, `name`: a whole number such as 8 or 32k."""
    value = str(flags.get(name, default))
    try:
        factor = _THOUSANDS.get(value[-1:])
        return int(float(value[:-1]) * factor) if factor else int(value)
    except (ValueError, OverflowError) as error:
        raise InvalidSettingsError([f"{name}: is {value}; it must be a whole number"]) from error


def _whole_name(name: str) -> str:
    """Return the flag whose name begins so, if it is the only one."""
    begun = [known for known in NAMES if known.startswith(name)]
    return begun[0] if len(begun) == 1 and name not in NAMES else name


def _is_flag(word: str) -> bool:
    """Whether a word begins a flag; a negative number is a value."""
    return word.startswith("-") and word[1:2] not in "0123456789." and word != "-"


def _value(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (json.JSONDecodeError, RecursionError):
        return text

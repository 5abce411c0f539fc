"""vLLM's flags, as `vllm serve` takes them, without vLLM. Pure.

A flag's name may have underscores for dashes, and may be cut short if the rest is clear. `--no-NAME` sets a switch to
`False`. A JSON flag may be given by fields (`--speculative-config.method mtp`), which replace the flag as a whole, as
in vLLM. Flags that nobody asks for are read over.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.vllm.serve_names import (
    KNOWN,
    LISTS,
    OPPOSITES,
    SPECULATIVE_FIELDS,
    SPECULATIVE_METHODS,
    SWITCHES,
)

Flags = dict[str, Any]
"""By name without dashes in front: the last text given, `True` for a flag without a value, a dict for fields."""

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
_NAMES = KNOWN | {f"no-{name}" for name in SWITCHES}
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def split_model(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the model, which is the first word that belongs to no flag, and the other words."""
    takes = 0.0
    for index, word in enumerate(arguments):
        if _is_flag(word):
            name = _full_name(word.partition("=")[0])
            is_switch = name in SWITCHES or name in OPPOSITES or (name.startswith("no-") and name not in KNOWN)
            takes = 0 if "=" in word or is_switch else float("inf") if name in LISTS else 1
        elif takes:
            takes -= 1
        else:
            return word, [*arguments[:index], *arguments[index + 1 :]]
    return None, list(arguments)


def unknown(flags: Iterable[str], also: Iterable[str] = ()) -> list[str]:
    """Return the names in `flags` that no tested vLLM has; `also` are known.

    Raises `InvalidSettingsError` for those that are misspelt: a plugin's or a newer vLLM's flag resembles none.
    """
    names = [name for name in flags if not any(known.startswith(name) for known in KNOWN)]
    misspelt = {name: get_close_matches(name, [*KNOWN, *also], 1, 0.8) for name in names}
    faults = [
        f"--{name}: there is no such flag; did you mean --{close[0]}?" for name, close in misspelt.items() if close
    ]
    if faults:
        raise InvalidSettingsError(faults)
    return names


def check_fields(speculative: Iterable[str]) -> None:
    """Raise `InvalidSettingsError` for fields of `--speculative-config` that no tested vLLM has."""
    faults = []
    for field in speculative:
        if field not in SPECULATIVE_FIELDS:
            close = get_close_matches(field, SPECULATIVE_FIELDS, 1)
            remedy = f"did you mean {close[0]}?" if close else "remove it"
            faults.append(f"--speculative-config: {field}: vLLM has no such field; {remedy}")
    if faults:
        raise InvalidSettingsError(faults)


def check_method(method: str, name: str) -> None:
    """Raise `InvalidSettingsError` for a misspelt method, which the flag or field `name` states.

    A newer vLLM's method resembles none.
    """
    if method in SPECULATIVE_METHODS:
        return
    if method.replace("-", "").replace("_", "").lower() == "peagle":
        remedy = '"method": "eagle3" and "parallel_drafting": true stand for P-EAGLE'
    elif close := get_close_matches(method.lower(), SPECULATIVE_METHODS, 1):
        remedy = f"did you mean {close[0]}?"
    else:
        return
    raise InvalidSettingsError([f"{name}: {method}: vLLM has no such method; {remedy}"])


def read(arguments: Sequence[str]) -> Flags:
    """Return the flags in `arguments`; raises `InvalidSettingsError` for a value without a flag."""
    flags: Flags = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not _is_flag(word):
            raise InvalidSettingsError([f"{word}: is no flag and belongs to none: name one model, and flags"])
        name, mark, value = word.partition("=")
        name, dot, field = name.partition(".")
        name = _full_name(name)
        values: list[str] = [value] if mark else []
        while not mark and words and not _is_flag(words[0]):
            values.append(words.pop(0))
        last: Any = values[-1] if values else True
        if last is True and name.startswith("no-"):
            name, last = name.removeprefix("no-"), False
        elif last is True and name in OPPOSITES:
            name, last = OPPOSITES[name], False
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


def whole(flags: Mapping[str, Any], name: str, default: int, label: str = "") -> int:
    """Return the flag `name`, or the field of a flag that holds JSON, called `label`: a whole number such as 32k."""
    value = str(flags.get(name, default))
    try:
        factor = _THOUSANDS.get(value[-1:])
        return int(float(value[:-1]) * factor) if factor else int(value)
    except (ValueError, OverflowError) as error:
        raise InvalidSettingsError([f"{label or '--' + name}: is {value}; it must be a whole number"]) from error


def _full_name(flag: str) -> str:
    name = flag.partition(".")[0]
    return _SHORT.get(name) or _whole_name(name.lstrip("-").replace("_", "-"))


def _whole_name(name: str) -> str:
    """Return the flag whose name begins so, if it is the only one."""
    begun = [known for known in _NAMES if known.startswith(name)]
    return begun[0] if len(begun) == 1 else name


def _is_flag(word: str) -> bool:
    """Whether a word begins a flag; a negative number is a value."""
    return word.startswith("-") and word[1:2] not in "0123456789." and word != "-"


def _value(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (json.JSONDecodeError, RecursionError):
        return text

"""Names of models, classes, pools and engines: the valid ones, bounds that all parts share, and faults of documents."""

import re
from collections.abc import Mapping
from typing import Any

PoolKey = tuple[str, str]
"""A model, and one of its pools."""

STRICT: Mapping[str, Any] = {"extra": "forbid"}
"""The `__pydantic_config__` of documents that people write: an unknown field is a fault (`policy.codec`)."""

DEFAULT_CLASS = "default"
"""The traffic class of a request that no rule matches, and of a request whose class is unknown to an engine."""

OTHER = "other"
"""The label value for every unknown model or class; it bounds cardinality."""

CLASS_LIMIT = 16
"""Traffic classes of one model at most, `default` included."""

K_LIMIT = 64
"""Upper bound on K, above that of any present drafter. It bounds memory and catches typing errors."""

_NAME = re.compile(r"[!-~]{1,256}")
_MODEL_NAME_CHARS = 256
_CLASS_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def is_class_name(name: str) -> bool:
    """Whether `name` may name a traffic class: lower case, at most 32 characters."""
    return _CLASS_NAME.fullmatch(name) is not None


def is_name(name: str) -> bool:
    """Whether `name` may name a pool or an engine: 1 to 256 printable ASCII characters, no space."""
    return _NAME.fullmatch(name) is not None


def is_model_name(name: str) -> bool:
    """Whether `name` may name a model: 1 to 256 printable characters of any script, no space at its ends."""
    return 1 <= len(name) <= _MODEL_NAME_CHARS and name.isprintable() and name.strip() == name


def model_name_faults(label: str, name: str) -> list[str]:
    """Return why `name` cannot name a model."""
    fault = f"{label} {name!r} must be 1 to {_MODEL_NAME_CHARS} printable characters without a space at its ends"
    return [] if is_model_name(name) else [fault]


def class_name_faults(label: str, name: str) -> list[str]:
    """Return why `name` cannot name a traffic class."""
    return [] if is_class_name(name) else [f"{label} is not a class name (lower case, at most 32 characters)"]


def name_faults(**names: str) -> list[str]:
    """Return the faults of those `names`, by label, that cannot name a pool or an engine."""
    return [
        f"{label} {name!r} must be 1 to 256 printable ASCII characters without a space"
        for label, name in names.items()
        if not is_name(name)
    ]


def range_faults(low: float, high: float, **values: float | None) -> list[str]:
    """Return the faults of those `values`, by label, that are not between `low` and `high`; `None` is left out."""
    return [
        f"{label} is {value}; it must be between {low} and {high}"
        for label, value in values.items()
        if value is not None and not low <= value <= high
    ]


def raise_faults(faults: list[str]) -> None:
    """Raise `ValueError` with all `faults`, if there are any."""
    if faults:
        raise ValueError("; ".join(faults))

"""Names of models, classes, pools and engines, K, and the bounds that all parts share.

The types here check the fields of documents (`pydantic.dataclasses`), whether a person or a program makes one.
"""

import re
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator, ConfigDict, Field

PoolKey = tuple[str, str]
"""A model, and one of its pools."""

STRICT: Final = ConfigDict(extra="forbid", allow_inf_nan=False)
"""The configuration of documents: an unknown field is a fault where a person writes one (`policy.codec`)."""

DEFAULT_CLASS = "default"
"""The traffic class of a request that no rule matches, and of a request whose class is unknown to an engine."""

OTHER = "other"
"""The label value for every unknown model or class; it bounds cardinality."""

CLASS_LIMIT = 16
"""Traffic classes of one model at most, `default` included."""

K_LIMIT = 64
"""Upper bound on K, above that of any present drafter. It bounds memory and catches typing errors."""

K = Annotated[int, Field(ge=0, le=K_LIMIT)]
"""Draft tokens verified per request per step."""

_NAME = re.compile(r"[!-~]{1,256}")
_MODEL_NAME_CHARS = 256
_CLASS_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def is_class_name(name: str) -> bool:
    """Whether `name` may name a traffic class: lower case, at most 32 characters."""
    return _CLASS_NAME.fullmatch(name) is not None


def is_model_name(name: str) -> bool:
    """Whether `name` may name a model: 1 to 256 printable characters of any script, no space at its ends."""
    return 1 <= len(name) <= _MODEL_NAME_CHARS and name.isprintable() and name.strip() == name


def _checked(is_good: Callable[[str], bool], rule: str) -> AfterValidator:
    def check(name: str) -> str:
        if not is_good(name):
            raise ValueError(f"{name!r} {rule}")
        return name

    return AfterValidator(check)


MODEL_NAME_RULE = f"must be 1 to {_MODEL_NAME_CHARS} printable characters without a space at its ends"
ModelName = Annotated[str, _checked(is_model_name, MODEL_NAME_RULE)]
ClassName = Annotated[
    str,
    _checked(is_class_name, "must be a lower-case class name of at most 32 characters, such as code"),
    Field(json_schema_extra={"pattern": f"^{_CLASS_NAME.pattern}$"}),
]
Name = Annotated[
    str,
    _checked(lambda name: bool(_NAME.fullmatch(name)), "must be 1 to 256 printable ASCII characters without a space"),
]
"""The name of a pool or an engine."""


def raise_faults(faults: list[str]) -> None:
    """Raise `ValueError` with all `faults`, if there are any."""
    if faults:
        raise ValueError("; ".join(faults))

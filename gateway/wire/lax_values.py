"""Reads booleans and whole numbers of a body as vLLM does: by pydantic, in its lax mode. Pure.

The gateway must find the same meaning in a field as the engine that gets the client's own bytes.
"""

from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

_BOOL: Final = TypeAdapter(bool)
_INT: Final = TypeAdapter(int)
_NUMBER_CHARS: Final = 64
"""Characters of a number. No limit has as many, and a longer text takes long to convert."""


def read_bool(value: Any) -> bool | None:
    """Return the boolean `value`, where null or an absent field is false; `None` if it is no boolean."""
    if value is None or type(value) is bool:
        return value is True
    try:
        return _BOOL.validate_python(value)
    except ValidationError:
        return None


def read_int(value: Any) -> int | None:
    """Return the whole number `value`; `None` if it is none, null or absent."""
    if type(value) is int:
        return value
    if value is None or (type(value) is str and len(value) > _NUMBER_CHARS):
        return None
    try:
        return _INT.validate_python(value)
    except ValidationError:
        return None

"""Reads booleans and whole numbers of a body as vLLM does: by the rules of pydantic's lax mode. Pure.

The gateway must find the same meaning in a field as the engine that gets the client's own bytes.
"""

import re
from typing import Any, Final

_TRUE: Final = frozenset(("true", "t", "yes", "y", "on", "1"))
_FALSE: Final = frozenset(("false", "f", "no", "n", "off", "0"))
_NUMBER: Final = re.compile(r"[^\S\x1c-\x1f]*([+-]?[0-9]+(?:_[0-9]+)*)(?:\.0+)?[^\S\x1c-\x1f]*")
_NUMBER_CHARS: Final = 64
"""Characters of a number. No limit has as many, and a longer text takes long to convert."""


def read_bool(value: Any) -> bool | None:
    """Return the boolean `value`, where null or an absent field is false; `None` if it is no boolean."""
    if value is None or value is False:
        return False
    if value is True:
        return True
    if type(value) is str:
        word = value.lower()
        return True if word in _TRUE else False if word in _FALSE else None
    if type(value) is int or type(value) is float:
        return True if value == 1 else False if value == 0 else None
    return None


def read_int(value: Any) -> int | None:
    """Return the whole number `value`; `None` if it is none, null or absent."""
    if type(value) is int:
        return value
    if type(value) is float:
        return int(value) if value.is_integer() else None
    if type(value) is str:
        number = _NUMBER.fullmatch(value) if len(value) <= _NUMBER_CHARS else None
        return None if number is None else int(number[1])
    return int(value) if type(value) is bool else None

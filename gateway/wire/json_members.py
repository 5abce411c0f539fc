"""Finds the members of an object in JSON text. Pure.

Only for text that a JSON parser has accepted: the search finds the structure and validates nothing. It builds no
objects besides the names of the members, so it takes no memory of the text's size.
"""

import re
from collections.abc import Iterator
from typing import Final

import orjson

from specpilot.gateway.wire.body_fields import PRIORITY, STREAM_OPTIONS
from specpilot.gateway.wire.errors import BodyTooComplexError

WALKED_MEMBERS: Final = 512
"""Members of one object that are walked to find one of them, 3 us each. OpenAI's largest request has some 40."""

WALKED_STRINGS: Final = 60_000
"""Strings of a large body that such a walk may skip. The other bounds allow 25,000 members, of two strings each."""

WALKED: Final = f"with `{STREAM_OPTIONS}`, `{PRIORITY}` or a model to set"
"""The bodies that are walked; the beginning of the error for one with too much to walk."""

# Possessive: a pattern that can backtrack stores a hundred bytes for every escape that it passes.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]*")
_SCALAR: Final = re.compile(rb"[^,\]}\s]+")
_NOT_BRACKET: Final = re.compile(rb'[^"{}\[\]]*+(?:' + _STRING.pattern + rb'[^"{}\[\]]*+)*+', re.DOTALL)


def members_of(body: bytes, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of value of each member of the object that begins at `start`.

    Raises `BodyTooComplexError` at the member after `WALKED_MEMBERS`.
    """
    position = _skip(body, start + 1)
    count = 0
    while body[position] != ord("}"):
        count += 1
        if count > WALKED_MEMBERS:
            message = f"{WALKED} at most {WALKED_MEMBERS} members of an object can be read; send fewer"
            raise BodyTooComplexError(message)
        name = _STRING.match(body, position)
        assert name is not None
        key: str = orjson.loads(name[0])
        begin = _skip(body, _skip(body, name.end()) + 1)  # past the colon
        end = _value_end(body, begin)
        yield key, begin, end
        position = _skip(body, end)
        if body[position] == ord(","):
            position = _skip(body, position + 1)


def _value_end(body: bytes, position: int) -> int:
    """Return the offset after the value that begins at `position`, by its brackets outside strings."""
    first = body[position]
    if first not in b"{[":
        scalar = (_STRING if first == ord('"') else _SCALAR).match(body, position)
        assert scalar is not None
        return scalar.end()
    depth = 1
    position += 1
    while depth:
        char = body[position]
        if char in b"{[":
            depth += 1
            position += 1
        elif char in b"}]":
            depth -= 1
            position += 1
        else:
            other = _NOT_BRACKET.match(body, position)
            assert other is not None
            position = other.end()
    return position


def _skip(body: bytes, position: int) -> int:
    space = _SPACE.match(body, position)
    assert space is not None
    return space.end()

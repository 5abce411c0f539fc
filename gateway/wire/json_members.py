"""Finds the members of an object in JSON text. Pure.

Only for text that a JSON parser has accepted. Python's decoder says where a value ends. It reads the text as Latin-1,
in which a character is a byte, so its offsets are those of the body. A name beyond ASCII is garbled, and equals none in
ASCII.
"""

import json
import re
from collections.abc import Iterator
from typing import Final

from specpilot.gateway.wire.body_fields import PRIORITY, STREAM_OPTIONS
from specpilot.gateway.wire.errors import BodyTooComplexError

WALKED_MEMBERS: Final = 512
"""Members of one object that are walked to find one of them. OpenAI's largest request has some 40."""

WALKED_STRINGS: Final = 60_000
"""Strings of a large body that such a walk may skip. The other bounds allow 25,000 members, of two strings each."""

WALKED: Final = f"with `{STREAM_OPTIONS}`, `{PRIORITY}` or a model to set"
"""The bodies that are walked; the beginning of the error for one with too much to walk."""

_DECODER: Final = json.JSONDecoder(parse_int=len, parse_float=len)  # a long number takes long to convert
_BETWEEN: Final = re.compile(r"[ \t\r\n,:]*")


def members_of(body: bytes, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield key, start and end of value of each member of the object that begins at `start`.

    Raises `BodyTooComplexError` at the member after `WALKED_MEMBERS`, and for arrays in a thousand others.
    """
    text = body.decode("latin-1")
    end, count = start + 1, 0
    try:
        while text[position := _past(text, end)] != "}":
            count += 1
            if count > WALKED_MEMBERS:
                message = f"{WALKED} at most {WALKED_MEMBERS} members of an object can be read; send fewer"
                raise BodyTooComplexError(message)
            key, end = _DECODER.raw_decode(text, position)
            begin = _past(text, end)
            _, end = _DECODER.raw_decode(text, begin)
            yield key, begin, end
    except RecursionError as error:
        raise BodyTooComplexError(f"{WALKED} the request body is nested too deeply; nest it less") from error


def _past(text: str, position: int) -> int:
    """Return the offset of the next value or bracket."""
    between = _BETWEEN.match(text, position)
    assert between is not None
    return between.end()

"""A large request body as it arrives: its structure counted, its long strings left out. No object is built. Pure.

A parser's time and memory go by values, not by bytes: 15 MB of `[],` make five million lists. So every part of a body
beyond `OUTLINED_BYTES` is looked at when it arrives, by searches at the speed of memory, and a body with more values
than `read_facts` may build within some milliseconds is refused before it is whole. And it is the `outline` that gets
parsed: the body with the middle of each long string left out (images, documents), as far as no escape sequence and no
character is cut. What an outline says of keys, numbers and short strings is what the body says; of a long string it has
the beginning and the end of each part that arrived.

The bounds are what orjson took on one core of a shared machine: 10,000 objects of one member 1.5 ms, 25,000 members
2.9 ms, 250,000 numbers 6 ms, 2 MiB of string 2 ms, a number of 2 MiB 6 ms.
"""

from bisect import bisect_right
from typing import Final

from specpilot.gateway.wire.errors import BodyTooComplexError
from specpilot.gateway.wire.tuning import (
    CONTAINERS_MAX,
    ITEMS_MAX,
    KEPT_BYTES,
    MEMBERS_MAX,
    OUTLINE_BYTES,
    QUOTES_MAX,
)

_LONG_BYTES: Final = 4 * KEPT_BYTES
_STRINGS_LOOKED_AT: Final = 256
_SEQUENCE_BYTES: Final = 12
"""The longest escape sequence: a character of two `\\uXXXX`."""
_TRIES: Final = 64


class BodyOutline:
    """What is known of a body so far."""

    __slots__ = ("_containers", "_cuts", "_held", "_in_string", "_items", "_members", "_quotes", "_text", "_whole")

    def __init__(self) -> None:
        self._text = bytearray()
        self._whole: bytes | None = None
        self._cuts: list[tuple[int, int]] = []  # place in the outline, bytes left out up to there
        self._held = b""  # a backslash whose next byte has not come
        self._in_string = False
        self._quotes = self._containers = self._members = self._items = 0

    def feed(self, data: bytes) -> None:
        """Take the next part of the body. Raises `BodyTooComplexError`."""
        text = self._held + data if self._held else data
        slashes = len(text) - len(text.rstrip(b"\\"))
        self._held = b"\\" if slashes % 2 else b""
        if self._held:
            text = text[:-1]
        if self._in_string and b'"' not in text:  # the usual part of a long string; a search beats a count tenfold
            self._keep_string(text)
            _check(len(self._text), OUTLINE_BYTES, "bytes besides long strings")
            return
        plain = text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text
        between = plain.split(b'"')
        quotes = len(between) - 1
        self._quotes += quotes
        _check(self._quotes // 2, QUOTES_MAX // 2, "strings")
        outside = b"".join(between[1::2] if self._in_string else between[::2])
        self._containers += outside.count(b"[") + outside.count(b"{")
        self._members += outside.count(b":")
        self._items += outside.count(b",")
        _check(self._containers, CONTAINERS_MAX, "arrays and objects")
        _check(self._members, MEMBERS_MAX, "members of objects")
        _check(self._items, ITEMS_MAX, "items")
        if quotes < _STRINGS_LOOKED_AT:
            self._keep_outline(text, between)
        else:
            self._text += text
        self._in_string = self._in_string != bool(quotes % 2)
        _check(len(self._text), OUTLINE_BYTES, "bytes besides long strings")

    def finish(self) -> bytes:
        """The body is whole: return its outline."""
        if self._whole is None:
            self._text += self._held
            self._whole = bytes(self._text)
            self._text.clear()
        return self._whole

    @property
    def strings(self) -> int:
        """How many strings the body has, names of members included."""
        return self._quotes // 2

    def place(self, position: int) -> int:
        """Return where in the body the byte at `position` of the outline is; never one within a long string."""
        at = bisect_right(self._cuts, (position, 1 << 62))
        return position + (self._cuts[at - 1][1] if at else 0)

    def _keep_string(self, text: bytes) -> None:
        """Keep the ends of a part that lies within a string."""
        first = _border(text, KEPT_BYTES) if len(text) > _LONG_BYTES else 0
        last = _border(text, len(text) - KEPT_BYTES) if first else 0
        if not last:
            self._text += text
            return
        self._text += text[:first]
        left_out = self._cuts[-1][1] if self._cuts else 0
        self._cuts.append((len(self._text), left_out + last - first))
        self._text += text[last:]

    def _keep_outline(self, text: bytes, between: list[bytes]) -> None:
        start, is_string, kept = 0, self._in_string, 0
        for part in between:
            end = start + len(part)
            if is_string and len(part) > _LONG_BYTES:
                first = _border(text, start + KEPT_BYTES)
                last = _border(text, end - KEPT_BYTES)
                if first and last:
                    self._text += text[kept:first]
                    left_out = self._cuts[-1][1] if self._cuts else 0
                    self._cuts.append((len(self._text), left_out + last - first))
                    kept = last
            start = end + 1
            is_string = not is_string
        self._text += text[kept:] if kept else text


def _border(text: bytes, position: int) -> int:
    """Return a place at or after `position` between two characters of a string; 0 when there is none nearby."""
    for at in range(position, min(position + _TRIES, len(text))):
        if text[at] & 0xC0 != 0x80 and b"\\" not in text[at - _SEQUENCE_BYTES : at]:  # noqa: PLR2004 - UTF-8's continuation
            return at
    return 0


def _check(found: int, limit: int, what: str) -> None:
    if found > limit:
        raise BodyTooComplexError(f"the request body has more than {limit} {what}; send fewer")

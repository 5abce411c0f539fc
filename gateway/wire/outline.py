"""A large request body as it arrives: its structure is counted, its long strings are skipped. Pure.

A parser's time and memory depend on the number of values, not of bytes: 15 MB of `[],` make five million lists. So
every part of a body above `OUTLINED_BYTES` is counted on arrival, by searches at the speed of memory, without building
objects. A body with more values than `read_facts` may build within some milliseconds is rejected before it is whole.

The outline is parsed instead of the body. It is the body without the middle of each long string (images, documents),
cut between characters and outside escape sequences. Keys, numbers and short strings are the same in both. Of a long
string, the outline has the beginning and the end of each part that arrived.

The limits are times of orjson on one core of a shared machine: 10,000 objects of one member 1.5 ms, 25,000 members 2.9
ms, 250,000 numbers 6 ms, 2 MiB of string 2 ms, a number of 2 MiB 6 ms.
"""

from bisect import bisect_right
from typing import Final

from specpilot.gateway.wire.errors import BodyTooComplexError

OUTLINED_BYTES: Final = 65_536
"""Bytes up to which a body is parsed whole. The worst body of that size, all lists, takes 1.2 ms."""

CONTAINERS_MAX: Final = 10_000
"""Objects and lists of a large body. 10,000 with one member each take orjson 1.5 ms."""

MEMBERS_MAX: Final = 25_000
"""Members of all its objects. 25,000 take 2.9 ms."""

ITEMS_MAX: Final = 250_000
"""Its values. 250,000 numbers take 6 ms."""

QUOTES_MAX: Final = 500_000
"""Its unescaped quotes, two for each string."""

OUTLINE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of its outline. 2 MiB of string take 2 ms, a number of that length 6 ms."""

KEPT_BYTES: Final = 2048
"""Bytes at each end of each part of a long string that are kept, enough to distinguish prompts."""

_LONG_BYTES: Final = 4 * KEPT_BYTES
_STRINGS_LOOKED_AT: Final = 256
_SEQUENCE_BYTES: Final = 12
"""The longest escape sequence: a character of two `\\uXXXX`."""
_TRIES: Final = 64


class BodyOutline:
    """The state of a body that is being read. `_in_string`: the last part ended within a string."""

    __slots__ = ("_containers", "_cuts", "_held", "_in_string", "_items", "_members", "_quotes", "_text", "_whole")

    def __init__(self) -> None:
        self._text = bytearray()
        self._whole: bytes | None = None
        self._cuts: list[tuple[int, int]] = []  # offset in the outline, bytes skipped up to there
        self._held = b""  # a backslash at the end of a part, whose escaped byte is in the next one
        self._in_string = False
        self._quotes = self._containers = self._members = self._items = 0

    def feed(self, data: bytes) -> None:
        """Read the next part of the body. Raises `BodyTooComplexError`."""
        text = self._held + data if self._held else data
        slashes = len(text) - len(text.rstrip(b"\\"))
        self._held = b"\\" if slashes % 2 else b""
        if self._held:
            text = text[:-1]
        if self._in_string and b'"' not in text:  # the usual part of a long string; a search takes ten times a count
            self._keep_ends(text, [text])
            _check(len(self._text), OUTLINE_BYTES, "bytes besides long strings")
            return
        # Without escaped quotes, the text between two quotes is alternately outside and inside a string.
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
            self._keep_ends(text, between)
        else:
            self._text += text
        self._in_string = self._in_string != bool(quotes % 2)
        _check(len(self._text), OUTLINE_BYTES, "bytes besides long strings")

    def finish(self) -> bytes:
        """Return the outline of the whole body."""
        if self._whole is None:
            self._text += self._held
            self._whole = bytes(self._text)
            self._text.clear()
        return self._whole

    @property
    def strings(self) -> int:
        """The number of strings, names of members included."""
        return self._quotes // 2

    def place(self, position: int) -> int:
        """Return the offset in the body of the outline's byte at `position`, which must be outside long strings."""
        at = bisect_right(self._cuts, (position, 1 << 62))
        return position + (self._cuts[at - 1][1] if at else 0)

    def _keep_ends(self, text: bytes, between: list[bytes]) -> None:
        """Keep `text` without the middle of each long string; `between` are its pieces between quotes."""
        start, is_string, position = 0, self._in_string, 0
        for part in between:
            end = start + len(part)
            if is_string and len(part) > _LONG_BYTES:
                first = _border(text, start + KEPT_BYTES)
                last = _border(text, end - KEPT_BYTES)
                if first and last:
                    self._text += text[position:first]
                    skipped = self._cuts[-1][1] if self._cuts else 0
                    self._cuts.append((len(self._text), skipped + last - first))
                    position = last
            start = end + 1
            is_string = not is_string
        self._text += text[position:] if position else text


def _border(text: bytes, position: int) -> int:
    """Return an offset at or after `position` between two characters of a string; 0 when there is none nearby."""
    for at in range(position, min(position + _TRIES, len(text))):
        if text[at] & 0xC0 != 0x80 and b"\\" not in text[at - _SEQUENCE_BYTES : at]:  # noqa: PLR2004 - UTF-8's continuation
            return at
    return 0


def _check(count: int, limit: int, noun: str) -> None:
    if count > limit:
        raise BodyTooComplexError(f"the request body has more than {limit} {noun}; send fewer")

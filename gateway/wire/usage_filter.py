"""Removes the usage event from a stream whose client did not ask for it, because the gateway did. Pure.

Whole events without the word `usage` pass at once. Of other reads the whole events pass, without one that has only
usage, and the rest waits for its end. While nothing waits (`is_idle`), a read of the first kind need not be fed.
"""

import re
from typing import Final

import orjson

from specpilot.gateway.wire.keep_alive import data_of, with_line_feeds

HELD_BYTES: Final = 65_536
"""Bytes of an incomplete event that are held back. A longer one is no usage event."""

_WORD: Final = b'"usage"'
_BORDERS: Final = (b"\r\n\r\n", b"\n\n", b"\r\r")
_BORDER: Final = re.compile(rb"((?>\r\n?|\n){2})")


class UsageFilter:
    """Filters one stream."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for its end."""
        return not self._held

    def feed(self, data: bytes) -> bytes:
        """Return what may be sent after the next part of the stream."""
        if not self._held and data.find(_WORD) < 0 and data.endswith(_BORDERS):
            return data
        text = self._held + data
        end = _end_of_whole(text)
        if len(text) - end > HELD_BYTES:
            end = len(text)
        self._held = text[end:]
        return _without_usage(text[:end]) if text.find(_WORD, 0, end) >= 0 else text[:end]

    def rest(self) -> bytes:
        """Return the held bytes of a stream that has ended."""
        return b"" if _is_usage(self._held) else self._held


def _end_of_whole(text: bytes) -> int:
    """Return the end of the last complete event in `text`; 0 if there is none."""
    end = 0
    for border in _BORDERS:
        at = text.rfind(border)
        if at >= 0:
            end = max(end, at + len(border))
    return end


def _without_usage(text: bytes) -> bytes:
    """Return whole events without those that have only usage."""
    *parts, rest = _BORDER.split(text)  # a proxy's comments may end in other line ends than the engine's events
    frames = [frame + border for frame, border in zip(parts[::2], parts[1::2], strict=True) if not _is_usage(frame)]
    return b"".join(frames) + (b"" if _is_usage(rest) else rest)


def _is_usage(frame: bytes) -> bool:
    if frame.find(_WORD) < 0:
        return False
    try:
        document = orjson.loads(data_of(with_line_feeds(frame)) or b"")
    except orjson.JSONDecodeError:
        return False
    return type(document) is dict and not document.get("choices", True) and type(document.get("usage")) is dict

"""Removes the usage event from a stream whose client did not ask for it, because the gateway did. Pure.

While every read has whole chunks of whole events without the word `usage`, it is passed on unchanged. From the first
other read on (`is_reframing`), events are framed anew: whole events are sent as one chunk, and the rest waits for its
end, until a read ends at a border again.
"""

import re
from typing import Final

import orjson

from specpilot.gateway.wire.framing import Framer
from specpilot.gateway.wire.keep_alive import data_of, with_line_feeds

HELD_BYTES: Final = 65_536
"""Bytes of an incomplete event that are held back. A longer one is no usage event."""

_WORD: Final = b'"usage"'
_BORDERS: Final = (b"\r\n\r\n", b"\n\n", b"\r\r")
_BORDER: Final = re.compile(rb"((?>\r\n?|\n){2})")


class UsageFilter:
    """Filters one stream. `is_chunked`: the output is chunked; not for streams without chunks and clients of HTTP/1.0.

    `is_reframing`: the output so far ends with a complete chunk, independently of the engine's own chunks.
    """

    __slots__ = ("_held", "_is_chunked", "is_reframing")

    def __init__(self, *, is_chunked: bool) -> None:
        self._held = b""
        self._is_chunked = is_chunked
        self.is_reframing = False

    def feed(self, raw: bytes, payload: list[bytes], framer: Framer) -> bytes:
        """Return the output for a read: `raw` is its bytes, `payload` is without chunk framing."""
        is_border = framer.is_between_chunks or framer.is_done
        if not self.is_reframing and not self._held and is_border and _WORD not in raw and _are_whole(payload):
            return raw if self._is_chunked else b"".join(payload)
        self.is_reframing = not is_border
        text = self._held + b"".join(payload)
        end = len(text)
        if not framer.is_done:
            end = _end_of_whole(text)
            if len(text) - end > HELD_BYTES:
                end = len(text)
        self._held = text[end:]
        self.is_reframing = self.is_reframing or bool(self._held)
        out = _without_usage(text[:end]) if text.find(_WORD) >= 0 else text[:end]
        if not self._is_chunked:
            return out
        chunk = b"%x\r\n%s\r\n" % (len(out), out) if out else b""
        return chunk + b"0\r\n\r\n" if framer.is_done else chunk

    def rest(self) -> bytes:
        """Return the held bytes of a stream that ends with its connection."""
        return b"" if _is_usage(self._held) else self._held


def _are_whole(payload: list[bytes]) -> bool:
    for part in payload:  # noqa: SIM110 - `all` makes a generator, for every event
        if not part.endswith(_BORDERS):
            return False
    return True


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

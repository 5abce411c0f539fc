"""Reads an event stream frame by frame: what may be sent of it, and what it says. Pure.

A stream may be split anywhere, and its lines end in LF, CRLF or CR. Only whole frames are sent, so that an error event
can follow each of them; the beginning of another one waits for its end, up to `FRAME_BYTES`. A comment or a blank line
is whole by itself. So is the LF of a CRLF whose CR ended a read and a frame: a blank line says nothing. No frame is
changed, and one is left out: the usage that the gateway asked for and the client did not.

Before the first content (`has_begun`) all frames are held back, up to `FRAME_BYTES`, because a second engine may still
answer. Events that open a stream (`message_start`, `response.created`) are no content: they name the response, and
another engine would give another name. Keep-alives may be sent at once. They then overtake the openings, which is
harmless: a keep-alive has no state.

Each frame is read by plain byte search; `[DONE]` ends the stream, and an error event is recognised by its name or its
data. The last event is examined once, when no more is read, because most streams state their end by a marker or a name:
an event whose type is not its first member, a finish reason of the only choice, usage behind all choices.

Output of a stream without usage. An event has all tokens of one step, or of many steps when its client reads slowly. So
text is measured in bytes: the excess of each event over the shortest event before it, which is mostly the JSON around
the text. Of events with names only those named a delta count, because others repeat the text.

Memory is bounded: of a frame longer than `FRAME_BYTES` only the beginning and the end are kept to be read.
"""

import re
from typing import Final

from specpilot.gateway.wire.body_reader import BodyReader
from specpilot.gateway.wire.event_frame import (
    END,
    FAILED,
    NAME,
    OPENING,
    TYPE,
    data_of,
    has_only_usage,
    keeps_alive,
    says_nothing,
    stated_end,
    with_line_feeds,
)
from specpilot.gateway.wire.request_facts import CHARS_PER_TOKEN
from specpilot.gateway.wire.usage import USAGE, Usage, is_engines_fault, is_error

FRAME_BYTES: Final = 65_536
"""Bytes of one frame, or of all frames before the first content, that are held back. A longer one is sent as it comes:
it is no error event, and no usage event."""

_USUAL_DATA: Final = b'data: {"id"'
_BORDERS: Final[tuple[bytes, ...]] = (b"\n\n", b"\n\r", b"\r\r")
"""The two line ends between frames, whatever ends a line. An LF may be behind the CR."""

_WHOLE_LINES: Final = re.compile(rb"(?:(?::[^\r\n]*)?(?:\r\n?|\n))+")
_FRAME: Final = re.compile(rb"%b|(?:[^\r\n]+(?:\r\n?|\n))+(?:\r\n?|\n)" % _WHOLE_LINES.pattern)

_RETURN: Final = ord("\r")
"""An octet, for `in`. For bytes, `in` first raises and clears a `TypeError`: 2,000 instructions for each event."""

_BEGIN_BYTES: Final = 64
"""Bytes of a frame's name, and of the beginning of its data, that are kept of a long frame."""

_UNKNOWN_BYTES: Final = 1 << 60


class EventStream(BodyReader):
    """Reads an event stream. See the module.

    `has_one_choice`: the request asked for one answer to one prompt. `strips_usage`: the client did not ask for the
    usage that the stream states. `passes_keep_alives`: they are sent before the first content.
    """

    def __init__(
        self, *, has_one_choice: bool = False, strips_usage: bool = False, passes_keep_alives: bool = False
    ) -> None:
        self._has_one_choice = has_one_choice
        self._strips_usage = strips_usage
        self._passes_keep_alives = passes_keep_alives
        self._held: list[bytes] = []  # frames before the first content
        self._held_bytes = 0
        self._rest = b""  # the beginning of a frame
        self._sent_bytes = 0  # of `_rest`: none, or all if it is long
        self._has_ended = False
        self._last_frame = b""
        self._usage_frame = b""
        self._shortest_bytes = _UNKNOWN_BYTES
        self._text_bytes = 0

    @property
    def tokens(self) -> int:
        """The approximate number of tokens so far: one per event, or one for four bytes of text if that is more."""
        return max(self.deltas, self._text_bytes // CHARS_PER_TOKEN)

    @property
    def is_within_frame(self) -> bool:
        """Whether the beginning of a frame was sent, without its end."""
        return self._sent_bytes > 0

    def feed(self, data: bytes) -> bytes:
        """Read the next part of the stream; return the whole frames that may be sent now."""
        if self.has_begun and not self._rest:
            plain = with_line_feeds(data) if _RETURN in data else data
            if 0 < plain.find(b"\n\n") == len(plain) - 2:  # the usual read: one frame
                return b"" if self._read(plain[:-2]) else data
        text = self._rest + data
        has_returns = _RETURN in text
        end = _end_of_frames(text, has_returns=has_returns)
        whole = text[:end]
        is_left_out = False
        for frame in (with_line_feeds(whole) if has_returns else whole)[:-2].split(b"\n\n"):
            if self._read(frame):
                is_left_out = True
        held = b""
        if not self.has_begun:
            is_short = self._held_bytes + len(text) <= FRAME_BYTES
            if self.deltas == self.openings and not self.is_done and is_short:
                self._rest = text[end:]
                return self._hold(whole)
            self.has_begun = True
            held = b"".join(self._held)
            self._held.clear()
        if is_left_out:
            whole = b"".join([frame for frame in _frames(whole) if not has_only_usage(with_line_feeds(frame))])
        rest, sent = text[end:], self._sent_bytes
        self._sent_bytes = 0
        if sent and end:
            whole, sent = whole[sent:], 0
        if sent or len(rest) > FRAME_BYTES:
            whole += rest[sent:]
            rest = rest if len(rest) <= FRAME_BYTES else _shortened(rest)
            self._sent_bytes = len(rest)
        self._rest = rest
        return held + whole if held else whole

    def _hold(self, whole: bytes) -> bytes:
        """Hold back the frames of `whole`, which are no content; return the keep-alives among them."""
        alive: list[bytes] = []
        for frame in _frames(whole):
            is_alive = self._passes_keep_alives and keeps_alive(with_line_feeds(frame))
            if is_alive:
                alive.append(frame)
            else:
                self._held.append(frame)
                self._held_bytes += len(frame)
        return b"".join(alive)

    def _read(self, frame: bytes) -> bool:  # noqa: C901, PLR0912 - one branch a kind of frame
        """Read one frame; return whether it is left out."""
        is_failed, is_text = False, True
        if not frame.startswith(_USUAL_DATA):  # no event of an API with names begins like this
            at = 0
            if not frame.startswith(b"data:"):
                # A blank line, a comment or another field is first: search for a line of data.
                at = frame.find(b"\ndata:") + 1
                if at == 0:
                    return False
            if frame.find(b"event:", 0, at) >= 0:
                name = NAME.search(frame, 0, at)
                is_text = frame.find(b"delta", 0, at) >= 0
            elif (behind := frame.find(b"\nevent:", at) + 1) > 0:
                name = NAME.search(frame, behind)
                is_text = frame.find(b"delta", behind) >= 0
            else:
                name = TYPE.match(frame, at)
            if name is not None:
                kind = name.lastindex
                is_failed = kind == FAILED
                if kind == END:
                    self.is_done = True
                elif kind == OPENING and self.openings == self.deltas:
                    self.openings += 1
            frame = frame[at:]
            mark = frame[5:12]
            if mark == b" [DONE]" or mark.startswith(b"[DONE]"):
                self.is_done = True
                return False
            if self.deltas == self.openings and says_nothing(frame):
                return False
            is_failed = is_failed or is_error(frame.partition(b"\n")[0])
        self.deltas += 1
        self._last_frame = frame
        if is_text:
            size = len(frame)
            if size < self._shortest_bytes:
                self._shortest_bytes = size
            else:
                self._text_bytes += size - self._shortest_bytes
        if is_failed:
            self.has_error = True
            if is_engines_fault(frame):
                self.has_failed = True
                self.has_failed_first = self.has_failed_first or self.deltas == self.openings + 1
        if frame.find(b'"usage"') < 0 or USAGE.search(frame) is None:
            return False
        self._usage_frame = frame
        return self._strips_usage and has_only_usage(frame)

    def end(self) -> None:
        """The connection has ended, and so has the last frame, with or without a blank line."""
        if self._has_ended:
            return
        self._has_ended = True
        last = with_line_feeds(self._rest)
        if last.endswith((b"\n", b"]", b"}")) and self._read(last.rstrip(b"\n")):
            self._sent_bytes = len(self._rest)
        if not (self.is_done or self.has_error):
            kind = stated_end(self._last_frame, has_one_choice=self._has_one_choice)
            self.is_done = kind == END
            self.has_error = kind == FAILED
            self.has_failed = self.has_failed or (self.has_error and is_engines_fault(self._last_frame))

    def rest(self) -> bytes:
        """Return what was held back, of a stream that has ended."""
        return b"".join((*self._held, self._rest[self._sent_bytes :]))

    def finish(self, usage: Usage) -> None:
        """The stream has ended: put its own numbers into `usage`."""
        self.end()
        frame = self._usage_frame
        if frame and not usage.read_document(data_of(frame) or b""):
            usage.read_part(frame)


def _end_of_frames(text: bytes, *, has_returns: bool) -> int:
    """Return the end of the last whole frame in `text`, and of the comments and blank lines behind it."""
    end = text.rfind(b"\n\n") + 2 if not has_returns else max([text.rfind(border) + 2 for border in _BORDERS])
    if end == 1:  # there is none
        end = 0
    if end == len(text):
        return end
    if end and text[end - 1 : end + 1] == b"\r\n":
        end += 1
    lines = _WHOLE_LINES.match(text, end)
    return end if lines is None else lines.end()


def _frames(whole: bytes) -> list[bytes]:
    """Return the frames of `whole`, each with the blank line behind it."""
    return [frame[0] for frame in _FRAME.finditer(whole)]


def _shortened(frame: bytes) -> bytes:
    """Return a frame's name, the beginning of its data, and its end, joined so that no frame border arises."""
    at = 0 if frame.startswith(b"data:") else frame.find(b"\ndata:") + 1
    start = frame[at if at > _BEGIN_BYTES else 0 : at + _BEGIN_BYTES] + b" "
    return start + frame[len(start) - FRAME_BYTES :]

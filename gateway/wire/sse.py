"""Reads events and usage in a response, and never changes its bytes. Pure.

Events. A stream of server-sent events may be split anywhere. Lines end in LF, CRLF or CR. Comments do not count,
`[DONE]` ends the stream, and an error event is recognised by its name or its data. Nothing is decoded, so split UTF-8
stays bytes. Each frame is searched for these things only, by plain byte search: text in a JSON string cannot imitate a
JSON key, because quotes in it are escaped.

Ends. The last event is examined once, when no more is read, because most streams state their end by a marker or a name:
an event whose type is not its first member, a finish reason of the only choice, usage behind all choices.

Openings. An API sends these events before anything is generated; they are recognised by name (`_NAME`). They carry no
content, so a stream has no content while no other event has come. Keep-alives (`gateway.wire.keep_alive`) are among
them.

Output of a stream without usage. An event has all tokens of one step, or of many steps when its client reads slowly. So
text is measured in bytes: the excess of each event over the shortest event before it, which is mostly the JSON around
the text. Of events with names only those named a delta count, because others repeat the text.

Memory is bounded. Of a frame longer than `FRAME_BYTES` only the end is kept; of a JSON body the end, `TAIL_BYTES` or
more, and if its last `usage` is before that, `USAGE_BYTES` from there.
"""

import re
from typing import Any, Final

import orjson

from specpilot.gateway.wire.keep_alive import KEEP_ALIVE_NAMES, data_of, says_nothing, with_line_feeds
from specpilot.gateway.wire.request_facts import CHARS_PER_TOKEN
from specpilot.gateway.wire.usage import USAGE, Usage, is_engines_fault, is_error, last_usage

TAIL_BYTES: Final = 16_384
"""Bytes that are kept at the end of a JSON body, where its usage is. They bound the cost of reading it."""

USAGE_BYTES: Final = 4_096
"""Bytes that are kept from the last `usage` on, if that is before the end."""

FRAME_BYTES: Final = 65_536
"""Bytes of one event that are searched whole. Of a longer one only the end is kept."""

_END_BYTES: Final = 2
_USUAL_DATA: Final = b'data: {"id"'
_FAILED_NAMES: Final = rb"(error|response\.failed)"
_OPENING_NAMES: Final = rb"response\.(?:created|queued|in_progress)|message_start"
_LAST_NAMES: Final = rb"(message_stop|response\.(?:completed|incomplete|cancelled))"
_NAME: Final = re.compile(
    rb"^event: ?(?:%b|(%b|%b)|%b)$" % (_FAILED_NAMES, _OPENING_NAMES, KEEP_ALIVE_NAMES, _LAST_NAMES), re.MULTILINE
)
"""The names of events whose name matters: of OpenAI's Responses, and of Anthropic's API."""

_TYPE: Final = re.compile(
    rb'data:[ \t]*\{[ \t]*"type"[ \t]*:[ \t]*"(?:%b|(%b)|%b)"' % (_FAILED_NAMES, _OPENING_NAMES, _LAST_NAMES)
)
"""The same names in the data of an event without one: its first member, as these APIs send it."""

_RETURN: Final = ord("\r")
"""An octet, for `in`. For bytes, `in` first raises and clears a `TypeError`: 2,000 instructions for each event."""
_FAILED: Final = 1
_OPENING: Final = 2
_END: Final = 3
_NAME_BYTES: Final = 64
"""Bytes of a frame's name, and of the beginning of its data, that are kept of a long frame."""

_UNKNOWN_BYTES: Final = 1 << 60


class SseTap:
    """Reads an event stream.

    `deltas` counts events with data, without the end marker; `openings` counts those before any content. `is_done`: the
    end marker was seen, or the event that ends a stream of an API without one. `has_error`: an error event was seen.
    `is_between_events`: the stream is between two frames. `has_failed`: an error event was the engine's fault.
    `has_failed_first`: only comments and openings came before it. `is_plain`: the bytes fed last were whole events, and
    none has the word `usage`. `has_one_choice`: the request asked for one answer to one prompt.
    """

    __slots__ = (
        "_ends_in_return",
        "_has_ended",
        "_has_one_choice",
        "_last_frame",
        "_rest",
        "_shortest_bytes",
        "_text_bytes",
        "_usage_frame",
        "deltas",
        "has_error",
        "has_failed",
        "has_failed_first",
        "is_done",
        "is_plain",
        "openings",
    )

    def __init__(self, *, has_one_choice: bool = False) -> None:
        self.deltas = 0
        self.openings = 0
        self.is_done = False
        self.is_plain = True
        self.has_error = False
        self.has_failed = False
        self.has_failed_first = False
        self._rest = b""
        self._has_ended = False
        self._has_one_choice = has_one_choice
        self._last_frame = b""
        self._ends_in_return = False  # it may be half of the end of a line
        self._shortest_bytes = _UNKNOWN_BYTES
        self._text_bytes = 0
        self._usage_frame = b""

    @property
    def tokens(self) -> int:
        """The approximate number of tokens so far: one per event, or one for four bytes of text if that is more."""
        return max(self.deltas, self._text_bytes // CHARS_PER_TOKEN)

    @property
    def is_between_events(self) -> bool:
        """Whether no frame is incomplete."""
        return not self._rest.strip(b"\n") and not self._ends_in_return

    def feed(self, data: bytes) -> int:
        """Read `data`; return the number of events with data that ended in it."""
        before = self.deltas
        if _RETURN in data or self._ends_in_return:
            data = self._with_line_feeds(data)
        self.is_plain = not self._ends_in_return
        if self._rest:
            data = self._rest + data
            self._rest = b""
            self.is_plain = False
        if data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2:
            self._frame(data, _END_BYTES)
            return self.deltas - before
        *frames, rest = data.split(b"\n\n")
        for frame in frames:
            self._frame(frame)
        if rest:
            self.is_plain = False
        self._rest = rest if len(rest) <= FRAME_BYTES else _shortened(rest)
        return self.deltas - before

    def _with_line_feeds(self, data: bytes) -> bytes:
        """Return `data` with each line ended by a line feed alone."""
        if self._ends_in_return and data.startswith(b"\n"):
            data = data[1:]  # of the line that has ended already
        self._ends_in_return = data.endswith(b"\r")
        return with_line_feeds(data)

    def _frame(self, frame: bytes, end_bytes: int = 0) -> None:  # noqa: C901, PLR0912 - one branch a kind of frame
        """Read one frame; `end_bytes` of it are the blank line behind it."""
        is_failed, is_text = False, True
        if not frame.startswith(_USUAL_DATA):  # no event of an API with names begins like this
            at = 0
            if not frame.startswith(b"data:"):
                # A blank line, a comment or another field is first: search for a line of data.
                at = frame.find(b"\ndata:") + 1
                if at == 0:
                    return
            if frame.find(b"event:", 0, at) >= 0:
                name = _NAME.search(frame, 0, at)
                is_text = frame.find(b"delta", 0, at) >= 0
            elif (behind := frame.find(b"\nevent:", at) + 1) > 0:
                name = _NAME.search(frame, behind)
                is_text = frame.find(b"delta", behind) >= 0
            else:
                name = _TYPE.match(frame, at)
            is_failed = name is not None and self._is_error(name.lastindex)
            frame = frame[at:]
            mark = frame[5:12]
            if mark == b" [DONE]" or mark.startswith(b"[DONE]"):
                self.is_done = True
                return
            if self.deltas == self.openings and says_nothing(data_of(frame)):
                return
            is_failed = is_failed or is_error(frame.partition(b"\n")[0])
        self.deltas += 1
        self._last_frame = frame
        if is_text:
            size = len(frame) - end_bytes
            if size < self._shortest_bytes:
                self._shortest_bytes = size
            else:
                self._text_bytes += size - self._shortest_bytes
        if frame.find(b'"usage"') >= 0:
            self.is_plain = False
            if USAGE.search(frame) is not None:
                self._usage_frame = frame
        if is_failed:
            self.has_error = True
            if is_engines_fault(frame):
                self.has_failed = True
                self.has_failed_first = self.has_failed_first or self.deltas == self.openings + 1

    def _is_error(self, kind: int | None) -> bool:
        """Note the meaning of an event's name, which is of `kind`; return whether it is an error."""
        if kind == _OPENING and self.openings == self.deltas:
            self.openings += 1
        elif kind == _END:
            self.is_done = True
        return kind == _FAILED

    def end(self) -> None:
        """The connection has ended, and so has the last event, with or without a blank line."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._rest.endswith((b"\n", b"]", b"}")):
            self._frame(self._rest.rstrip(b"\n"))
        if not (self.is_done or self.has_error):
            kind = _stated_end(self._last_frame, has_one_choice=self._has_one_choice)
            self.is_done = kind == _END
            self.has_error = kind == _FAILED
            self.has_failed = self.has_failed or (self.has_error and is_engines_fault(self._last_frame))

    def finish(self, usage: Usage) -> None:
        """The stream has ended: put its own numbers into `usage`."""
        self.end()
        frame = self._usage_frame
        if frame and not usage.read_document(data_of(frame) or b""):
            usage.read(frame[max(0, last_usage(frame)) :])  # echoed text is before it


def _stated_end(frame: bytes, *, has_one_choice: bool) -> int:
    """Return `_FAILED` or `_END` if the last event says that its stream ends so; 0 if it does not say it."""
    name = _NAME.search(frame)
    if name is not None and name.lastindex in (_FAILED, _END):
        return name.lastindex
    try:
        document: Any = orjson.loads(data_of(frame) or b"")
    except orjson.JSONDecodeError:
        return 0
    if type(document) is not dict:
        return 0
    name = _NAME.fullmatch(b"event: %s" % str(document.get("type")).encode())
    kind = 0 if name is None else name.lastindex
    if kind == _FAILED or is_error(orjson.dumps({"error": document.get("error")})):
        return _FAILED
    choices, delta = document.get("choices"), document.get("delta")
    if type(choices) is list:
        if choices:
            reasons = [choice.get("finish_reason") for choice in choices if type(choice) is dict]
            is_end = has_one_choice and bool(reasons) and all(reasons)
        else:
            is_end = type(document.get("usage")) is dict
    else:
        is_end = kind == _END or (type(delta) is dict and bool(delta.get("stop_reason")))
    return _END if is_end else 0


def _shortened(frame: bytes) -> bytes:
    """Return a frame's name, the beginning of its data, and its end, joined so that no frame border arises."""
    at = 0 if frame.startswith(b"data:") else frame.find(b"\ndata:") + 1
    start = frame[at if at > _NAME_BYTES else 0 : at + _NAME_BYTES] + b" "
    return start + frame[len(start) - FRAME_BYTES :]


class JsonTap:
    """Reads a JSON body. Keeps its end, which mostly contains the usage, and usage before that."""

    __slots__ = ("_is_shortened", "_length", "_parts", "_usage")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._is_shortened = False
        self._usage = b""

    def feed(self, data: bytes) -> int:
        """Keep the end of the body so far; return 0, since a body has no events."""
        self._parts.append(data)
        self._length += len(data)
        if self._length > 2 * TAIL_BYTES:
            text = b"".join(self._parts)
            at = last_usage(text)
            if 0 <= at < len(text) - TAIL_BYTES:
                self._usage = text[at : at + USAGE_BYTES]
            self._is_shortened = True
            self._parts = [text[-TAIL_BYTES:]]
            self._length = TAIL_BYTES
        return 0

    def finish(self, usage: Usage) -> None:
        """The body is whole: put its own numbers into `usage`."""
        text = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if not self._is_shortened and (usage.read_ending(text) or usage.read_document(text)):
            return
        at = last_usage(text)
        if at >= 0:
            usage.read(text[at:])
        elif self._usage:
            usage.read(self._usage + b" " + text)  # the acceptance length may be at the end

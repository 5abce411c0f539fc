"""The side tap: reads along with a response to count and to learn, and never touches its bytes.

Events: a stream of server-sent events, split anywhere. Lines end in LF or CRLF, comments do not count, `[DONE]` ends
the stream, an error event is noticed by its name or its data. Nothing is decoded: UTF-8 that is split in the middle
stays bytes. Of each frame only these things are looked for, by plain byte search: JSON keys cannot be imitated by text
in a JSON string, because there a quote is escaped.

Usage: the last frame that holds `usage`, or the last `usage` of a JSON body, gives the number of input and output
tokens and, from `metrics.speculative_decoding`, the mean acceptance length. Each is `None` when the engine did not say.
Memory is bounded: of a frame longer than `FRAME_BYTES` only the end is kept; of a JSON body the end, `TAIL_BYTES` or
more, and where its last `usage` stands before that, `USAGE_BYTES` from there. Pure.
"""

import re
from math import inf, isfinite

TAIL_BYTES = 16_384
USAGE_BYTES = 4_096
FRAME_BYTES = 65_536

_TOKENS = re.compile(rb'"(?:(prompt|input)|completion|output)_tokens"\s*:\s*(\d{1,12})')
_SPECULATION = re.compile(rb'"speculative_decoding"\s*:\s*\{[^{}]*?"mean_acceptance_length"\s*:\s*([0-9.eE+-]{1,32})')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_ERROR_NAME = re.compile(rb"^event: ?error\r?$", re.MULTILINE)
_BREAK = re.compile(rb"\r?\n\r?\n")


class Usage:
    """What a response said of itself: its tokens and mean acceptance length (bonus token included)."""

    __slots__ = ("acceptance_length", "input_tokens", "output_tokens")

    def __init__(self) -> None:
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.acceptance_length: float | None = None

    @property
    def total_tokens(self) -> int | None:
        """Input and output tokens together; `None` when the response did not say."""
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    def read(self, text: bytes) -> None:
        """Learn from JSON that may hold usage; later sayings replace earlier ones."""
        has_input = False
        for is_input, count in _TOKENS.findall(text):
            if not is_input:
                self.output_tokens = int(count)
            elif not has_input:
                self.input_tokens = int(count)
                has_input = True
        speculation = _SPECULATION.search(text)
        if speculation is not None:
            try:
                length = float(speculation[1])
            except ValueError:
                length = inf
            self.acceptance_length = length if isfinite(length) else None


class SseTap:
    """Reads along with a stream of server-sent events.

    `deltas` counts events that carry data, the end marker excluded; `is_done` tells whether that was seen,
    `has_error` whether an error event was, `is_between_events` whether the stream stands at a frame's border.
    """

    __slots__ = ("_rest", "_usage_frame", "deltas", "has_error", "is_done")

    def __init__(self) -> None:
        self.deltas = 0
        self.is_done = False
        self.has_error = False
        self._rest = b""
        self._usage_frame = b""

    @property
    def is_between_events(self) -> bool:
        """Whether no part of a frame is waiting for its end."""
        return not self._rest.strip(b"\r\n")

    def feed(self, data: bytes) -> int:
        """Read `data`; return how many events with data ended in it."""
        before = self.deltas
        if self._rest:
            data = self._rest + data
            self._rest = b""
        if b"\r" in data:
            *frames, rest = _BREAK.split(data)
        elif data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2:
            self._frame(data)
            return self.deltas - before
        else:
            *frames, rest = data.split(b"\n\n")
        for frame in frames:
            self._frame(frame)
        self._rest = rest if len(rest) <= FRAME_BYTES else _shortened(rest)
        return self.deltas - before

    def _frame(self, frame: bytes) -> None:
        if not frame.startswith(b"data:"):
            # A blank line or comment or another field first: look for a line of data further down.
            at = frame.find(b"\ndata:") + 1
            if at == 0:
                return
            if _ERROR_NAME.search(frame, 0, at) is not None:
                self.has_error = True
            frame = frame[at:]
        if frame.startswith(b"[DONE]", 6 if frame[5:6] == b" " else 5):
            self.is_done = True
            return
        self.deltas += 1
        if b'"usage"' in frame and _USAGE.search(frame) is not None:
            self._usage_frame = frame
        if frame.startswith((b'data: {"error"', b'data:{"error"')):
            self.has_error = True

    def finish(self, usage: Usage) -> None:
        """The stream is over: put what it said of itself into `usage`."""
        if self._usage_frame:
            usage.read(self._usage_frame)


def _shortened(frame: bytes) -> bytes:
    """Return the beginning of a frame's first line of data, and the frame's end; no break may arise where they meet."""
    at = 0 if frame.startswith(b"data:") else frame.find(b"\ndata:") + 1
    return frame[at : at + 16] + b" " + frame[17 - FRAME_BYTES :]


class JsonTap:
    """Reads along with a JSON body; keeps its end, where usage mostly stands, and usage that stands before that."""

    __slots__ = ("_length", "_parts", "_usage")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._usage = b""

    def feed(self, data: bytes) -> int:
        """Keep the end of what has come; return 0, since a body has no events."""
        self._parts.append(data)
        self._length += len(data)
        if self._length > 2 * TAIL_BYTES:
            text = b"".join(self._parts)
            at = _last_usage(text)
            if 0 <= at < len(text) - TAIL_BYTES:
                self._usage = text[at : at + USAGE_BYTES]
            self._parts = [text[-TAIL_BYTES:]]
            self._length = TAIL_BYTES
        return 0

    def finish(self, usage: Usage) -> None:
        """The body is whole: put what it said of itself into `usage`."""
        text = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        at = _last_usage(text)
        if at >= 0:
            usage.read(text[at:])
        elif self._usage:
            usage.read(self._usage + b" " + text)  # the acceptance length may stand at the end


def _last_usage(text: bytes) -> int:
    """Return where the last `usage` object in `text` begins; -1 when there is none."""
    at = text.rfind(b'"usage"')
    while at >= 0 and _USAGE.match(text, at) is None:
        at = text.rfind(b'"usage"', 0, at)
    return at

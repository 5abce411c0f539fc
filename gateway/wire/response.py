"""Converts an engine's response to the client's: its content, the time of it, and the usage in it.

Does no I/O and reads no clock: `now` is monotonic seconds.

| stage     | entered                                                      | bytes of the body                      |
|-----------|--------------------------------------------------------------|----------------------------------------|
| `HOLDING` | at an error (status 400 and up), or no stream after a commit | kept until whole, or too long          |
| `OPENING` | at any other head                                            | a stream: kept until its first content |
| `PASSING` | with the first content                                       | sent as they arrive                    |

- The head is held back until the first byte of body is sent (see `gateway.relay.relay`), of a stream until its first
  content, because an engine may answer 200, a comment and opening events, and then only an error.
- The body is framed anew: a stream and a body of unknown length in chunks, any other body by its length. A client of
  HTTP/1.0 gets no chunks; the end of the connection ends its body. Content passes unchanged, except for the usage event
  that the gateway requested, which is removed (`gateway.wire.usage_filter`).
- Held errors are decoded and sent in the envelope of the route, unless they are in one already. An error that is too
  long to hold, or cannot be decoded, is passed on. So is a compressed stream: its events cannot be read.
- A keep-alive in `OPENING` (`gateway.wire.keep_alive`) is sent at once, ahead of opening events. It commits the client
  to status 200 and an event stream (`is_committed`); another engine may still answer. An answer that is not an event
  stream can then only be sent as an error event.
- When an engine's stream breaks, `reset` returns the bytes that can still be added: an error event; only the end, if
  the stream stated its end before. It returns `None` for other bodies: then the closed connection is the only sign.
"""

from typing import Final

from specpilot.gateway.wire.content_coding import plain_of
from specpilot.gateway.wire.errors import enveloped, event_of_answer
from specpilot.gateway.wire.framing import ResponseHead
from specpilot.gateway.wire.heads import client_head
from specpilot.gateway.wire.keep_alive import KeepAlives
from specpilot.gateway.wire.routes import STORED
from specpilot.gateway.wire.sse import JsonTap, SseTap
from specpilot.gateway.wire.usage import Usage, is_engines_fault, is_error
from specpilot.gateway.wire.usage_filter import UsageFilter

ERROR_BODY_BYTES: Final = 262_144
"""Bytes of an error answer that are held back. A longer one is passed on."""

FIRST_FRAME_BYTES: Final = 65_536
"""Bytes of a stream, opening events included, that are held back. A longer first frame is no error event."""

HOLDING: Final = 0
OPENING: Final = 1
PASSING: Final = 2

_USUAL_BODY: Final = b'{"id"'
_ERROR_BORDER: Final = 400
_WANT_RETRY_AFTER: Final[tuple[int, ...]] = (429, 503)
_LAST_CHUNK: Final = b"0\r\n\r\n"
_LINE: Final = b"\r\n"
_SIZE_LINES: Final = tuple([b"%x\r\n" % size for size in range(4096)])
"""The lines before chunks of usual sizes: making one takes longer than all else of a chunk."""


def chunk_of(data: bytes) -> bytes:
    """Return `data` as a chunk; nothing for none, which would be the last chunk."""
    size = len(data)
    if size < len(_SIZE_LINES):
        return _SIZE_LINES[size] + data + _LINE if size else b""
    return b"%x\r\n%s\r\n" % (size, data)


def closing(event: bytes, *, is_modern: bool) -> bytes:
    """Return the bytes that end a committed stream, for which no engine is left, with `event`."""
    return chunk_of(event) + _LAST_CHUNK if is_modern else event


class Delivery:
    """One response on its way to a client. Stages: see the module.

    `header_lines` are the gateway's. `is_modern`: the client speaks HTTP/1.1. `keep_alive`: its connection may serve
    another request after this. `path` is the route. `strips_usage`: the client did not ask for the usage that the
    stream states. `has_one_choice`: see `SseTap`. `passes_keep_alives`: keep-alives are sent before the first content.
    `is_committed`: the client has status 200 and the beginning of an event stream, from this engine or an earlier one.
    `has_begun`: content was sent. `has_failed_first`: the body begins with an error that is the engine's fault. After
    each `feed`, `gaps` is the number of gaps between events that it ended, each of `gap_s` seconds.
    """

    __slots__ = (
        "_alive", "_at", "_filter", "_head", "_header_lines", "_held", "_is_chunked", "_keep_alive", "_length", "_path",
        "_stage", "_tap", "first_at", "gap_s", "gaps", "has_failed_first", "is_committed", "usage",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - independent properties of a response
        self,
        head: ResponseHead,
        header_lines: bytes,
        *,
        is_modern: bool,
        keep_alive: bool,
        strips_usage: bool = False,
        has_one_choice: bool = False,
        path: str = "",
        passes_keep_alives: bool = False,
        is_committed: bool = False,
    ) -> None:
        is_stream = head.content_type.startswith(b"text/event-stream") and not head.coding
        is_held = head.status >= _ERROR_BORDER or (is_committed and not is_stream)
        self._head = head
        self._header_lines = header_lines
        self._path = path
        self._keep_alive = keep_alive
        self._length = None if is_stream or is_committed else head.length
        self._is_chunked = is_modern and self._length is None
        self._tap: SseTap | JsonTap = SseTap(has_one_choice=has_one_choice) if is_stream else JsonTap()
        self._stage = HOLDING if is_held else OPENING
        self._held: list[bytes] = []  # the bytes that are held back, until the first keep-alive
        may_pass = is_stream and not is_held
        self._filter = UsageFilter() if strips_usage and may_pass else None
        self._alive = KeepAlives() if may_pass and (passes_keep_alives or is_committed) else None
        self._at = 0.0
        self.is_committed = is_committed
        self.has_failed_first = False
        self.first_at: float | None = None
        self.gap_s = 0.0
        self.gaps = 0
        self.usage = Usage()

    @property
    def has_begun(self) -> bool:
        """Whether content was sent."""
        return self._stage == PASSING

    @property
    def is_stream(self) -> bool:
        """Whether the body is an event stream."""
        return type(self._tap) is SseTap

    @property
    def events(self) -> int:
        """The number of events with data so far."""
        return self._tap.deltas if isinstance(self._tap, SseTap) else 0

    @property
    def tokens(self) -> int:
        """The approximate number of output tokens in the events so far."""
        return self._tap.tokens if isinstance(self._tap, SseTap) else 0

    @property
    def has_error(self) -> bool:
        """Whether the stream contains an error event of the engine."""
        return isinstance(self._tap, SseTap) and self._tap.has_error

    @property
    def has_failed(self) -> bool:
        """Whether an error event in the stream was the engine's fault."""
        return isinstance(self._tap, SseTap) and self._tap.has_failed

    @property
    def has_content(self) -> bool:
        """Whether the body has more than comments and opening events."""
        return not isinstance(self._tap, SseTap) or self._tap.deltas > self._tap.openings

    @property
    def is_whole(self) -> bool:
        """Whether a body that has ended may count as complete: a stream has its end marker, or content and a frame."""
        if self.has_ended or self._stage == HOLDING or not self.is_stream:
            return True
        return not self._head.is_open and (self.has_content or self._path in STORED)  # a stored one may be read already

    @property
    def has_ended(self) -> bool:
        """Whether a stream, of which no more will be read, stated its end: by its marker, last event or an error."""
        if not isinstance(self._tap, SseTap):
            return False
        self._tap.end()
        return self._tap.is_done or self._tap.has_error

    def feed(self, data: bytes, now: float) -> bytes:
        """Process a part of the body; return the bytes for the client."""
        self.gaps = 0
        if self._stage == HOLDING:
            return self._hold(data, now)
        count = self._tap.feed(data)
        if count:
            if self._at:
                self.gap_s, self.gaps = (now - self._at) / count, count
            self._at = now
        if self._stage == PASSING:
            return self._framed(self._filtered(data))
        return self._open(data, now)

    def complete(self, now: float) -> bytes:
        """The response is whole; return the bytes that are still held back, and its end."""
        if self._stage == HOLDING:
            return self._end_held(now)
        self._tap.finish(self.usage)
        out = b"" if self._stage == PASSING else self._begin(self._take_held(), now)
        if self._filter is not None:
            out += self._framed(self._filter.rest())
        return out + _LAST_CHUNK if self._is_chunked else out

    def reset(self, event: bytes) -> bytes | None:
        """The response will not be completed; return the bytes that report this (`event`), `None` if none can."""
        if self._stage != PASSING:
            return None
        self._tap.finish(self.usage)
        if not isinstance(self._tap, SseTap):
            return None
        if self.has_ended:  # an event behind the last one would be an error of a good answer, or a second error
            event = b"" if self._filter is None else self._filter.rest()
        elif not self._tap.is_between_events:
            event = b"\n\n" + event
        return self._framed(event) + (_LAST_CHUNK if self._is_chunked else b"")

    def _hold(self, data: bytes, now: float) -> bytes:
        self._held.append(data)
        if sum(map(len, self._held)) <= ERROR_BODY_BYTES:
            return b""
        if self.is_committed:  # it will be sent as an event, which needs only its beginning
            self._held = self._held[:1]
            return b""
        body = self._take_held()
        self._tap.feed(body)
        return self._begin(body, now)

    def _open(self, data: bytes, now: float) -> bytes:
        """Examine the first parts of a body; return the bytes for the client."""
        tap = self._tap
        if not isinstance(tap, SseTap):
            if not data.startswith(_USUAL_BODY) and is_error(data):
                self.has_failed_first = is_engines_fault(data)
            return self._begin(data, now)
        held = sum(map(len, self._held)) if self._alive is None else self._alive.size
        if tap.deltas != tap.openings or tap.is_done or held + len(data) > FIRST_FRAME_BYTES:
            self.has_failed_first = tap.has_failed_first
            return self._begin(self._take_held() + data, now)
        self._at, self.gaps = 0.0, 0  # no token came, so this is no gap between tokens
        alive = b"" if self._alive is None else self._alive.feed(data)
        if self.is_committed:
            return self._framed(alive)
        if not alive:
            self._held.append(data)
            return b""
        # Commit. Only while there is no content do keep-alives overtake.
        self._held.clear()
        lines = self._lines()
        self.is_committed = True
        return lines + self._framed(alive)

    def _take_held(self) -> bytes:
        """Return all bytes that are held back, in order, and hold none."""
        if self.is_committed and self._alive is not None:
            return self._alive.rest()
        held = b"".join(self._held)
        self._held.clear()
        return held

    def _begin(self, data: bytes, now: float) -> bytes:
        """Send the head, unless it is sent, and `data`, the first content."""
        self._stage = PASSING
        self.first_at = now
        body = self._framed(data if self._filter is None else self._filter.feed(data))
        return body if self.is_committed else self._lines() + body

    def _filtered(self, data: bytes) -> bytes:
        """Return what may be sent of `data`, which the tap has just read."""
        usage_filter, tap = self._filter, self._tap
        if usage_filter is None or (usage_filter.is_idle and isinstance(tap, SseTap) and tap.is_plain):
            return data
        return usage_filter.feed(data)

    def _framed(self, data: bytes) -> bytes:
        return chunk_of(data) if self._is_chunked else data

    def _lines(self) -> bytes:
        return client_head(
            self._head,
            self._header_lines,
            is_chunked=self._is_chunked,
            length=self._length,
            keep_alive=self._keep_alive,
            is_stream=self.is_stream,
        )

    def _end_held(self, now: float) -> bytes:
        """Return the answer for a body that was held back whole."""
        self._stage = PASSING
        self.first_at = now
        head = self._head
        body = b"".join(self._held)
        plain = plain_of(body, head.coding, ERROR_BODY_BYTES)
        if self.is_committed:
            event = event_of_answer(head.status, plain or b"", self._path)
            return closing(event, is_modern=self._is_chunked)
        header_lines = self._header_lines
        if head.status in _WANT_RETRY_AFTER and not any(name == b"retry-after" for name, _ in head.headers):
            header_lines += b"retry-after: 1\r\n"
        if plain is not None:  # else the client gets what it may be able to decode
            wrapped = enveloped(head.status, plain, self._path)
            body = plain if wrapped is None else wrapped
            dropped = (b"content-encoding", b"" if wrapped is None else b"content-type")
            head.headers = tuple(item for item in head.headers if item[0] not in dropped)
            if wrapped is not None:
                header_lines += b"content-type: application/json\r\n"
        return client_head(head, header_lines, is_chunked=False, length=len(body), keep_alive=self._keep_alive) + body

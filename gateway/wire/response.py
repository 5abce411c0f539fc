"""Converts an engine's response to the client's: its content, the time of it, and the usage in it.

Does no I/O and reads no clock: `now` is monotonic seconds.

A body is read by an `EventStream` or a `JsonBody`, which return what may be sent of it. An error (status 400 and up) is
held whole, and so is an answer without a stream to a client that was committed to one.

- The head is held back until the first byte of body is sent (see `gateway.relay.relay`), of a stream until its first
  content, because an engine may answer 200, a comment and opening events, and then only an error.
- The body is framed anew: a stream and a body of unknown length in chunks, any other body by its length. A client of
  HTTP/1.0 gets no chunks; the end of the connection ends its body.
- Held errors are decoded and sent in the envelope of the route, unless they are in one already. An error that is too
  long to hold, or cannot be decoded, is passed on. So is a compressed stream: its events cannot be read.
- A keep-alive before the first content is sent at once, and the head before it. This commits the client to status 200
  and an event stream; another engine may still answer. An answer that is not an event stream can then only be sent as
  an error event.
- When an engine's stream breaks, `reset` returns the bytes that can still be added: an error event; only what was held
  back, if the stream stated its end before. It returns `None` for other bodies: then the closed connection is the only
  sign.
"""

from typing import Final

from specpilot.gateway.wire.body_reader import BodyReader, JsonBody
from specpilot.gateway.wire.content_coding import plain_of
from specpilot.gateway.wire.errors import enveloped, event_of_answer
from specpilot.gateway.wire.framing import ResponseHead
from specpilot.gateway.wire.heads import client_head
from specpilot.gateway.wire.routes import STORED
from specpilot.gateway.wire.sse import EventStream
from specpilot.gateway.wire.usage import Usage

ERROR_BODY_BYTES: Final = 262_144
"""Bytes of an error answer that are held back. A longer one is passed on."""

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
    """One response on its way to a client. See the module.

    `header_lines` are the gateway's. `is_modern`: the client speaks HTTP/1.1. `keep_alive`: its connection may serve
    another request after this. `path` is the route. `strips_usage`: the client did not ask for the usage that the
    stream states. `has_one_choice`: see `EventStream`. `passes_keep_alives`: keep-alives are sent before the first
    content. `is_committed`: the client has status 200 and the beginning of an event stream, from an earlier engine.
    `has_begun`: content was sent. `has_failed_first`: the body begins with an error that is the engine's fault. After
    each `feed`, `gaps` is the number of gaps between events that it ended, each of `gap_s` seconds.
    """

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
        self.is_stream = head.content_type.startswith(b"text/event-stream") and not head.coding
        self._head = head
        self._header_lines = header_lines
        self._path = path
        self._keep_alive = keep_alive
        self._length = None if self.is_stream or is_committed else head.length
        self._is_chunked = is_modern and self._length is None
        self._has_head = is_committed
        self._is_held = head.status >= _ERROR_BORDER or (is_committed and not self.is_stream)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._reader: BodyReader = (
            EventStream(
                has_one_choice=has_one_choice,
                strips_usage=strips_usage and not self._is_held,
                passes_keep_alives=passes_keep_alives or is_committed,
            )
            if self.is_stream
            else JsonBody()
        )
        self._at = 0.0
        self.has_begun = False
        self.has_failed_first = False
        self.first_at: float | None = None
        self.gap_s = 0.0
        self.gaps = 0
        self.usage = Usage()

    @property
    def events(self) -> int:
        """The number of events with data so far."""
        return self._reader.deltas

    @property
    def tokens(self) -> int:
        """The approximate number of output tokens in the events so far."""
        return self._reader.tokens

    @property
    def has_error(self) -> bool:
        """Whether the stream contains an error event of the engine."""
        return self._reader.has_error

    @property
    def has_failed(self) -> bool:
        """Whether an error event in the stream was the engine's fault."""
        return self._reader.has_failed

    @property
    def has_content(self) -> bool:
        """Whether the body has more than comments and opening events."""
        return not self.is_stream or self._reader.deltas > self._reader.openings

    @property
    def is_whole(self) -> bool:
        """Whether a body that has ended may count as complete: a stream has its end marker, or content and a frame."""
        if self.has_ended or self._is_held or not self.is_stream:
            return True
        return not self._head.is_open and (self.has_content or self._path in STORED)  # a stored one may be read already

    @property
    def has_ended(self) -> bool:
        """Whether a stream, of which no more will be read, stated its end: by its marker, last event or an error."""
        self._reader.end()
        return self._reader.is_done or self._reader.has_error

    def feed(self, data: bytes, now: float) -> bytes:
        """Process a part of the body; return the bytes for the client."""
        self.gaps = 0
        if self._is_held:
            return self._hold(data, now)
        reader = self._reader
        before = reader.deltas
        out = reader.feed(data)
        if not self.has_begun:
            if not reader.has_begun:
                return self._sent(out) if out else b""  # keep-alives only
            self._begin(now)
            self.has_failed_first = reader.has_failed_first
        count = reader.deltas - before
        if count:
            if self._at:
                self.gap_s, self.gaps = (now - self._at) / count, count
            self._at = now
        return self._sent(out)

    def complete(self, now: float) -> bytes:
        """The response is whole; return the bytes that are still held back, and its end."""
        if self._is_held:
            return self._end_held(now)
        self._reader.finish(self.usage)
        if not self.has_begun:
            self._begin(now)
        out = self._sent(self._reader.rest())
        return out + _LAST_CHUNK if self._is_chunked else out

    def reset(self, event: bytes) -> bytes | None:
        """The response will not be completed; return the bytes that report this (`event`), `None` if none can."""
        if not self.has_begun:
            return None
        self._reader.finish(self.usage)
        if not self.is_stream:
            return None
        if self.has_ended:  # an event behind the last one would be an error of a good answer, or a second error
            event = self._reader.rest()
        elif self._reader.is_within_frame:
            event = b"\n\n" + event
        return self._sent(event) + (_LAST_CHUNK if self._is_chunked else b"")

    def _begin(self, now: float) -> None:
        self.has_begun = True
        self.first_at = now

    def _sent(self, data: bytes) -> bytes:
        """Return `data` in the framing of the response, behind its head if that is still to be sent."""
        framed = chunk_of(data) if self._is_chunked else data
        if self._has_head:
            return framed
        self._has_head = True
        return self._lines() + framed

    def _hold(self, data: bytes, now: float) -> bytes:
        if self._has_head and self._held_bytes > ERROR_BODY_BYTES:
            return b""  # it will be sent as an event, which needs only its beginning
        self._held.append(data)
        self._held_bytes += len(data)
        if self._has_head or self._held_bytes <= ERROR_BODY_BYTES:
            return b""
        self._is_held = False
        self._begin(now)
        return self._sent(self._reader.feed(b"".join(self._held)))

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
        self._begin(now)
        head = self._head
        body = b"".join(self._held)
        plain = plain_of(body, head.coding, ERROR_BODY_BYTES)
        if self._has_head:
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

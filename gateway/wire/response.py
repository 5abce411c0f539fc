"""Converts an engine's response to the client's: its bytes, their time, and the usage in them.

Does no I/O and reads no clock: `now` is monotonic seconds.

| state | condition | bytes of the body |
|---|---|---|
| held | `_held` is a list | an error (status 400 and up), or no stream after a commit: kept until whole |
| opening | a stream, not `has_begun` | opening events: kept until the first frame with content is whole |
| committed | `is_committed`, not `has_begun` | as opening; the client has status 200 and keep-alives |
| passing | `has_begun` | sent as they arrive |

- The head is held back until the first byte of body is sent (see `gateway.relay.relay`). A stream is held back until
  its first content, because an engine may answer 200, a comment and opening events, and then only an error.
- Bytes of a body are passed on unchanged, chunk framing included. There are three exceptions: a client of HTTP/1.0 gets
  them without chunks, the usage event that the gateway requested is removed (`gateway.wire.usage_filter`), and a
  committed stream is framed anew.
- Held errors are decoded and sent in the envelope of the route, unless they are in one already. An error that is too
  long to hold, or cannot be decoded, is passed on. So is a compressed stream: its events cannot be read.
- A keep-alive before the first content (`gateway.wire.keep_alive`) is sent at once. It commits the client to status 200
  and an event stream; another engine may still answer. From then on the body is framed anew, because the engine that
  answers may use another framing than the one that began. An answer that is not an event stream can then only be sent
  as an error event.
- When an engine's stream breaks, `reset` returns the bytes that can still be added: an error event, if this is an event
  stream between two chunks; only the end, if the stream stated its end before. Otherwise it returns `None`: then the
  closed connection is the only sign for the client.
"""

from typing import Final

from specpilot.gateway.wire.content_coding import plain_of
from specpilot.gateway.wire.errors import enveloped, event_of_answer
from specpilot.gateway.wire.framing import Framer, LengthFramer, OpenFramer, ResponseHead
from specpilot.gateway.wire.heads import client_head
from specpilot.gateway.wire.keep_alive import KeepAlives
from specpilot.gateway.wire.sse import JsonTap, SseTap
from specpilot.gateway.wire.usage import Usage, is_engines_fault, is_error
from specpilot.gateway.wire.usage_filter import UsageFilter

ERROR_BODY_BYTES: Final = 262_144
"""Bytes of an error answer that are held back. A longer one is passed on."""

FIRST_FRAME_BYTES: Final = 65_536
"""Bytes of a stream, opening events included, that are held back. A longer first frame is no error event."""

_USUAL_BODY: Final = b'{"id"'
_ERROR_BORDER: Final = 400
_WANT_RETRY_AFTER: Final[tuple[int, ...]] = (429, 503)
_LAST_CHUNK: Final = b"0\r\n\r\n"


def closing(event: bytes, *, is_modern: bool) -> bytes:
    """Return the bytes that end a committed stream, for which no engine is left, with `event`."""
    return b"%x\r\n%s\r\n%s" % (len(event), event, _LAST_CHUNK) if is_modern else event


class Delivery:
    """One response on its way to a client. States: see the module.

    `header_lines` are the gateway's. `is_modern`: the client speaks HTTP/1.1. `keep_alive`: its connection may serve
    another request after this; it becomes `False` if the body can only end with the connection. `path` is the route.
    `strips_usage`: the client did not ask for the usage that the stream states. `passes_keep_alives`: keep-alives are
    sent before the first content. `is_committed`: the client has status 200 and the beginning of an event stream, from
    this engine or an earlier one. `has_begun`: content was sent. `has_failed_first`: the body begins with an error that
    is the engine's fault. After each `feed`, `gaps` is the number of gaps between events that it ended, each of `gap_s`
    seconds.
    """

    __slots__ = (
        "_alive", "_at", "_filter", "_first", "_framer", "_head", "_header_lines", "_held", "_is_modern", "_is_raw",
        "_path", "_tap", "_usage_frames", "first_at", "gap_s", "gaps", "has_begun", "has_failed_first", "is_committed",
        "keep_alive", "usage",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - independent properties of a response
        self,
        head: ResponseHead,
        framer: Framer,
        header_lines: bytes,
        *,
        is_modern: bool,
        keep_alive: bool,
        strips_usage: bool = False,
        path: str = "",
        passes_keep_alives: bool = False,
        is_committed: bool = False,
    ) -> None:
        self._head = head
        self._is_modern = is_modern
        self.is_committed = is_committed
        self._path = path
        self._framer = framer
        self._header_lines = header_lines
        self._is_raw = is_modern or not head.is_chunked
        self._held: list[tuple[bytes, list[bytes]]] | None = [] if head.status >= _ERROR_BORDER else None
        is_stream = head.content_type.startswith(b"text/event-stream") and not head.coding
        self._tap: SseTap | JsonTap = SseTap() if is_stream else JsonTap()
        self._filter: UsageFilter | None = None
        self._usage_frames = 0
        has_room = head.length is None or is_committed  # with a stated length no byte can be removed
        if strips_usage and has_room and self._held is None and isinstance(self._tap, SseTap):
            self._filter = UsageFilter(is_chunked=head.is_chunked and self._is_raw)
        self._first: list[bytes] = []  # the bytes that are held back in the opening state
        self._alive: KeepAlives | None = None
        if isinstance(self._tap, SseTap):
            if self._held is None and (passes_keep_alives or is_committed):
                self._alive = KeepAlives()
        elif is_committed:
            self._held = []
        self._at = 0.0
        self.has_failed_first = False
        self.keep_alive = keep_alive
        if is_committed:
            self._frame_anew()
        else:
            self.keep_alive = keep_alive and self._is_raw and (head.is_chunked or head.length is not None)
        self.has_begun = False
        self.first_at: float | None = None
        self.gap_s = 0.0
        self.gaps = 0
        self.usage = Usage()

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
        """Whether a body that has ended may count as complete: it is framed, or a stream with its end marker."""
        is_framed = not isinstance(self._framer, OpenFramer)
        return is_framed or self._held is not None or not self.is_stream or self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether a stream, of which no more will be read, stated its end: by its marker, last event or an error."""
        if not isinstance(self._tap, SseTap):
            return False
        self._tap.end()
        return self._tap.is_done or self._tap.has_error

    def feed(self, raw: bytes, payload: list[bytes], now: float) -> bytes:
        """Process a part of the body; return the bytes for the client."""
        self.gaps = 0
        if self._held is not None:
            self._held.append((raw, payload))
            if sum(len(part) for part, _ in self._held) <= ERROR_BODY_BYTES:
                return b""
            if self.is_committed:
                self._held = self._held[:1]  # it will be sent as an event, which needs only its beginning
                return b""
            held, self._held = self._held, None
            return self._begin_response(now) + b"".join(self._client_bytes(*parts) for parts in held)
        count = 0
        for part in payload:
            count += self._tap.feed(part)
        if count:
            if self._at:
                self.gap_s, self.gaps = (now - self._at) / count, count
            self._at = now
        if self.is_committed:
            data = b"".join(payload)
            return self._framed(self._filtered(data) if self.has_begun else self._released(data, now))
        if self._filter is None or self._can_pass(self._filter):
            output = raw if self._is_raw else b"".join(payload)
        else:
            output = self._filter.feed(raw, payload, self._framer)
        if self.has_begun:
            return output
        return self._judge(output, payload, now)

    def _frame_anew(self) -> None:
        """Commit: from now on use the payload alone."""
        self.is_committed = True
        self._first.clear()
        if self._filter is not None:
            self._filter = UsageFilter(is_chunked=False)

    def _filtered(self, data: bytes) -> bytes:
        return data if self._filter is None else self._filter.feed(data, [data], self._framer)

    def _framed(self, data: bytes) -> bytes:
        """Return `data` in the framing of a committed stream."""
        return b"%x\r\n%s\r\n" % (len(data), data) if data and self._is_modern else data

    def _last(self, data: bytes) -> bytes:
        """Return `data` and the end of a committed stream."""
        return self._framed(data) + (_LAST_CHUNK if self._is_modern else b"")

    def _released(self, data: bytes, now: float) -> bytes:
        """Process a part of a committed stream without content yet; return the bytes for the client.

        Only while there is no content do keep-alives overtake. With it comes the rest, in the engine's order.
        """
        assert self._alive is not None
        if self._is_open():
            return self._alive.feed(data)
        self._begin_content(now)
        return self._filtered(self._alive.rest() + data)

    def _is_open(self) -> bool:
        """Whether the stream has no content yet and may still be held back."""
        tap = self._tap
        assert isinstance(tap, SseTap)
        held = sum(map(len, self._first)) if self._alive is None else self._alive.size
        if tap.deltas != tap.openings or tap.is_done or held > FIRST_FRAME_BYTES:
            return False
        self._at, self.gaps = 0.0, 0  # no token came, so this is no gap between tokens
        return True

    def _begin_content(self, now: float) -> None:
        assert isinstance(self._tap, SseTap)
        self.has_failed_first = self._tap.has_failed_first
        self.has_begun = True
        self.first_at = now

    def _can_pass(self, usage_filter: UsageFilter) -> bool:
        """Whether the read has whole chunks of whole events without usage, as seen by the tap."""
        tap, framer = self._tap, self._framer
        assert isinstance(tap, SseTap)
        had, self._usage_frames = self._usage_frames, tap.usage_frames
        if usage_filter.is_reframing or tap.has_rest or tap.usage_frames != had:
            return False
        return framer.is_between_chunks or framer.is_done

    def _judge(self, output: bytes, payload: list[bytes], now: float) -> bytes:
        """Examine the first parts of a body; return the bytes for the client."""
        tap = self._tap
        if not isinstance(tap, SseTap):
            if len(payload) > 0 and not payload[0].startswith(_USUAL_BODY) and is_error(payload[0]):
                self.has_failed_first = is_engines_fault(payload[0])
            return self._begin_response(now) + output
        if not self._first and tap.deltas != tap.openings:  # the usual stream: it begins with content
            self.has_failed_first = tap.has_failed_first
            return self._begin_response(now) + output
        self._first.append(output)
        alive = b"" if self._alive is None else self._alive.feed(b"".join(payload))
        if not self._is_open():
            self.has_failed_first = tap.has_failed_first
            return self._begin_response(now)
        if not alive:
            return b""
        self._frame_anew()
        return self._lines(is_chunked=self._is_modern, length=None) + self._framed(alive)

    def complete(self, now: float) -> bytes:
        """The response is whole; return the bytes that are still held back."""
        self._tap.finish(self.usage)
        if self.is_committed:
            return self._last(self._end_committed(now))
        if self._held is not None:
            return self._error_reply(now)
        rest = b"" if self._filter is None or self._head.is_chunked else self._filter.rest()
        return rest if self.has_begun else self._begin_response(now) + rest

    def _end_committed(self, now: float) -> bytes:
        """Return the remaining bytes of a committed stream that has ended."""
        if self._held is not None:
            body = b"".join(part for _, payload in self._held for part in payload)
            self.has_begun, self.first_at = True, now
            plain = plain_of(body, self._head.coding, ERROR_BODY_BYTES)
            return event_of_answer(self._head.status, plain or b"", self._path)
        rest = b""
        if not self.has_begun and self._alive is not None:
            rest = self._filtered(self._alive.rest())
            self._begin_content(now)
        return rest if self._filter is None else rest + self._filter.rest()

    def reset(self, event: bytes) -> bytes | None:
        """The response will not be completed; return the bytes that report this (`event`), `None` if none can."""
        if not self.has_begun:
            return None
        self._tap.finish(self.usage)
        if not isinstance(self._tap, SseTap) or (isinstance(self._framer, LengthFramer) and not self.is_committed):
            return None
        if self.has_ended:  # an event behind the last one would be an error of a good answer, or a second error
            event = b"" if self._filter is None else self._filter.rest()
        elif not self._tap.is_between_events:
            event = b"\n\n" + event
        if self.is_committed:
            return self._last(event)
        if not self._head.is_chunked or not self._is_raw:
            return event
        can_add = self._framer.is_between_chunks or (self._filter is not None and self._filter.is_reframing)
        return self._last(event) if can_add else None

    def _client_bytes(self, raw: bytes, payload: list[bytes]) -> bytes:
        return raw if self._is_raw else b"".join(payload)

    def _begin_response(self, now: float) -> bytes:
        self.has_begun = True
        self.first_at = now
        lines = self._lines(is_chunked=self._head.is_chunked and self._is_raw, length=self._head.length)
        if not self._first:
            return lines
        first = b"".join(self._first)
        self._first.clear()
        return lines + first

    def _lines(self, *, is_chunked: bool, length: int | None) -> bytes:
        return client_head(
            self._head,
            self._header_lines,
            is_chunked=is_chunked,
            length=length,
            keep_alive=self.keep_alive,
            is_stream=self.is_stream,
        )

    def _error_reply(self, now: float) -> bytes:
        self.has_begun = True
        self.first_at = now
        head = self._head
        body = b"".join(part for _, payload in self._held or () for part in payload)
        header_lines = self._header_lines
        if head.status in _WANT_RETRY_AFTER and not any(name == b"retry-after" for name, _ in head.headers):
            header_lines += b"retry-after: 1\r\n"
        plain = plain_of(body, head.coding, ERROR_BODY_BYTES)
        if plain is not None:  # else the client gets what it may be able to decode
            wrapped = enveloped(head.status, plain, self._path)
            body = plain if wrapped is None else wrapped
            dropped = (b"content-encoding", b"" if wrapped is None else b"content-type")
            head.headers = tuple(item for item in head.headers if item[0] not in dropped)
            if wrapped is not None:
                header_lines += b"content-type: application/json\r\n"
        return client_head(head, header_lines, is_chunked=False, length=len(body), keep_alive=self.keep_alive) + body

"""From an engine's response to what the client gets: which bytes, when, and what was learnt on the way.

Bytes of a body go on as they came, chunk framing included; only a client of HTTP/1.0 gets them without. The head is
held back until the first byte of body (see `gateway.relay`). Error answers (status 400 and up) are held until they
are whole, then sent in OpenAI's envelope, unless they are in one already or too long to hold.

When the engine's stream breaks, `broken` returns what may still be added: an error event, if this is an event stream
standing between two chunks. Otherwise `None`: only cutting the connection tells the client. Does no I/O and reads
no clock: `now` is monotonic seconds.
"""

from gateway.errors import enveloped
from gateway.framing import Framer, LengthFramer, OpenFramer, ResponseHead
from gateway.heads import client_head
from gateway.metrics import Histogram
from gateway.sse import JsonTap, SseTap, Usage

ERROR_BODY_BYTES = 262_144
_ERROR_BORDER = 400
_WANT_RETRY_AFTER = (429, 503)
_LAST_CHUNK = b"0\r\n\r\n"


class Delivery:
    """One response on its way to a client.

    `own` are the gateway's header lines, `is_modern` whether the client speaks HTTP/1.1, `keep_alive` whether its
    connection may serve another request after this; it is `False` afterwards if the body can only end with the
    connection.
    """

    __slots__ = (
        "_at", "_framer", "_head", "_held", "_is_raw", "_own", "_tap", "first_at", "has_begun", "keep_alive", "usage",
    )  # fmt: skip

    def __init__(self, head: ResponseHead, framer: Framer, own: bytes, *, is_modern: bool, keep_alive: bool) -> None:
        self._head = head
        self._framer = framer
        self._own = own
        self._is_raw = is_modern or not head.is_chunked
        self._held: list[tuple[bytes, list[bytes]]] | None = [] if head.status >= _ERROR_BORDER else None
        self._tap: SseTap | JsonTap = SseTap() if head.content_type.startswith(b"text/event-stream") else JsonTap()
        self._at = 0.0
        self.keep_alive = keep_alive and self._is_raw and (head.is_chunked or head.length is not None)
        self.has_begun = False
        self.first_at: float | None = None
        self.usage = Usage()

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream of events."""
        return type(self._tap) is SseTap

    @property
    def events(self) -> int:
        """How many events with data have passed."""
        return self._tap.deltas if isinstance(self._tap, SseTap) else 0

    @property
    def has_error(self) -> bool:
        """Whether the engine put an error event into its stream."""
        return isinstance(self._tap, SseTap) and self._tap.has_error

    @property
    def is_whole(self) -> bool:
        """Whether a body that has ended may be taken for whole: framed, or at least a stream that said `[DONE]`."""
        return not isinstance(self._framer, OpenFramer) or not isinstance(self._tap, SseTap) or self._tap.is_done

    def take(self, raw: bytes, payload: list[bytes], now: float, gaps: Histogram | None) -> bytes:
        """Take over a part of the body; return what goes to the client now. Gaps between events count in `gaps`."""
        if self._held is not None:
            self._held.append((raw, payload))
            if sum(len(part) for part, _ in self._held) <= ERROR_BODY_BYTES:
                return b""
            held, self._held = self._held, None
            return self._begin(now) + b"".join(self._passed(*parts) for parts in held)
        count = 0
        for part in payload:
            count += self._tap.feed(part)
        if count:
            if self._at and gaps is not None:
                gaps.observe((now - self._at) / count, count)
            self._at = now
        passed = raw if self._is_raw else b"".join(payload)
        return passed if self.has_begun else self._begin(now) + passed

    def end(self, now: float) -> bytes:
        """The response is whole; return what of it has not gone out."""
        self._tap.finish(self.usage)
        if self._held is not None:
            return self._error_reply(now)
        return b"" if self.has_begun else self._begin(now)

    def broken(self, event: bytes) -> bytes | None:
        """The response will never be whole; return what tells the client so (by `event`), `None` if nothing can."""
        if not self.has_begun:
            return None
        self._tap.finish(self.usage)
        if not isinstance(self._tap, SseTap) or isinstance(self._framer, LengthFramer):
            return None
        if not self._tap.is_between_events:
            event = b"\n\n" + event
        if not self._head.is_chunked:
            return event
        if not self._is_raw:
            return event
        return b"%x\r\n%s\r\n%s" % (len(event), event, _LAST_CHUNK) if self._framer.is_between_chunks else None

    def _passed(self, raw: bytes, payload: list[bytes]) -> bytes:
        return raw if self._is_raw else b"".join(payload)

    def _begin(self, now: float) -> bytes:
        self.has_begun = True
        self.first_at = now
        head = self._head
        return client_head(
            head,
            self._own,
            is_chunked=head.is_chunked and self._is_raw,
            length=head.length,
            keep_alive=self.keep_alive,
        )

    def _error_reply(self, now: float) -> bytes:
        self.has_begun = True
        self.first_at = now
        head = self._head
        body = b"".join(part for _, payload in self._held or () for part in payload)
        own = self._own
        if head.status in _WANT_RETRY_AFTER and not any(name == b"retry-after" for name, _ in head.headers):
            own += b"retry-after: 1\r\n"
        wrapped = enveloped(head.status, body)
        if wrapped is not None:
            body = wrapped
            headers = tuple(item for item in head.headers if item[0] not in (b"content-type", b"content-encoding"))
            head = ResponseHead(
                head.status, headers, length=None, is_chunked=False, is_kept_alive=True, content_type=b""
            )
            own += b"content-type: application/json\r\n"
        return client_head(head, own, is_chunked=False, length=len(body), keep_alive=self.keep_alive) + body

"""An engine's HTTP/1.1 response: its head, and the end of its body. Pure.

Parsing is strict: when two sides see different ends of a message, responses can be smuggled.

`parse_head` checks the whole head before it uses any of it. A framer then follows the body. `feed` returns how many of
the given bytes belong to this message, and leaves the body without chunk framing in `payload`. Clients get the body
framed anew (`gateway.wire.response`).

A chunked body (`ChunkedFramer`):

| state      | expects                                | next state                         |
|------------|----------------------------------------|------------------------------------|
| `SIZE`     | a line with the size of the next chunk | `DATA`, or `TRAILERS` after size 0 |
| `DATA`     | `_remaining_bytes` of the chunk        | `AFTER`                            |
| `AFTER`    | the line break that closes the chunk   | `SIZE`                             |
| `TRAILERS` | trailers, up to an empty line          | done                               |

`_line` holds the incomplete line of `SIZE`, `AFTER` and `TRAILERS` from earlier reads. It is read again with the next.
"""

import re
from abc import ABC, abstractmethod
from typing import Final

LENGTH_DIGITS: Final = 15
_ZERO: Final = ord("0")
_NINE: Final = ord("9")

_READ: Final = frozenset((b"content-length", b"transfer-encoding", b"connection", b"content-type", b"content-encoding"))
_known: dict[bytes, tuple[bytes, bytes]] = {}
"""Parsed header lines, by their bytes."""
_KNOWN_MAX: Final = 512
_KNOWN_BYTES: Final = 128
_USUAL_STATUS_LINE: Final = b"HTTP/1.1 200 OK"
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_NAME: Final = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_TEXT: Final = b"\t" + bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))
_CHUNK_SIZE: Final = re.compile(rb"([0-9a-fA-F]{1,12})(?:[ \t]*|;[^\x00-\x08\x0a-\x1f\x7f]*)\r\n")
_TRAILERS: Final = re.compile(rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n)*\r\n")
_DIGIT: Final = bytes(b"0123456789abcdef".find(bytes((octet,)).lower()) & 0xFF for octet in range(256))
"""The value of each octet as a hexadecimal digit; 255 for other octets."""

_USUAL_SIZE_DIGITS: Final = 8
_LINE_BYTES: Final = 4096
_TRAILER_BYTES: Final = 16_384
_BODILESS: Final[tuple[int, ...]] = (204, 304)
_PER_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"proxy-authenticate")
)


def decimal(text: bytes) -> int:
    """Return the number in `text`, of at most `LENGTH_DIGITS` digits; -1 if it is none.

    Digit by digit: compiled, this takes a fraction of the time of `int` with bytes.
    """
    if not text or len(text) > LENGTH_DIGITS:
        return -1
    number = at = 0
    while at < len(text):
        octet = text[at]
        if octet < _ZERO or octet > _NINE:
            return -1
        number = 10 * number + octet - _ZERO
        at += 1
    return number


class FramingError(ValueError):
    """The engine's bytes are not a valid HTTP/1.1 response."""


class Framer(ABC):
    """Follows one body. `is_done`: the body is whole. `payload`: the content in the bytes that were fed last."""

    __slots__ = ("is_done", "payload")

    def __init__(self, *, is_done: bool = False) -> None:
        self.payload = b""
        self.is_done = is_done

    @abstractmethod
    def feed(self, data: bytes) -> int:
        """Read `data`; return how many of its bytes belong to the body. Raises `FramingError`."""


class ResponseHead:
    """Status and end-to-end headers (names in lower case) of a response, and the delimitation of its body.

    `length` is `None` when the body is chunked or ends with the connection. `headers` lacks the two length headers.
    `coding` is the value of `Content-Encoding`, empty if the body is not coded.
    """

    def __init__(self, status: int, *, is_kept_alive: bool) -> None:
        self.status = status
        self.is_kept_alive = is_kept_alive
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.length: int | None = None
        self.is_chunked = False
        self.content_type = b""
        self.coding = ""

    @property
    def is_open(self) -> bool:
        """Whether the body ends with the connection."""
        return not self.is_chunked and self.length is None

    def framer(self) -> "Framer":
        """Return the framer for this response's body."""
        if self.is_chunked:
            return ChunkedFramer()
        if self.length is not None:
            return LengthFramer(self.length)
        return OpenFramer()


def parse_head(text: bytes) -> ResponseHead:  # noqa: C901, PLR0912 - one branch a header
    """Return the parsed head; `text` runs from the status line to the last header's CRLF.

    Raises `FramingError` for anything that HTTP/1.1 does not allow, for both length headers at once and for a coding
    other than chunked.
    """
    lines = text.split(b"\r\n")
    if lines.pop() or not lines:
        raise FramingError("the head is not HTTP/1.1")
    status, is_modern = _read_status(lines[0])
    head = ResponseHead(status, is_kept_alive=is_modern)
    stated: bytes | None = None
    dropped: frozenset[bytes] = _PER_HOP
    headers: list[tuple[bytes, bytes]] = []
    for field in lines[1:]:
        header = _known.get(field)
        if header is None:
            header = _read_field(field)
        name, value = header
        if name not in _READ:  # one search, instead of a comparison with each
            headers.append(header)
        elif name == b"content-length":
            if stated is not None and stated != value:
                raise FramingError("content-length is not one number")
            stated = value
        elif name == b"transfer-encoding":
            if head.is_chunked or not is_modern or value.lower() != b"chunked":
                raise FramingError("transfer-encoding is not chunked, once, in HTTP/1.1")
            head.is_chunked = True
        elif name == b"connection":
            tokens = {token.strip().lower() for token in value.split(b",")}
            head.is_kept_alive = (head.is_kept_alive or b"keep-alive" in tokens) and b"close" not in tokens
            dropped |= tokens - {b"close"}
        else:
            if name == b"content-type":
                head.content_type = value.lower()
            elif value.lower() != b"identity":
                coding = value.decode("latin-1")
                head.coding = f"{head.coding},{coding}" if head.coding else coding
            headers.append(header)
    head.headers = tuple(header for header in headers if header[0] not in dropped)
    head.length = None if stated is None else decimal(stated)
    if head.length is not None and head.length < 0:
        raise FramingError("content-length is not one number")
    if head.is_chunked and head.length is not None:
        raise FramingError("both content-length and transfer-encoding")
    if status in _BODILESS:
        head.is_chunked, head.length, head.content_type = False, 0, b""
    return head


def _read_field(field: bytes) -> tuple[bytes, bytes]:
    """Return name and value of a header line, and cache them, because engines repeat most lines in each answer."""
    name, colon, value = field.partition(b":")
    name = name.lower()
    if not colon or not name or name.translate(None, _NAME) or value.translate(None, _TEXT):
        raise FramingError("the head is not HTTP/1.1")
    header = (name, value.strip(b" \t"))
    if name != b"x-request-id" and len(field) <= _KNOWN_BYTES:
        if len(_known) >= _KNOWN_MAX:
            _known.clear()  # mostly old dates and lengths
        _known[field] = header
    return header


def _read_status(line: bytes) -> tuple[int, bool]:
    """Return the status, and whether the version is HTTP/1.1 rather than 1.0."""
    if line == _USUAL_STATUS_LINE:
        return 200, True
    match = _STATUS_LINE.fullmatch(line)
    if match is None:
        raise FramingError("the head is not HTTP/1.1")
    return int(match[2]), match[1] == b"1"


class LengthFramer(Framer):
    """A body of a stated length."""

    __slots__ = ("remaining_bytes",)

    def __init__(self, length: int) -> None:
        """`length` is in bytes."""
        super().__init__(is_done=length == 0)
        self.remaining_bytes = length

    def feed(self, data: bytes) -> int:
        """Count down the stated length."""
        size = min(len(data), self.remaining_bytes)
        self.remaining_bytes -= size
        self.is_done = self.remaining_bytes == 0
        self.payload = data if size == len(data) else data[:size]
        return size


class OpenFramer(Framer):
    """A body that ends with its connection. Whether it was complete is unknown."""

    __slots__ = ()

    def feed(self, data: bytes) -> int:
        """Accept all bytes."""
        self.payload = data
        return len(data)


class ChunkedFramer(Framer):
    """A chunked body. States: see the module."""

    __slots__ = ("_line", "_remaining_bytes", "_state")

    SIZE = 0
    DATA = 1
    AFTER = 2
    TRAILERS = 3

    def __init__(self) -> None:
        super().__init__()
        self._state = self.SIZE
        self._remaining_bytes = 0
        self._line = b""

    def feed(self, data: bytes) -> int:
        """Read chunks, up to the end of the trailers. Raises `FramingError`."""
        held = len(self._line)
        if held:
            data = self._line + data
            self._line = b""
        payload: list[bytes] = []
        position, end = 0, len(data)
        while position < end and not self.is_done:
            if self._state == self.DATA:
                size = min(self._remaining_bytes, end - position)
                payload.append(data[position : position + size])
                position += size
                self._remaining_bytes -= size
                if self._remaining_bytes == 0:
                    self._state = self.AFTER
                continue
            if self._state == self.SIZE:
                size = self._size(data, position)
            elif self._state == self.AFTER:
                size = self._after(data, position)
            else:
                size = self._trailers(data, position)
            if size == 0:  # the line is not whole yet
                self._line = data[position:]
                position = end
            position += size
        self.payload = payload[0] if len(payload) == 1 else b"".join(payload)
        return position - held

    def _size(self, data: bytes, position: int) -> int:
        at, size = position, 0  # the frequent case first: a short size line
        while at < len(data) and at - position < _USUAL_SIZE_DIGITS and _DIGIT[data[at]] < 16:  # noqa: PLR2004 - hexadecimal
            size = 16 * size + _DIGIT[data[at]]
            at += 1
        # Not `startswith`: from a place in the bytes it takes ten times as long.
        if at == position or data[at : at + 2] != b"\r\n":
            text = data[position : position + _LINE_BYTES]
            match = _CHUNK_SIZE.match(text)
            if match is None:
                if b"\n" in text or len(text) == _LINE_BYTES:
                    raise FramingError("a chunk's size is not a hexadecimal number")
                return 0
            size = int(match[1], 16)
            at = position + match.end() - 2
        self._remaining_bytes = size
        self._state = self.DATA if size else self.TRAILERS
        return at + 2 - position

    def _after(self, data: bytes, position: int) -> int:
        line_break = data[position : position + 2]
        if line_break == b"\r\n":
            self._state = self.SIZE
            return 2
        if line_break != b"\r":
            raise FramingError("a chunk is longer than its size says")
        return 0

    def _trailers(self, data: bytes, position: int) -> int:
        if data[position : position + 2] == b"\r\n":
            self.is_done = True
            return 2
        text = data[position : position + _TRAILER_BYTES]
        end = text.find(b"\r\n\r\n") + 4
        if end < 4:  # noqa: PLR2004 - there is none
            if len(text) == _TRAILER_BYTES:
                raise FramingError("the trailers are too long")
            return 0
        if _TRAILERS.fullmatch(text, 0, end) is None:
            raise FramingError("the trailers are not headers")
        self.is_done = True
        return end

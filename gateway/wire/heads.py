"""The heads that the gateway writes: the request to an engine, the response to a client. Pure.

A client's headers are passed on to the engine, except headers of this hop, credentials (`Authorization`, `x-api-key`,
cookies), headers that the gateway sets itself (host, length, class, request id) and `accept-encoding`: engines answer
uncompressed, so that the gateway can read usage and events. An engine's headers are passed on to the client in the same
way, and the gateway's own `x-` headers replace any of the same name.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus
from math import ceil
from typing import Final
from urllib.parse import quote

from specpilot.gateway.wire.errors import BadHeadError, GatewayError, HeadTooLargeError, body_of
from specpilot.gateway.wire.framing import LENGTH_DIGITS, ResponseHead, decimal
from specpilot.gateway.wire.origins import EXPOSED
from specpilot.policy.names import is_class_name

HEAD_BYTES: Final = 65_536
"""Bytes of a request's line and headers, and between two bytes of its body; uvicorn's own bound."""

HEADERS_MAX: Final = 129
"""One more than the headers of a request. Each costs 0.7 us here, and more at the engine."""

K_MAX_HEADER: Final = b"x-specpilot-k-max"
"""The ceiling on K: in a client's request the one that it asks for, elsewhere the one in force."""

_CLASS_HEADER: Final = b"x-traffic-class"
_PRIORITY_HEADER: Final = b"x-vllm-priority"
"""vLLM's own header (0.32), over a body's `priority`: a lower number goes first."""

SESSION_HEADERS: Final = frozenset(
    (
        b"x-session-id",
        b"x-claude-code-session-id",  # Claude Code
        b"session-id",  # Codex
        b"session_id",  # Codex before 0.131
        b"x-session-affinity",  # opencode
        b"x-opencode-session",  # opencode, for a provider of its own name
    )
)
"""The headers that name a request's session: the gateway's own, and those of agents."""

_OWN_SESSION_HEADER: Final = b"x-session-id"
_BLANKS: Final = b" \t"
"""White space that may surround a header's value and is no part of it (RFC 9110, 5.5). httptools keeps what follows."""

_VERSIONS: Final[tuple[str, ...]] = ("1.1", "1.0")
_READ: Final = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"upgrade",
        b"http2-settings",
        b"expect",
        b"authorization",
        b"x-api-key",
        b"api-key",
        b"cookie",
        b"accept-encoding",
        b"content-encoding",
        b"origin",
        b"x-request-id",
        _CLASS_HEADER,
        _PRIORITY_HEADER,
        K_MAX_HEADER,
        b"x-data-parallel-rank",  # with it a client would choose the rank in vLLM instead of the balancer
        *SESSION_HEADERS,
    )
)
_CORS_NAMES: Final = (
    b"allow-origin", b"allow-credentials", b"allow-headers", b"allow-methods", b"allow-private-network",
    b"expose-headers", b"max-age",
)  # fmt: skip
_GATEWAY_HEADERS: Final = frozenset(
    (
        # An engine's limits are for the gateway's key, not for the client's.
        *(name.encode() for name in EXPOSED if name != "retry-after"),
        # Only the gateway decides which pages may read an answer.
        *(b"access-control-%s" % name for name in _CORS_NAMES),
    )
)
_GATEWAY_HEADERS_OF_STREAMS: Final = _GATEWAY_HEADERS | {b"cache-control", b"x-accel-buffering"}
_STREAM_LINES: Final = b"cache-control: no-cache, no-transform\r\nx-accel-buffering: no\r\n"
"""nginx, and proxies that compress, would otherwise buffer a stream."""
_REQUEST_ID: Final = re.compile(rb"[!-~]{1,128}")
_HEADER_SAFE: Final = "!#$&'()*+,/:;=?@[]^`{|}"
_THREE_DIGITS: Final = tuple(b"%03d" % value for value in range(1000))
_STATUS: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
    for status in HTTPStatus
    if status >= 200  # noqa: PLR2004
}


class RequestHead:
    """The headers of a request that the gateway reads. `forwarded` are the headers for the engine, as bytes.

    `coding` is the value of `Content-Encoding`, all its lines joined; engines get the body without it. `path` is the
    relayed route. `target` is path and query for the engine if the route is a pattern of many paths, else empty.
    `is_modern`: the client speaks HTTP/1.1, so it understands chunks and keeps its connection. `request_id` is empty
    until the gateway chooses one, if the client sent none.
    """

    def __init__(self, *, is_modern: bool) -> None:
        self.forwarded = b""
        self.api_key: bytes | None = None
        self.coding = ""
        self.origin: bytes | None = None
        self.traffic_class: str | None = None
        self.k_max: bytes | None = None
        self.request_id = b""
        self.session: str | None = None
        self.method = b""
        self.path = ""
        self.target = ""
        self.length: int | None = None
        self.is_chunked = False
        self.is_expecting = False
        self.is_modern = is_modern


def read_request_head(  # noqa: C901, PLR0912, PLR0915 - one branch a header
    headers: Iterable[tuple[bytes, bytes]], *, is_modern: bool = True
) -> RequestHead:
    """Return the parsed `headers` (names in lower case); `is_modern`: they are of HTTP/1.1.

    The HTTP parser has checked the characters and that there is one length. The first API key in an `Authorization`
    counts, else the first in another header; empty ones do not. Raises `BadHeadError` for headers that the
    parser accepts and another server might read differently: a coding besides chunked, chunks in HTTP/1.0, two hosts.
    """
    head = RequestHead(is_modern=is_modern)
    parts: list[bytes] = []
    dropped: set[bytes] | None = None
    has_host = False
    other_key = b""
    for name, value in headers:
        if name not in _READ:
            parts += (name, b": ", value, b"\r\n")
        elif name == b"accept-encoding":  # in nearly every request, and dropped: it need not pass all other branches
            continue
        elif name == b"authorization":
            scheme, _, secret = value.partition(b" ")
            if scheme.lower() == b"bearer":
                head.api_key = head.api_key or secret.strip(_BLANKS)
        elif name == b"host":
            if has_host:
                raise BadHeadError("there are two Host headers; send one")
            has_host = True
        elif name == b"content-length":
            head.length = decimal(value.rstrip(_BLANKS))
            if head.length < 0:
                raise BadHeadError(f"content-length is not one number of at most {LENGTH_DIGITS} digits")
        elif name == b"x-request-id":
            identifier = value.strip(_BLANKS)
            head.request_id = identifier if _REQUEST_ID.fullmatch(identifier) else b""
        elif name == _CLASS_HEADER:
            head.traffic_class = value.strip(_BLANKS).decode("latin-1") or None
        elif name in SESSION_HEADERS:
            session = value.strip(_BLANKS).decode("latin-1")
            if session and (head.session is None or name == _OWN_SESSION_HEADER):
                head.session = session
            parts += (name, b": ", value, b"\r\n")
        elif name == K_MAX_HEADER:
            head.k_max = value.strip(_BLANKS)
        elif name == b"connection":
            tokens = {token.strip().lower() for token in value.split(b",")} - {b"close", b"keep-alive"}
            dropped = (dropped or set()) | tokens
        elif name in (b"x-api-key", b"api-key"):
            other_key = other_key or value.strip(_BLANKS)
        elif name == b"transfer-encoding":
            if not is_modern or head.is_chunked or value.rstrip(_BLANKS).lower() != b"chunked":
                raise BadHeadError("transfer-encoding may only be chunked, once, and in HTTP/1.1")
            head.is_chunked = True
        elif name == b"content-encoding":
            head.coding = f"{head.coding},{value.decode('latin-1')}" if head.coding else value.decode("latin-1")
        elif name == b"origin":
            head.origin = value.strip(_BLANKS)
        elif name == b"expect":
            head.is_expecting = value.strip(_BLANKS).lower() == b"100-continue"
    head.api_key = head.api_key or other_key or None
    if dropped:
        parts = [part for at in range(0, len(parts), 4) if parts[at] not in dropped for part in parts[at : at + 4]]
    head.forwarded = b"".join(parts)
    return head


def head_fault(version: str, target: bytes, headers: list[tuple[bytes, bytes]]) -> GatewayError | None:
    """Return the error for a request of an unknown HTTP `version`, or with too many headers or bytes of them."""
    if version not in _VERSIONS:
        return BadHeadError(f"the request is not HTTP/1.1 but HTTP/{version}")
    size = len(target)
    for name, value in headers:  # `sum` would make a generator, for every request
        size += len(name) + len(value)
    return head_too_large() if size > HEAD_BYTES or len(headers) >= HEADERS_MAX else None


def head_too_large() -> HeadTooLargeError:
    """Return the error for a request with too many headers, or too many bytes of them."""
    fault = f"the request's line and headers are larger than {HEAD_BYTES} bytes, or more than {HEADERS_MAX - 1}"
    return HeadTooLargeError(f"{fault}; send fewer")


def without_upgrade(method: bytes, target: bytes, version: str, headers: list[tuple[bytes, bytes]]) -> bytes:
    """Return the head of a request without its upgrade, to be parsed again. A server may ignore an upgrade."""
    lines = [b"%s %s HTTP/%s" % (method, target, version.encode())]
    lines += [b": ".join(item) for item in headers if item[0] != b"upgrade"]
    return b"\r\n".join(lines) + b"\r\n\r\n"


@lru_cache(maxsize=1024)
def decision_lines(traffic_class: str, priority: int, k_max: int | None) -> bytes:
    """Return the header lines that state the gateway's decisions about a request to its engine."""
    if not is_class_name(traffic_class):
        raise ValueError(f"{traffic_class!r} is not a class name")
    lines = b"%s: %s\r\n" % (_CLASS_HEADER, traffic_class.encode())
    if k_max is not None:
        lines += b"%s: %d\r\n" % (K_MAX_HEADER, k_max)
    if priority:
        lines += b"%s: %d\r\n" % (_PRIORITY_HEADER, priority)
    return lines


def client_head(  # noqa: PLR0913 - independent properties of a head
    head: ResponseHead, lines: bytes, *, is_chunked: bool, length: int | None, keep_alive: bool, is_stream: bool = False
) -> bytes:
    """Return the head of the response to a client; `lines` are the gateway's header lines.

    `is_stream`: the body is an event stream, which no proxy may store or buffer.
    """
    parts = [_STATUS.get(head.status) or b"HTTP/1.1 %d \r\n" % head.status]
    dropped = _GATEWAY_HEADERS_OF_STREAMS if is_stream else _GATEWAY_HEADERS
    for name, value in head.headers:
        if name not in dropped:
            parts += (name, b": ", value, b"\r\n")
    parts.append(lines)
    if is_stream:
        parts.append(_STREAM_LINES)
    if is_chunked:
        parts.append(b"transfer-encoding: chunked\r\n")
    elif length is not None and head.status not in (204, 304):
        parts.append(b"content-length: %d\r\n" % length)
    parts.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    return b"".join(parts)


def header_text(text: str) -> bytes:
    """Return `text` as a header value, percent-encoded if it has a space or letters beyond ASCII."""
    return text.encode() if text.isascii() and " " not in text else quote(text, safe=_HEADER_SAFE).encode()


def thousandths(count: int) -> bytes:
    """Return `count` thousandths, not negative, as a decimal number.

    Integers, because formatting a float takes four times as long, three times in each answer and its line of the access
    log.
    """
    return b"%d.%s" % (count // 1000, _THREE_DIGITS[count % 1000])


def milliseconds(seconds: float) -> bytes:
    """Return `seconds` as milliseconds with three decimals; 0 for negative values."""
    return thousandths(int(seconds * 1e6 + 0.5) if seconds > 0.0 else 0)


def rate_lines(kind: bytes, limit: int, remaining: int, reset_s: float) -> bytes:
    """Return the header lines about one limit of the client's key, in OpenAI's form.

    `kind` is `requests` or `tokens`; `remaining` would pass now, and the full limit in `reset_s` seconds.
    """
    return b"x-ratelimit-limit-%s: %d\r\nx-ratelimit-remaining-%s: %d\r\nx-ratelimit-reset-%s: %s\r\n" % (
        *(kind, limit, kind, remaining),
        *(kind, duration(reset_s).encode()),
    )


def duration(seconds: float) -> str:
    """Return `seconds` as OpenAI writes them: `120ms`, `8.64s`, `6m0s`."""
    milliseconds = ceil(seconds * 1000)
    if 0 < milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


def error_reply(error: GatewayError, lines: bytes, *, keep_alive: bool, is_head: bool = False, path: str = "") -> bytes:
    """Return a whole response with `error` for a client of the route `path`; without its body if `is_head`."""
    body = body_of(error, path)
    parts = [_STATUS[error.status], b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body), lines]
    parts += [f"{name}: {value}\r\n".encode() for name, value in error.headers.items()]
    parts.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
    if not is_head:
        parts.append(body)
    return b"".join(parts)

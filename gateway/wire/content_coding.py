"""Compressed bodies (`Content-Encoding`): decoded piece by piece, within the limits on size. Pure.

A body of some kilobytes may decode to gigabytes, to members without content, or to another bomb. So each step decodes
at most `PIECE_BYTES` and yields, with or without content. The caller can stop at any step, count the bytes and serve
other requests in between, on the event loop: a thread would need the same steps and hand-over besides. No stage decodes
more than the limit, a body has at most `CODED_MEMBERS_MAX` members or frames and `CODINGS_MAX` codings, and the zstd
window is the one that RFC 9659 allows for this use.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from specpilot.gateway.wire.errors import BodyTooLargeError, GatewayError, InvalidCodingError, UnsupportedCodingError

PIECE_BYTES: Final = 65_536
"""The largest number of bytes that one step decodes: 0.1 to 0.3 ms."""

CODED_MEMBERS_MAX: Final = 1000
"""Members or frames of one body. Each costs a decoder; parallel compressors make one for some 100 kB."""

CODINGS_MAX: Final = 2
"""Nested codings of one body."""

WINDOW_LOG_MAX: Final = 23
"""Binary logarithm of the zstd window: 8 MiB that a body can demand by its first bytes. RFC 9659 allows no more."""

if TYPE_CHECKING:
    from backports import zstd
else:
    try:
        from compression import zstd
    except ImportError:  # before Python 3.14
        from backports import zstd

CODINGS: Final[tuple[str, ...]] = ("gzip", "deflate", "zstd")
_GZIP: Final = 31
_ZLIB: Final = 15
_RAW: Final = -15
_CUT: Final = "its end is missing"
_MANY: Final = f"it has more than {CODED_MEMBERS_MAX} members"


def codings_of(value: str) -> tuple[str, ...]:
    """Return the codings in the header `value`, in the order in which they were applied.

    Raises `UnsupportedCodingError` for a coding that is not decoded here.
    """
    named = [name.strip().lower() for name in value.split(",")]
    codings = tuple("gzip" if name == "x-gzip" else name for name in named if name not in ("", "identity"))
    for name in codings:
        if name not in CODINGS:
            raise UnsupportedCodingError(name[:32])
    if len(codings) > CODINGS_MAX:
        raise UnsupportedCodingError(", ".join(codings)[:64])
    return codings


def decoded(parts: Iterable[bytes], codings: tuple[str, ...], limit_bytes: int) -> Iterator[bytes]:
    """Yield the decoded body in pieces, some of them empty. Raises `InvalidCodingError` and `BodyTooLargeError`."""
    for name in reversed(codings):
        stage = _unzstd(parts) if name == "zstd" else _inflate(parts, is_gzip=name == "gzip")
        parts = _bounded(stage, name, limit_bytes)
    yield from parts


def plain_of(body: bytes, coding: str, limit_bytes: int) -> bytes | None:
    """Return a whole small `body` decoded, where `coding` is its header's value, empty if there is none.

    `None` if it cannot be decoded, or not within `limit_bytes`.
    """
    if not coding or not body:
        return body
    try:
        return b"".join(decoded((body,), codings_of(coding), limit_bytes))
    except GatewayError:
        return None


def _bounded(pieces: Iterator[bytes], name: str, limit_bytes: int) -> Iterator[bytes]:
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > limit_bytes:
                size_fault = f"the request body is larger than {limit_bytes} bytes when decoded (--max-body-bytes)"
                raise BodyTooLargeError(f"{size_fault}; send less")
            yield piece
    except (zlib.error, zstd.ZstdError) as error:
        raise InvalidCodingError(name, str(error)) from error
    except EOFError as error:
        raise InvalidCodingError(name, str(error)) from error


def _inflate(parts: Iterable[bytes], *, is_gzip: bool) -> Iterator[bytes]:
    """Decode gzip, of one member or several, or deflate. Some senders omit the zlib frame of deflate (RFC 9110)."""
    decoder = zlib.decompressobj(_GZIP) if is_gzip else None
    head = b""
    members = 1
    for part in parts:
        data = part
        if decoder is None:
            head += data
            if len(head) < 2:  # noqa: PLR2004 - the bytes of zlib's header
                yield b""
                continue
            is_framed = head[0] & 15 == zlib.DEFLATED and (head[0] << 8 | head[1]) % 31 == 0
            decoder = zlib.decompressobj(_ZLIB if is_framed else _RAW)
            data = head
        is_full = False
        while data or is_full:
            if decoder.eof:
                data = data.lstrip(b"\0") if is_gzip else data  # padding, which gzip ignores
                if not data:
                    break
                members += 1
                if not is_gzip or members > CODED_MEMBERS_MAX:
                    raise EOFError(_MANY if is_gzip else "there are bytes after its end")
                decoder = zlib.decompressobj(_GZIP)
            piece = decoder.decompress(data, PIECE_BYTES)
            data = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
            is_full = len(piece) == PIECE_BYTES and not decoder.eof
            yield piece
        yield b""
    if decoder is None or not decoder.eof:
        raise EOFError(_CUT)


def _unzstd(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Decode zstd, of one frame or several."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG_MAX}
    decoder = zstd.ZstdDecompressor(options=options)
    frames = 1
    has_begun = False
    for part in parts:
        data = part
        while data or not (decoder.needs_input or decoder.eof):
            if decoder.eof:
                frames += 1
                if frames > CODED_MEMBERS_MAX:
                    raise EOFError(_MANY)
                decoder = zstd.ZstdDecompressor(options=options)
            has_begun = True
            piece = decoder.decompress(data, PIECE_BYTES)
            data = decoder.unused_data if decoder.eof else b""
            yield piece
        yield b""
    if not has_begun or not decoder.eof:
        raise EOFError(_CUT)

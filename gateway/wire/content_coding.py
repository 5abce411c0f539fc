"""Compressed bodies (`Content-Encoding`): decoded piece by piece, within the limits on size. Pure.

A body of some kilobytes may decode to gigabytes, to members without content, or to another bomb. So each step decodes
at most `PIECE_BYTES` and yields, with or without content. The caller can stop at any step, count the bytes and serve
other requests in between, on the event loop: a thread would need the same steps and hand-over besides. No stage decodes
more than the limit, a body has at most `CODED_MEMBERS_MAX` members or frames and `CODINGS_MAX` codings, and the zstd
window is the one that RFC 9659 allows for this use.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

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
        parts = _bounded(_stage(parts, name), name, limit_bytes)
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
    except (zlib.error, zstd.ZstdError, EOFError) as error:
        raise InvalidCodingError(name, str(error)) from error


def _stage(parts: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Decode one coding: gzip or zstd, of one member (frame) or several, or deflate.

    A decoder returns at most `PIECE_BYTES` at once, and zlib's hands back the input that it has not read yet. Gzip may
    be padded with null bytes.
    """
    decoder: Any = None
    members = 0
    for part in parts:
        data, is_full = part, False
        while data or is_full:
            if decoder is None or decoder.eof:
                data = data.lstrip(b"\0") if members and name == "gzip" else data
                if not data:
                    break
                members += 1
                if members > 1 and name == "deflate":
                    raise EOFError("there are bytes after its end")
                if members > CODED_MEMBERS_MAX:
                    raise EOFError(f"it has more than {CODED_MEMBERS_MAX} members")
                decoder = _decoder(name, data)
            piece = decoder.decompress(data, PIECE_BYTES)
            data = decoder.unused_data if decoder.eof else getattr(decoder, "unconsumed_tail", b"")
            is_full = len(piece) == PIECE_BYTES and not decoder.eof
            yield piece
        yield b""
    if decoder is None or not decoder.eof:
        raise EOFError("its end is missing")


def _decoder(name: str, data: bytes) -> Any:
    """Return a decoder for a member that begins with `data`. Some senders omit the zlib frame of deflate (RFC 9110)."""
    if name == "zstd":
        return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG_MAX})
    if name == "gzip":
        return zlib.decompressobj(_GZIP)
    return zlib.decompressobj(_ZLIB if data[0] & 15 == zlib.DEFLATED else _RAW)

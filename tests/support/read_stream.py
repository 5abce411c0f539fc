"""Parts of a stream, however it is split, and what is read in them."""

from itertools import pairwise

from specpilot.gateway.wire.body_reader import BodyReader
from specpilot.gateway.wire.usage import Usage


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(at)]


def read(reader: BodyReader, *parts: bytes) -> Usage:
    for part in parts:
        reader.feed(part)
    usage = Usage()
    reader.finish(usage)
    return usage


def passed(reader: BodyReader, data: bytes, cuts: list[int]) -> bytes:
    """What may be sent of `data` when it is cut at `cuts`, and nothing follows."""
    out = b"".join([reader.feed(part) for part in pieces(data, cuts)])
    reader.end()
    return out + reader.rest()

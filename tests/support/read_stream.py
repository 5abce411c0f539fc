"""Parts of a stream, however it is split, and what a tap reads in them."""

from itertools import pairwise

from specpilot.gateway.wire.sse import JsonTap, SseTap
from specpilot.gateway.wire.usage import Usage


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(at)]


def read(tap: SseTap | JsonTap, *parts: bytes) -> Usage:
    for part in parts:
        tap.feed(part)
    usage = Usage()
    tap.finish(usage)
    return usage

"""Selects the rows of the backlog that go through the drafter, and splits them into passes. Pure.

Only the indices of rows are handled here; `engine_adapter.vllm.rows` has their contents.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Rows of one request that go through the drafter, in order: its `place` in the batch, and their indices.

    `end` is the first position after them.
    """

    place: int
    rows: Sequence[int]
    end: int


def spans_of(
    rows: Mapping[str, Sequence[int]], batch: Sequence[str], requests: Collection[str], ends: Sequence[int]
) -> list[Span]:
    """Return the `rows` of each request that is in both `batch` and `requests`; they end at its place in `ends`."""
    return [
        Span(place, rows[request], ends[place])
        for place, request in enumerate(batch)
        if request in requests and request in rows
    ]


def within(spans: Iterable[Span], limit: int) -> list[Span]:
    """Return the part of the spans at positions below `limit`."""
    return [
        Span(place, rows[: len(rows) - max(0, end - limit)], min(end, limit))
        for place, rows, end in spans
        if len(rows) > end - limit
    ]


def passes(spans: Iterable[Span], limit: int) -> Iterator[list[Span]]:
    """Split the spans into passes of `limit` rows; the last pass may be smaller.

    A request that does not fit into a pass continues in the next.
    """
    part, room = list[Span](), limit  # the pass that is being filled
    for place, rows, end in spans:
        placed = 0
        while placed < len(rows):
            piece = rows[placed : placed + room]
            placed += len(piece)
            room -= len(piece)
            part.append(Span(place, piece, end - (len(rows) - placed)))
            if room == 0:
                yield part
                part, room = [], limit
    if part:
        yield part

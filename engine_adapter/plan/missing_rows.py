"""Selects the rows of the backlog that go through the drafter, and splits them into passes. Pure.

Only the indices of rows are handled here; `engine_adapter.vllm.rows` has their contents.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple


class MissingRows(NamedTuple):
    """Rows that go through the drafter: for each request, in the order of the batch, its place in it and its rows."""

    places: list[int]
    rows: list[Sequence[int]]


def missing_rows(rows: Mapping[str, Sequence[int]], batch: Sequence[str], requests: Collection[str]) -> MissingRows:
    """Return the rows of each request that is in both `batch` and `requests`; `rows` has them by request."""
    places = [place for place, request in enumerate(batch) if request in requests and request in rows]
    return MissingRows(places, [rows[batch[place]] for place in places])


def within(missing: MissingRows, ends: Sequence[int], limit: int) -> tuple[MissingRows, list[int]]:
    """Return the part of `missing` at positions below `limit`, and the end of each of its requests' rows.

    `ends`: for each request of the batch, the first position after its rows.
    """
    cut = [
        (place, rows[: len(rows) - max(0, ends[place] - limit)])
        for place, rows in zip(missing.places, missing.rows, strict=True)
        if len(rows) > ends[place] - limit
    ]
    places = [place for place, _ in cut]
    return MissingRows(places, [rows for _, rows in cut]), [min(ends[place], limit) for place in places]


def passes(missing: MissingRows, ends: Sequence[int], limit: int) -> Iterator[tuple[MissingRows, Sequence[int]]]:
    """Split `missing`, whose rows end at `ends`, into passes of `limit` rows; the last pass may be smaller.

    A request that does not fit into a pass continues in the next. The end of each part is that of its last row.
    """
    part, part_ends, room = MissingRows([], []), list[int](), limit  # the pass that is being filled
    for place, rows, end in zip(missing.places, missing.rows, ends, strict=True):
        placed = 0
        while placed < len(rows):
            piece = rows[placed : placed + room]
            placed += len(piece)
            room -= len(piece)
            part.places.append(place)
            part.rows.append(piece)
            part_ends.append(end - (len(rows) - placed))
            if room == 0:
                yield part, part_ends
                part, part_ends, room = MissingRows([], []), [], limit
    if part.places:
        yield part, part_ends

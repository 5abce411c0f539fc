"""Which rows of the backlog go through the drafter, and in which passes.

Pure: of the rows themselves (`engine_adapter.vllm.rows`) only their numbers occur here.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple


class Lag(NamedTuple):
    """Which rows go through the drafter: for each request, in the order of the batch, its place and its rows."""

    places: list[int]
    rows: list[Sequence[int]]


def lag(rows: Mapping[str, Sequence[int]], batch: Sequence[str], wanted: Collection[str]) -> Lag:
    """Return the `rows`, by request, of those in `batch` that are `wanted`."""
    places = [place for place, request in enumerate(batch) if request in wanted and request in rows]
    return Lag(places, [rows[batch[place]] for place in places])


def within(missing: Lag, ends: Sequence[int], limit: int) -> tuple[Lag, list[int]]:
    """Return the part of `missing` at positions below `limit`, and where the rows of each request in it end.

    `ends` says for each request of the batch at which position its rows end: the first that is none of them.
    """
    cut = [
        (place, rows[: len(rows) - max(0, ends[place] - limit)])
        for place, rows in zip(missing.places, missing.rows, strict=True)
        if len(rows) > ends[place] - limit
    ]
    places = [place for place, _ in cut]
    return Lag(places, [rows for _, rows in cut]), [min(ends[place], limit) for place in places]


def passes(missing: Lag, ends: Sequence[int], limit: int) -> Iterator[tuple[Lag, Sequence[int]]]:
    """Split `missing`, which ends at `ends`, into passes of `limit` rows, the last of as many as are left.

    A request of which a pass takes only the first rows goes on in the next; its part ends where its last row does.
    """
    part, part_ends, room = Lag([], []), list[int](), limit
    for place, rows, end in zip(missing.places, missing.rows, ends, strict=True):
        taken = 0
        while taken < len(rows):
            piece = rows[taken : taken + room]
            taken += len(piece)
            room -= len(piece)
            part.places.append(place)
            part.rows.append(piece)
            part_ends.append(end - (len(rows) - taken))
            if room == 0:
                yield part, part_ends
                part, part_ends, room = Lag([], []), [], limit
    if part.places:
        yield part, part_ends

"""Bands: ranges of a request's own recent acceptance, and the names of a schedule's rows.

The engine adapter keeps a moving estimate p (0..1) of the conditional acceptance of each request, from its own verified
drafts. `BAND_EDGES` divide p into bands: band 0 accepts least, band `BANDS - 1` most. Acceptance is counted and learned
by band. A schedule's row is named by a class (`code`: any band) or by one band of a class (`code:7`).

Eight bands with these edges were found best in a closed-loop replay of 24,064 drafts: six lose 0.1 % of the tokens per
second, thirteen gain 0.1 %, edges by quantiles are worse.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TypeVar

BAND_EDGES = (0.08, 0.2, 0.35, 0.5, 0.65, 0.8, 0.92)
"""The borders of the bands: estimates of conditional acceptance."""

BANDS = len(BAND_EDGES) + 1

_T = TypeVar("_T")


def band_of(acceptance: float) -> int:
    """Return the band (0 to `BANDS` - 1) of a request whose estimated conditional acceptance is `acceptance`."""
    return bisect_right(BAND_EDGES, acceptance)


def row_name(traffic_class: str, band: int | None = None) -> str:
    """Return the name of a class's row in a schedule, or of its row for one band."""
    return traffic_class if band is None else f"{traffic_class}:{band}"


def row_parts(name: str) -> tuple[str, int | None]:
    """Return class and band (`None`: any band) of a row's name; the reverse of `row_name`.

    Raises `ValueError` when no band follows the colon.
    """
    traffic_class, colon, band = name.partition(":")
    if not colon:
        return traffic_class, None
    if band not in _BAND_NAMES:
        raise ValueError(f"{name!r} names band {band!r}; bands are 0 to {BANDS - 1}")
    return traffic_class, int(band)


def row_of(rows: Mapping[str, _T], traffic_class: str, band: int) -> _T:
    """Return the row that applies to a request: the most specific one of its class, else of `default`.

    In this order: `class:band`, `class`, `default:band`, `default`; the last must exist.
    """
    for name in (row_name(traffic_class, band), traffic_class, row_name(_DEFAULT, band)):
        row = rows.get(name)
        if row is not None:
            return row
    return rows[_DEFAULT]


def serving_rows(names: Iterable[str]) -> list[str]:
    """Return the names of the rows that can apply to a request, by class and band.

    The row `default` is left out if `default` has a row for every band.
    """
    rows = sorted(set(names))
    has_all = all(row_name(_DEFAULT, band) in rows for band in range(BANDS))
    return [name for name in rows if name != _DEFAULT or not has_all]


def classes_in(rows: Iterable[str]) -> set[str]:
    """Return the classes of the rows with these names."""
    return {name.partition(":")[0] for name in rows}


_BAND_NAMES = frozenset(map(str, range(BANDS)))
_DEFAULT = "default"

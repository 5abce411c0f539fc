"""Tables in Markdown. Pure."""

from collections.abc import Iterable, Sequence


def table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a table with these heads; each row has a cell for each of them."""
    return [_row(heads), "|---" * len(heads) + "|", *(_row(cells) for cells in rows)]


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"

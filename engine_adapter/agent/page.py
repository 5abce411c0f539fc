"""A page of Prometheus' text format that is kept line by line, so that only changed lines are formatted again.

By class, band and K a page has up to some thousand series. With prometheus-client's multiprocess files a scrape would
occupy the API server's event loop for 60 ms, to read them and to format the page, while every stream waits. A custom
collector would still format each line, in some 25 ms. This page only joins its lines.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate
from typing import Final

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
_FAMILY: Final = "# HELP "


class Family:
    """The series of one metric, by their label values."""

    def __init__(self, name: str, text: str, kind: str, labels: Sequence[str]) -> None:
        self._name = name
        self._head = f"{_FAMILY}{name} {text}\n# TYPE {name} {kind}\n"
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], str] = {}
        self._values: dict[tuple[str, ...], float] = {}
        self._lines: dict[tuple[str, ...], str] = {}
        self._text: str | None = ""  # of these lines, if they have not changed since

    def add(self, amount: float, *values: str) -> None:
        """Add `amount` to the series of these label values; a series that was never above 0 is not shown."""
        if amount:
            self.set(self._values.get(values, 0.0) + amount, *values)

    def set(self, value: float, *values: str) -> None:
        """Set the series of these label values."""
        series = self._series.get(values)
        if series is None:
            named = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(self._labels, values, strict=True))
            series = self._series[values] = f"{self._name}{{{named}}}"
        if self._values.get(values) != value:
            self._lines[values] = f"{series} {float(value)!r}\n"
            self._text = None
        self._values[values] = value

    def clear(self) -> None:
        """Remove all series: a gauge without a current value is not shown."""
        self._values.clear()
        self._lines.clear()
        self._text = None

    def text(self) -> str:
        """Return the family's part of the page; empty without series."""
        lines = self.lines()
        return self._head + lines if lines else ""

    def lines(self) -> str:
        """Return the lines of its series."""
        if self._text is None:
            self._text = "".join(self._lines.values())
        return self._text


class Histogram:
    """The series of one histogram with these inclusive upper `bounds`."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self._head = f"{_FAMILY}{name} {text}\n# TYPE {name} {HISTOGRAM}\n"
        self._bounds = bounds
        self._places: dict[tuple[str, ...], Counter[int]] = {}  # numbers by place among the bounds
        self._le = [*(f"{bound:.4g}" for bound in bounds), "+Inf"]
        self._buckets = Family(f"{name}_bucket", text, HISTOGRAM, (*labels, "le"))
        self._sum = Family(f"{name}_sum", text, HISTOGRAM, labels)
        self._count = Family(f"{name}_count", text, HISTOGRAM, labels)

    def observe(self, observed: Sequence[float], *values: str) -> None:
        """Add what was `observed` to the series of these label values."""
        places = self._places.setdefault(values, Counter())
        places.update(bisect_left(self._bounds, value) for value in observed)
        for le, count in zip(self._le, accumulate(places[at] for at in range(len(self._le))), strict=True):
            self._buckets.set(count, *values, le)
        self._sum.add(sum(observed), *values)
        self._count.add(len(observed), *values)

    def text(self) -> str:
        """Return the histogram's part of the page; empty without series."""
        count = self._count.lines()
        return f"{self._head}{self._buckets.lines()}{self._sum.lines()}{count}" if count else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def part_of(page: str, names: Collection[str]) -> str:
    """Return the part of `page` with the metrics of these `names`."""
    return "".join(_FAMILY + part for part in page.split(_FAMILY)[1:] if part.split(" ", 1)[0] in names)


def together(pages: Iterable[str]) -> str:
    """Return pages as one, family by family. No two of them have a series in common."""
    families: dict[str, list[str]] = {}
    for page in pages:
        for part in page.split(_FAMILY)[1:]:
            text, kind, lines = part.split("\n", 2)
            families.setdefault(f"{_FAMILY}{text}\n{kind}\n", []).append(lines)
    return "".join(head + "".join(lines) for head, lines in families.items())

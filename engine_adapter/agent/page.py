"""A page of Prometheus' text format that is kept line by line, so that only what changed is written anew.

The table of steps has some thousand series. prometheus-client's multiprocess files hold them as well, but to read these
and to write a page of them takes 60 ms of the API server's event loop, at each scrape, in which every stream waits. A
page of this kind is a join of its lines.
"""

from collections.abc import Collection, Iterable, Sequence

COUNTER = "counter"
GAUGE = "gauge"
_FAMILY = "# HELP "


class Family:
    """The series of one metric, by their label values."""

    def __init__(self, name: str, text: str, kind: str, labels: Sequence[str]) -> None:
        self._name = name
        self._head = f"{_FAMILY}{name} {text}\n# TYPE {name} {kind}\n"
        self._labels = tuple(labels)
        self._series: dict[tuple[str, ...], str] = {}
        self._values: dict[tuple[str, ...], float] = {}
        self._lines: dict[tuple[str, ...], str] = {}

    def add(self, amount: float, *values: str) -> None:
        """Add `amount` to the series of these label values; one that is 0 from the start is not shown."""
        if amount:
            self.set(self._values.get(values, 0.0) + amount, *values)

    def set(self, value: float, *values: str) -> None:
        """Set the series of these label values."""
        series = self._series.get(values)
        if series is None:
            named = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(self._labels, values, strict=True))
            series = self._series[values] = f"{self._name}{{{named}}}"
        self._values[values] = value
        self._lines[values] = f"{series} {float(value)!r}\n"

    def text(self) -> str:
        """Return its part of the page; nothing while it has no series."""
        return self._head + "".join(self._lines.values()) if self._lines else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def only(page: str, names: Collection[str]) -> str:
    """Return the part of `page` that has these metrics, as the query `name[]` asks."""
    return "".join(part for part in _parts(page) if _name(part) in names)


def _parts(page: str) -> Iterable[str]:
    """Return the families of a page."""
    return (_FAMILY + part for part in page.split(_FAMILY)[1:])


def _name(part: str) -> str:
    return part[len(_FAMILY) :].split(" ", 1)[0]

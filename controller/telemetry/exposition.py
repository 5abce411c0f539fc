"""Reads the engine adapter's lines of a page in the Prometheus text format.

An engine's page has thousands of lines; some hundreds are the adapter's, and each of the others costs one prefix
comparison. The name and labels of a line are parsed once and cached, and a line that has not changed since the last
scrape is not parsed again (`PageReader`). A value that is not a finite, non-negative number is left out, like a line
that cannot be parsed: unknown, not zero. Series that differ only in labels that the control law does not use (several
processes of one engine) are summed.
"""

import math
import re
from array import array
from functools import lru_cache

from specpilot.controller.estimation.observation import LABELS, Series
from specpilot.policy.engine_metrics import PREFIX

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@lru_cache(maxsize=1 << 18)
def _series(head: str) -> Series | None:
    name, _, rest = head.partition("{")
    label_names = LABELS.get(name)
    if label_names is None:
        return None
    labels = {key: re.sub(r'\\[\\"n]', lambda part: _ESCAPES[part[0]], text) for key, text in _LABEL.findall(rest)}
    if any(label not in labels for label in label_names):
        return None
    return Series(name, tuple(labels[label] for label in label_names))


class PageReader:
    """Reads the successive pages of one engine.

    Two successive pages of thousands of lines differ in some hundred lines. The reader keeps a hash of each line and
    parses only lines with a changed hash. It parses the whole page when the series differ from those of the last page.
    """

    def __init__(self) -> None:
        self._hashes = array("q")
        self._series: list[Series | None] = []
        self._values: dict[Series, float] = {}
        self._is_plain = False  # each series has one line, with a valid value

    def read(self, text: str) -> dict[Series, float]:
        """Return the value of every series in `text` that the controller reads."""
        lines = text.split("\n")
        hashes = array("q", map(hash, lines))
        if not (self._is_plain and len(lines) == len(self._hashes) and self._update(lines, hashes)):
            self._read_whole(lines)
        self._hashes = hashes
        return self._values

    def _update(self, lines: list[str], hashes: "array[int]") -> bool:
        """Read the lines that changed; return whether each still belongs to the same series."""
        values = dict(self._values)
        for at, (new, old) in enumerate(zip(hashes, self._hashes, strict=True)):
            if new != old:
                series, value = _read(lines[at])
                if series is None and self._series[at] is None:
                    continue
                if series != self._series[at] or series is None or value is None:
                    return False
                values[series] = value
        self._values = values
        return True

    def _read_whole(self, lines: list[str]) -> None:
        self._values, self._series, self._is_plain = {}, [], True
        for line in lines:
            series, value = _read(line)
            self._series.append(series)
            if series is None:
                continue
            self._is_plain = self._is_plain and value is not None and series not in self._values
            if value is not None:
                self._values[series] = self._values.get(series, 0.0) + value


def _read(line: str) -> tuple[Series | None, float | None]:
    """Return a line's series (`None`: not the adapter's) and its value (`None`: not valid)."""
    if not line.startswith(PREFIX):
        return None, None
    end = line.rfind("}") + 1 or line.find(" ")
    series = _series(line[:end])
    if series is None:
        return None, None
    try:
        value = float(line[end:].split(None, 1)[0])
    except (ValueError, IndexError):
        return series, None
    return series, value if math.isfinite(value) and value >= 0 else None

"""Reads the Prometheus text format, but only the lines of the engine adapter.

An engine's page holds thousands of lines, of which some hundreds are ours; all other lines cost one prefix
comparison. The part before the number is the same at every scrape, so its meaning is remembered, and a line that
has not changed since the last scrape is not read again (`PageReader`). A value that is no finite, non-negative number
and a line that cannot be read are left out: unknown, not zero. Series that differ only in labels that the law does not
know (several processes of one engine) are added up.
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
    wanted = LABELS.get(name)
    if wanted is None:
        return None
    found = {key: re.sub(r'\\[\\"n]', lambda part: _ESCAPES[part[0]], text) for key, text in _LABEL.findall(rest)}
    if any(label not in found for label in wanted):
        return None
    return Series(name, tuple(found[label] for label in wanted))


class PageReader:
    """Reads one engine's page again and again.

    A page of thousands of lines differs from the one before in some hundred. So of each line its hash is kept, and one
    that is the same as last time is not read. A page with other series than the last is read whole.
    """

    def __init__(self) -> None:
        self._hashes = array("q")
        self._series: list[Series | None] = []
        self._values: dict[Series, float] = {}
        self._is_plain = False  # each series has one line, with a value that counts

    def read(self, text: str) -> dict[Series, float]:
        """Return the value of every series in `text` that the law reads."""
        lines = text.split("\n")
        hashes = array("q", map(hash, lines))
        if not (self._is_plain and len(lines) == len(self._hashes) and self._update(lines, hashes)):
            self._read_whole(lines)
        self._hashes = hashes
        return self._values

    def _update(self, lines: list[str], hashes: "array[int]") -> bool:
        """Read the lines that changed; return whether every one of them still belongs to the same series."""
        values = dict(self._values)
        for at, (found, known) in enumerate(zip(hashes, self._hashes, strict=True)):
            if found != known:
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
    """Return the series of a line, `None` for one that is not ours, and its value, `None` for one that is left out."""
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

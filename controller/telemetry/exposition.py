"""Reads the Prometheus text format, but only the lines of the engine adapter.

An engine's page holds thousands of lines, of which some hundreds are ours; all other lines cost one prefix
comparison. The part before the number is the same at every scrape, so its meaning is remembered. A value that
is no finite, non-negative number and a line that cannot be read are left out: unknown, not zero. Series that
differ only in labels that the law does not know (several processes of one engine) are added up.
"""

import math
import re
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


def parse(text: str) -> dict[Series, float]:
    """Return the value of every series in `text` that the law reads."""
    values: dict[Series, float] = {}
    for line in text.split("\n"):
        if not line.startswith(PREFIX):
            continue
        end = line.rfind("}") + 1 or line.find(" ")
        series = _series(line[:end])
        if series is None:
            continue
        try:
            value = float(line[end:].split(None, 1)[0])
        except (ValueError, IndexError):
            continue
        if math.isfinite(value) and value >= 0:
            values[series] = values.get(series, 0.0) + value
    return values

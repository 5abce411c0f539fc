"""Divides every duration of a rule file by a factor, so that a test can wait for its alerts. Pure.

Windows (`[5m]`), offsets and `for:` shrink by the same factor, so that a rule compares the same share of its time;
thresholds stay. A window is `LEAST_WINDOW_S` at least, because a rate needs several scrapes; a `for:` is
`LONGEST_FOR_S` at most.
"""

import re

LEAST_WINDOW_S = 5.0
LONGEST_FOR_S = 30.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_WINDOW = re.compile(r"\[(\d+)([smhd])\]")
_OFFSET = re.compile(r"\boffset (\d+)([smhd])\b")
_FOR = re.compile(r"^(\s+for: )(\d+)([smhd])$", re.MULTILINE)
_ALERT = re.compile(r"^\s+- alert: (\w+)$", re.MULTILINE)


def alerts_in(rules: str) -> list[str]:
    """Return the names of the alerts of a rule file, in its order."""
    return _ALERT.findall(rules)


def quickened(rules: str, factor: float) -> str:
    """Return `rules` with every duration divided by `factor`."""

    def seconds(number: str, unit: str) -> float:
        return float(number) * _UNITS_S[unit] / factor

    def text(duration_s: float) -> str:
        return f"{max(1, round(1000 * duration_s))}ms"

    document = _WINDOW.sub(lambda one: f"[{text(max(LEAST_WINDOW_S, seconds(one[1], one[2])))}]", rules)
    document = _OFFSET.sub(lambda one: f"offset {text(seconds(one[1], one[2]))}", document)
    return _FOR.sub(lambda one: f"{one[1]}{text(min(LONGEST_FOR_S, seconds(one[2], one[3])))}", document)

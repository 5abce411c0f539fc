"""The numbers of several workers as one: counters add up, each gauge follows its own rule. Pure.

A tally holds one worker's numbers as plain JSON values: numbers, lists of numbers (the buckets of a histogram) and
mappings of these. The name of a branch is the rule for merging two tallies. `counters` only grow and are kept after
their worker has ended; `sums`, `largest` and `least` are gauges, which are dropped with it. A number that only one side
has is used as it is: unknown is not zero.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

COUNTERS, SUMS, LARGEST, LEAST = "counters", "sums", "largest", "least"

_RULES: Mapping[str, Callable[[Any, Any], Any]] = {
    COUNTERS: operator.add,
    SUMS: operator.add,
    LARGEST: max,
    LEAST: min,
}
Tally = Mapping[str, Any]


def total(tallies: Iterable[Tally]) -> dict[str, Any]:
    """Return all `tallies` merged into one."""
    merged: dict[str, Any] = {}
    for tally in tallies:
        for branch, rule in _RULES.items():
            merged[branch] = _merged(merged.get(branch), tally.get(branch), rule)
    return {branch: values for branch, values in merged.items() if values is not None}


def lasting(tally: Tally) -> dict[str, Any]:
    """Return the part of `tally` that outlives its worker."""
    return {COUNTERS: tally.get(COUNTERS, {})}


def _merged(left: Any, right: Any, rule: Callable[[Any, Any], Any]) -> Any:
    if left is None or right is None:
        return right if left is None else left
    if isinstance(left, dict):
        return {key: _merged(left.get(key), right.get(key), rule) for key in left | right}
    if isinstance(left, list):
        return [rule(one, other) for one, other in zip(left, right, strict=True)]
    return rule(left, right)

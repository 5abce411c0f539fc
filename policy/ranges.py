"""K by the number of running decodes, as ranges: how a row of K is looked up."""

from collections.abc import Mapping, Sequence

from specpilot.policy.types import KRange

Ranges = Mapping[str, tuple[KRange, ...]]
"""Rows of K by name: a class, or one band of a class (`policy.bands`)."""


def k_at(ranges: Sequence[Sequence[int]], decodes: int) -> int:
    """Return the K that `ranges` (lo, hi, K) give at `decodes` running decodes; above the last one its K holds."""
    for _, hi, k in ranges:
        if decodes <= hi:
            return k
    return ranges[-1][2]

"""Rows of K: for each class, or each band of a class, K by the number of running decodes. Pure.

Rows are for the estimate, the static K and freezes; engines that choose K do not read them.

Acceptance depends on the band, not on the class. So the rows of `default` (`default:0` to `default:7`) apply to every
class with the same requirements as `default`. A class with another weight, bound or SLO has rows by band of its own. A
class with a fixed K has a single row without a band, because it is not probed. The row `default` (without a band)
always exists. If the class `default` has rows by band, this row applies to no request.
"""

from collections.abc import Mapping, Sequence

from specpilot.controller.law.context import PoolContext
from specpilot.policy.bands import BANDS, row_name, row_of, row_parts
from specpilot.policy.graphs import Graphs
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import KRange, Ranges, k_at

Bounds = Mapping[str, tuple[int, int]]
"""The smallest and the largest K of each row, by its name."""
_EACH_UP_TO = 16
_STEP = 1.15


def bounds_of(context: PoolContext) -> Bounds:
    """Return the rows that the policy of `context` needs, each with its bounds."""
    bounds_of: dict[str, tuple[int, int]] = {}
    of_default = requirements(context, DEFAULT_CLASS)
    for name in context.policy.class_names:
        required = requirements(context, name)
        if name != DEFAULT_CLASS and required == of_default:
            continue
        bounds = required[:2]
        is_pinned = bounds[0] == bounds[1]
        if name == DEFAULT_CLASS or is_pinned:
            bounds_of[name] = bounds
        if not is_pinned:
            bounds_of |= {row_name(name, band): bounds for band in range(BANDS)}
    return bounds_of


def requirements(context: PoolContext, name: str) -> tuple[int, int, float, float | None]:
    """Return the requirements of the policy for class `name`: the smallest and largest K, weight, SLO (ms)."""
    class_policy = context.policy.of_class(name)
    return (*context.bounds(name), class_policy.weight, class_policy.itl_slo_ms)


def loads(max_num_seqs: int, k_max: int, graphs: Graphs | None) -> list[int]:
    """Return the numbers of running decodes at which K is estimated: each up to 16, then steps of about 15 %.

    They also include each number of decodes from which on a step with one K for all exceeds the largest CUDA graph of
    the target or of the drafter.
    """
    points = list(range(1, min(max_num_seqs, _EACH_UP_TO) + 1))
    while points[-1] < max_num_seqs:
        points.append(min(max_num_seqs, int(points[-1] * _STEP) + 1))
    cliffs = {n for n in _cliffs(graphs, k_max) if n <= max_num_seqs} if graphs is not None else set()
    return sorted({*points, *cliffs})


def row_at(n: Sequence[int], k: Sequence[int], last: int) -> tuple[KRange, ...]:
    """Return a row in which K is `k[i]` from `n[i]` to `n[i + 1] - 1`, the last one to `last`.

    `n` is ascending. Neighbours with the same K are merged.
    """
    ranges: list[KRange] = []
    for lo, hi, value in zip(n, [*(following - 1 for following in n[1:]), last], k, strict=True):
        if ranges and ranges[-1].k == value:
            ranges[-1] = KRange(ranges[-1].lo, hi, value)
        else:
            ranges.append(KRange(lo, hi, value))
    return tuple(ranges)


def one_k(names: Sequence[str], max_num_seqs: int, k: int) -> Ranges:
    """Return rows that all have `k` at every load."""
    return dict.fromkeys(names, (KRange(1, max(1, max_num_seqs), k),))


def static_rows(context: PoolContext) -> Ranges:
    """Return the static K by class, moved inside bounds and pins."""
    return within(context.operator_rows, {name: context.bounds(name) for name in context.policy.class_names})


def within(rows: Ranges, bounds: Bounds) -> Ranges:
    """Return the rows named in `bounds`: for each name the K that applies in `rows`, limited to its bounds."""
    limited = {}
    for name, (low, high) in bounds.items():
        ranges = row_for(rows, name)
        k = [min(max(item.k, low), high) for item in ranges]
        limited[name] = row_at([item.lo for item in ranges], k, ranges[-1].hi)
    return limited


def row_for(rows: Ranges, name: str) -> tuple[KRange, ...]:
    """Return the row of `rows` that applies to `name`, also if none has this name (`policy.bands.row_of`)."""
    traffic_class, band = row_parts(name)
    return rows.get(name, rows[DEFAULT_CLASS]) if band is None else row_of(rows, traffic_class, band)


def k_of(rows: Ranges, names: Sequence[str], decodes: int) -> list[int]:
    """Return K of each of the rows `names` at so many running decodes."""
    return [k_at(row_for(rows, name), decodes) for name in names]


def _cliffs(graphs: Graphs, k_max: int) -> set[int]:
    loads = set()
    for k in range(k_max + 1):
        kinds = (graphs.mixed, graphs.varlen, graphs.uniform.get(1 + k, ()))
        loads |= {max(sizes) // (1 + k) + 1 for sizes in kinds if sizes}
        if k and graphs.drafter:
            loads.add(max(graphs.drafter) // (2 * k) + 1)
    return loads

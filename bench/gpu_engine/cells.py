"""The cells of a table of step times: the batch of each, and its row from its measurements. Pure.

A *cell* is a batch of fixed size with fixed K. Its requests form as many equal groups as the cell has values of K.
Cells are measured in rounds, each in a new random order (`step_jobs`), so that a machine that becomes slower does not
affect one K alone. A *measurement* is one repetition of a cell.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specpilot.bench.gpu_engine.pace import TOLERANCE_RATIO, is_typical

UNIFORM, HALVES, RANDOM = "uniform", "halves", "random"


@dataclass(frozen=True, slots=True)
class Cell:
    """`running` requests in groups with `ks`, one value for each group.

    `kind` is `UNIFORM` (one group), `HALVES` (two) or `RANDOM` (the groups swap their K at random before each step).
    `ks` is empty when the engine decides: stock vLLM.
    """

    kind: str
    running: int
    ks: tuple[int, ...] = ()

    @property
    def deepest(self) -> int | None:
        """The largest K; `None` when the engine decides."""
        return max(self.ks) if self.ks else None

    def plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self) | {"ks": list(self.ks)}


def cells(running: Sequence[int], ks: Sequence[int], k_max: int) -> list[Cell]:
    """Return the cells for each number of `running` requests at each of `ks`, and of mixed batches.

    Each mixed batch verifies as many tokens a step as a uniform batch of K_max // 2, which is measured too: halves at 1
    and at twice the mean less 1, halves at 0 and at twice the mean, and groups at random.
    """
    plan = [Cell(UNIFORM, number, (k,)) for number in running for k in ks]
    middle = mean_k(k_max)
    if middle == 0:
        return plan
    for number in running:
        if number < len(_spread(middle)):
            continue
        plan += [Cell(HALVES, number, pair) for pair in sorted({(1, 2 * middle - 1), (0, 2 * middle)}) if middle > 1]
        plan.append(Cell(RANDOM, number, _spread(middle)))
        beside = Cell(UNIFORM, number, (middle,))
        if beside not in plan:
            plan.append(beside)
    return plan


def mean_k(k_max: int) -> int:
    """Return the mean K of mixed batches."""
    return k_max // 2


def _spread(middle: int) -> tuple[int, ...]:
    """Return the K of the groups of a random batch: an even spread from 0 to twice `middle`."""
    return (0, 2, 4, 6) if middle == 3 else (0, middle, middle, 2 * middle)  # noqa: PLR2004 - K_max 6 and 7


def stock(running: Sequence[int]) -> list[Cell]:
    """Return the cells of an engine that decides K itself."""
    return [Cell(UNIFORM, number) for number in running]


def untypical(measured: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of the measurements at an unusual speed of the processor."""
    paces = [item["pace_ms"] for item in measured]
    return [place for place, pace in enumerate(paces) if not is_typical(pace, paces)]


def disputed(measured: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return an index for each cell whose measurements, all at the usual speed, differ by more than the speed may.

    One further measurement decides: the median is then one of the two that agree.
    """
    odd, indices = {*untypical(measured)}, []
    for places in _by_cell(measured):
        times = [measured[place]["step_ms"] for place in places if place not in odd]
        known = [value for value in times if value is not None]
        if len(known) > 1 and max(known) > (1 + TOLERANCE_RATIO) * min(known):
            indices.append(places[0])
    return indices


def _by_cell(measured: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    places: dict[str, list[int]] = {}
    for place, item in enumerate(measured):
        places.setdefault(repr(item["cell"]), []).append(place)
    return list(places.values())


def summaries(measured: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each cell, with the median of its measurements at the usual speed of the processor.

    `step_ms_range` is the lowest and highest of these. Without any at the usual speed all count, and `is_typical` is
    false.
    """
    odd = {*untypical(measured)}
    rows = []
    for places in _by_cell(measured):
        typical = [place for place in places if place not in odd]
        chosen = [measured[place] for place in typical or places]
        timed = [item for item in chosen if item["step_ms"] is not None] or chosen
        row: dict[str, Any] = dict(timed[0]["cell"])
        for name in sorted({key for item in timed for key in item} - {"cell", "graphs", "step_ms_quartiles"}):
            values = [item[name] for item in timed if item.get(name) is not None]
            row[name] = statistics.median(values) if values else None
        times = [item["step_ms"] for item in timed if item["step_ms"] is not None]
        row |= {
            "step_ms_range": [min(times), max(times)] if times else None,
            "graphs": timed[0].get("graphs", []),
            "measurements": len(timed),
            "left_out": len(places) - len(chosen),
            "is_typical": bool(typical),
        }
        rows.append(row)
    return sorted(rows, key=lambda row: (row["running"], row["kind"] != UNIFORM, row["kind"], row["ks"]))

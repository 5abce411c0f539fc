"""The report of a sweep in Markdown: a table of all cells, and one of adaptive K beside single Ks. Pure.

Figures are medians over the repetitions, with their range. A ratio of two arms is the median of the ratios within each
repetition, in which both were measured within minutes, so that changes of the machine's speed cancel.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from specpilot.bench.report.markdown import table
from specpilot.bench.sweep.plan import ADAPTIVE, EAGLE_3, NO_SPECULATION, P_EAGLE, SYSTEMS

RATE, TPOT = "output_throughput", "median_tpot_ms"
UNKNOWN = "-"
_FIGURES = (
    ("spec_decode_acceptance_length", "acceptance length", "{:.2f}"),
    ("median_ttft_ms", "TTFT p50, ms", "{:.1f}"),
    ("p99_ttft_ms", "p99", "{:.1f}"),
    (TPOT, "TPOT p50, ms", "{:.1f}"),
    ("p99_tpot_ms", "p99", "{:.1f}"),
    ("request_goodput", "good requests/s", "{:.2f}"),
)


class Arm(NamedTuple):
    """An arm as in the files of cells."""

    name: str
    system: str
    k: int | None


class Results:
    """The cells of a sweep, by arm, place (data set and load) and repetition."""

    def __init__(self, cells: Sequence[Mapping[str, Any]]) -> None:
        self._cells = {(cell["arm"], (cell["dataset"], cell["load"]), cell["repetition"]): cell for cell in cells}
        arms = {Arm(cell["arm"], cell["system"], cell["k"]) for cell in cells}
        self.arms = sorted(arms, key=lambda arm: (_order(arm.system), arm.system, arm.k or 0))
        places = {(cell["dataset"], cell["load"]) for cell in cells}
        self.places = sorted(places, key=lambda place: (place[0], place[1][0], float(place[1][1:])))
        self._repetitions = sorted({cell["repetition"] for cell in cells})

    def values(self, arm: Arm, place: tuple[str, str], name: str = RATE) -> dict[int, float]:
        """Return a figure by repetition, where it is known."""
        cells = {number: self._cells.get((arm.name, place, number), {}).get(name) for number in self._repetitions}
        return {number: value for number, value in cells.items() if value is not None}

    def ratios(self, arm: Arm, other: Arm, place: tuple[str, str]) -> list[float]:
        """Return the throughput of `arm` over that of `other` in each repetition that has both."""
        rates, others = self.values(arm, place), self.values(other, place)
        return [rates[number] / others[number] for number in rates.keys() & others.keys()]

    def point(self, arm: Arm, place: tuple[str, str]) -> tuple[float, float] | None:
        """Return the tokens per second of a user, by the median TPOT, and of all together; `None`: unknown."""
        rates, tpots = self.values(arm, place), self.values(arm, place, TPOT)
        if not rates or not tpots or min(tpots.values()) <= 0:
            return None
        return 1000 / statistics.median(tpots.values()), statistics.median(rates.values())

    def best(self, systems: Sequence[str], place: tuple[str, str]) -> Arm | None:
        """Return the arm of `systems` with the highest median throughput."""
        known = {
            arm: statistics.median(rates.values())
            for arm in self.arms
            if arm.system in systems and (rates := self.values(arm, place))
        }
        return max(known, key=lambda arm: known[arm], default=None)


def markdown(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the report."""
    results = Results(cells)
    models = ", ".join(sorted({str(cell["model_id"]) for cell in cells}))
    parts = [
        "# Speculation sweep\n",
        f"Model {models}. Medians over the repetitions, with their range; figures are those of vllm bench serve.\n",
        *_adaptive(results),
        *_pareto(results),
        *_all(results),
        *_failures(cells),
    ]
    return "\n".join(parts) + "\n"


def _all(results: Results) -> list[str]:
    plain = next((arm for arm in results.arms if arm.system == NO_SPECULATION), None)
    known = [
        figure
        for figure in _FIGURES
        if any(results.values(arm, place, figure[0]) for arm in results.arms for place in results.places)
    ]
    rows = []
    for place in results.places:
        for arm in results.arms:
            if rates := results.values(arm, place):
                over = [] if plain is None else [_ranged(results.ratios(arm, plain, place), "{:.2f}")]
                medians = [_median(results.values(arm, place, name).values(), form) for name, _, form in known]
                rows.append(
                    [place[0], _title(place[1]), arm.name, _ranged([*rates.values()], "{:,.0f}"), *over, *medians]
                )
    heads = ["data set", "load", "arm", "output tokens/s", *([] if plain is None else ["over no speculation"])]
    return ["## All arms\n", *table([*heads, *(title for _, title, _ in known)], rows)]


def _adaptive(results: Results) -> list[str]:
    """Return the best single K of each place, and adaptive K over it and over the best of EAGLE-3."""
    adaptive = next((arm for arm in results.arms if arm.system == ADAPTIVE), None)
    if all(arm.k is None for arm in results.arms):
        return []
    rows = []
    for place in results.places:
        row = [place[0], _title(place[1])]
        for systems in ((P_EAGLE, NO_SPECULATION), (EAGLE_3,)):
            best = results.best(systems, place)
            row += [UNKNOWN if best is None else best.name]
            row += [UNKNOWN if None in (best, adaptive) else _ranged(results.ratios(adaptive, best, place), "{:.2f}")]  # type: ignore[arg-type]
        rows.append(row)
    heads = ("data set", "load", "best single K", "adaptive over it", "best of EAGLE-3", "adaptive over it")
    text = (
        "Output tokens per second. Traffic is steady within a cell; what adaptive K gains under shifting traffic is in "
        "`specpilot bench demo`.\n"
    )
    return ["## Adaptive K beside the best single K of each load\n", text, *table(heads, rows), ""]


def _pareto(results: Results) -> list[str]:
    """Return each arm's tokens per second in all and per user, and whether another arm has more of both."""
    rows = []
    for place in results.places:
        points = {arm.name: point for arm in results.arms if (point := results.point(arm, place)) is not None}
        for name, (user, rate) in points.items():
            better = [other for other, point in points.items() if point[0] > user and point[1] > rate]
            if name.startswith(ADAPTIVE):
                rows.append(
                    [place[0], _title(place[1]), name, f"{user:.1f}", f"{rate:,.0f}", ", ".join(better) or "none"]
                )
    heads = ("data set", "load", "arm", "tokens/s per user", "output tokens/s", "arms with more of both")
    text = (
        "Per user: 1 s over the median TPOT. `pareto.svg` has all arms over all loads. Medians of a few cells differ "
        "by noise: see the ranges below.\n"
    )
    return ["## Throughput and speed per user\n", text, *table(heads, rows), ""] if rows else []


def _failures(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [(cell["label"], cell["failed"], (cell["errors"] or ["no reason"])[0]) for cell in cells if cell["failed"]]
    title = ["\n## Failed requests\n", "Their tokens and times are in no other figure.\n"]
    return [*title, *table(("cell", "failed", "first error"), rows)] if rows else []


def _title(load: str) -> str:
    return f"{load[1:]} in flight" if load[0] == "c" else f"{load[1:]} a second"


def _median(values: Any, text: str) -> str:
    known = list(values)
    return text.format(statistics.median(known)) if known else UNKNOWN


def _ranged(values: Sequence[float], text: str) -> str:
    if not values:
        return UNKNOWN
    spread = f" ({text.format(min(values))} to {text.format(max(values))})" if len(values) > 1 else ""
    return text.format(statistics.median(values)) + spread


def _order(system: str) -> int:
    return SYSTEMS.index(system) if system in SYSTEMS else len(SYSTEMS)

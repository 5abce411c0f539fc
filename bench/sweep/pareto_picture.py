"""The picture of a sweep: throughput over the speed of a user (`bench.sweep.pareto`)."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.bench.sweep.plan import ADAPTIVE
from specpilot.bench.sweep.report import Results

_PANEL_INCHES = (6.5, 4.2)


def lines_of(results: Results, data_set: str) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each arm with one data set, by load: tokens per second of a user, and of all together."""
    places = [place for place in results.places if place[0] == data_set]
    points = {arm.name: [results.point(arm, place) for place in places] for arm in results.arms}
    return {name: known for name, row in points.items() if (known := [point for point in row if point is not None])}


def picture(cells: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the SVG; `None` without two loads, or without matplotlib."""
    results = Results(cells)
    names = list(dict.fromkeys(name for name, _ in results.places))
    if len(results.places) == len(names):
        return None
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second, and is not needed to measure
    except ImportError:
        return None
    width, height = _PANEL_INCHES
    figure, panels = plt.subplots(1, len(names), figsize=(width * len(names), height), squeeze=False)
    for panel, name in zip(panels[0], names, strict=True):
        for arm, points in lines_of(results, name).items():
            style = {"linewidth": 2.5, "zorder": 3} if arm.startswith(ADAPTIVE) else {"linewidth": 1.0}
            panel.plot([user for user, _ in points], [rate for _, rate in points], marker="o", label=arm, **style)
        panel.set_title(name, loc="left", fontsize="medium")
        panel.set_xlabel("tokens per second of a user")
        panel.set_ylabel("output tokens per second")
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()

"""The plot of step times: milliseconds by running requests, a panel for each engine with the adapter."""

from collections.abc import Mapping
from typing import Any

from specpilot.bench.gpu_check.step_parts import STOCK, STOCK_HEAD, name_of
from specpilot.bench.gpu_engine.cells import HALVES, RANDOM, UNIFORM
from specpilot.bench.report.svg import svg

_PANEL_INCHES = (5.2, 4.0)
_MARKS = {HALVES: "^", RANDOM: "x"}


def step_plot(data: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the plot as SVG; `None` without step times of the adapter or without matplotlib."""
    stock = {name_of(engine): engine for engine in (STOCK, STOCK_HEAD)}
    timed = {part: outcome["cells"] for part, outcome in data.items() if outcome.get("cells") and "measured" in outcome}
    panels = [part for part in timed if part not in stock]
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second, and is not needed to measure
    except ImportError:
        return None
    if not panels:
        return None
    width, height = _PANEL_INCHES
    figure, axes = plt.subplots(1, len(panels), figsize=(len(panels) * width, height), squeeze=False, sharey=True)
    for part, panel in zip(panels, axes[0], strict=True):
        for name, engine in stock.items():
            _line(
                panel,
                timed.get(name, ()),
                None,
                f"stock, {engine}",
                color="0.5",
                linestyle="--" if engine == STOCK else ":",
            )
        ks = sorted({row["ks"][0] for row in timed[part] if row["kind"] == UNIFORM})
        for number, k in enumerate(ks):
            _line(panel, timed[part], k, f"K = {k}", color=f"C{number}", marker="o")
        for kind, mark in _MARKS.items():
            mixed = [row for row in timed[part] if row["kind"] == kind and row["step_ms"] is not None]
            if mixed:
                points = [row["running"] for row in mixed], [row["step_ms"] for row in mixed]
                panel.scatter(*points, marker=mark, color="black", zorder=3, label=f"mixed K, {kind}")
        panel.set_xscale("log", base=2)
        panel.set(title=part, xlabel="running requests", ylabel="milliseconds a step", ylim=(0, None))
        panel.legend(fontsize="small")
    return svg(figure)


def _line(panel: Any, rows: Any, k: int | None, label: str, **style: Any) -> None:
    points = sorted(
        (row["running"], row["step_ms"])
        for row in rows
        if row["kind"] == UNIFORM and row["step_ms"] is not None and (k is None or row["ks"] == [k])
    )
    if points:
        panel.plot([x for x, _ in points], [y for _, y in points], label=label, **style)

"""The plots of a sweep as SVG: speed-up by K and load, acceptance length by K, best K by load, adaptive K."""

from collections.abc import Callable
from typing import Any

from specpilot.bench.report.svg import svg
from specpilot.bench.sweep.plan import ADAPTIVE, EAGLE_3, NO_SPECULATION, P_EAGLE
from specpilot.bench.sweep.results import Results, load_title

HEADS = (P_EAGLE, EAGLE_3)
STATIC = (NO_SPECULATION, EAGLE_3, P_EAGLE)
_PANEL_INCHES = (4.6, 3.6)


def draw(results: Results) -> dict[str, str]:
    """Return each plot for which the results have figures; none without matplotlib."""
    try:
        from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second
    except ImportError:
        return {}
    plots = {}
    if results.arms_of(NO_SPECULATION):
        for data_set in results.data_sets:
            plots[f"speed-up-{data_set}"] = _by_k(plt, results, data_set)
    if any(cell.get("spec_decode_acceptance_length") for cell in results.cells):
        plots["acceptance"] = _acceptance(plt, results)
    if results.arms_of(P_EAGLE):
        plots["best-k"] = _best_k(plt, results)
    if results.arms_of(ADAPTIVE) and any(arm.system in STATIC for arm in results.arms):
        plots["adaptive"] = _adaptive(plt, results)
    return plots


def _by_k(plt: Any, results: Results, data_set: str) -> str:
    """Return a panel for each head: speed-up by K, a line for each load; adaptive K as a dashed line."""
    heads = [head for head in HEADS if results.arms_of(head)]

    def fill(panels: list[Any]) -> None:
        for panel, head in zip(panels, heads, strict=True):
            for number, load in enumerate(results.loads):
                points = [
                    (arm.k or 0, ratio.median)
                    for arm in results.arms_of(head)
                    if (ratio := results.ratio(arm.name, NO_SPECULATION, data_set, load)) is not None
                ]
                panel.plot([0, *(k for k, _ in points)], [1.0, *(y for _, y in points)], "o-", color=f"C{number}",
                           label=load_title(load))  # fmt: skip
                adaptive = results.ratio(ADAPTIVE, NO_SPECULATION, data_set, load)
                if adaptive is not None and head == P_EAGLE:
                    panel.axhline(adaptive.median, color=f"C{number}", linestyle=":")
            panel.set(title=f"{head}, {data_set}", xlabel="K", ylabel="speed-up over no speculation")
            panel.axhline(1.0, color="0.7", linewidth=0.8)
            _legend(panel)

    return _figure(plt, max(1, len(heads)), fill) if heads else _figure(plt, 1, lambda _: None)


def _acceptance(plt: Any, results: Results) -> str:
    def fill(panels: list[Any]) -> None:
        for head, line in zip(HEADS, ("o-", "s--"), strict=True):
            for number, data_set in enumerate(results.data_sets):
                points = []
                for arm in results.arms_of(head):
                    lengths = [
                        length.median
                        for load in results.loads
                        if (length := results.figure(arm.name, data_set, load, "spec_decode_acceptance_length"))
                    ]
                    if lengths and arm.k is not None:
                        points.append((arm.k, sum(lengths) / len(lengths)))
                if points:
                    panels[0].plot(*zip(*points, strict=True), line, color=f"C{number}", label=f"{head}, {data_set}")
        panels[0].set(xlabel="K", ylabel="acceptance length", title="Acceptance length by K")
        _legend(panels[0])

    return _figure(plt, 1, fill)


def _best_k(plt: Any, results: Results) -> str:
    static = [arm for arm in results.arms if arm.system in (P_EAGLE, NO_SPECULATION)]

    def fill(panels: list[Any]) -> None:
        for data_set in results.data_sets:
            best = [results.best(static, data_set, load) for load in results.loads]
            known = [(load_title(load), arm.k or 0) for load, arm in zip(results.loads, best, strict=True) if arm]
            panels[0].plot(*zip(*known, strict=True), "o-", label=data_set)
        panels[0].set(ylabel="best static K", title="Best K by load")
        _legend(panels[0])

    return _figure(plt, 1, fill)


def _adaptive(plt: Any, results: Results) -> str:
    static = [arm for arm in results.arms if arm.system in STATIC]
    places = [(data, load) for data in results.data_sets for load in results.loads]

    def fill(panels: list[Any]) -> None:
        for number, arm in enumerate(static):
            ratios = [results.ratio(ADAPTIVE, arm.name, data, load) for data, load in places]
            heights = [ratio.median if ratio else float("nan") for ratio in ratios]
            width = 0.8 / len(static)
            panels[0].bar([i + number * width for i in range(len(places))], heights, width, label=f"over {arm.name}")
        panels[0].axhline(1.0, color="0.3", linewidth=0.8)
        labels = [f"{data}\n{load_title(load)}" for data, load in places]
        panels[0].set_xticks([i + 0.4 for i in range(len(places))], labels, fontsize=6, rotation=60)
        panels[0].set(ylabel="tokens per second, adaptive over static", title="Adaptive against each static K")
        _legend(panels[0])

    return _figure(plt, 1, fill, wide=True)


def _legend(panel: Any) -> None:
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=7)


def _figure(plt: Any, count: int, fill: Callable[[list[Any]], None], *, wide: bool = False) -> str:
    width, height = _PANEL_INCHES
    figure, panels = plt.subplots(
        1, count, figsize=((2 if wide else count) * width, height), squeeze=False, sharey=True
    )
    fill(list(panels[0]))
    return svg(figure)

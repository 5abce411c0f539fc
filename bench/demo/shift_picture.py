"""A picture of a shifting load: each arm's throughput in each phase, and K of the adaptive arm over time.

Above, a bar for each arm and phase, in output tokens per second. Below, for each class, the mean K of the drafts that
were verified between two readings. Time runs along both, from phase to phase.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from specpilot.bench.demo.system import Reading
from specpilot.bench.demo.trace import Trace

_INCHES = (9.0, 5.2)
_SHADE = "0.95"


def picture(trace: Trace, rates: Mapping[str, Sequence[float]], phases: Sequence[Sequence[Reading]]) -> str:
    """Return the SVG. `rates` has each arm's output tokens per second by phase; `phases` the readings of one play."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second, and is not needed to measure

    lengths = [phase.seconds for phase in trace.phases]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    figure, panels = plt.subplots(2, 1, figsize=_INCHES, sharex=True, height_ratios=(3, 2))
    above, below = panels
    for place, (arm, row) in enumerate(rates.items()):
        widths = [0.9 * length / len(rates) for length in lengths]
        lefts = [
            start + 0.05 * length + place * width for start, length, width in zip(starts, lengths, widths, strict=True)
        ]
        above.bar(lefts, row, widths, align="edge", label=arm)
    names = sorted({name for readings in phases for reading in readings for name in reading.drafts})
    for number, name in enumerate(names):
        for run in k_runs(name, phases, starts):
            below.plot([at for at, _ in run], [k for _, k in run], color=f"C{number}", linewidth=2, label=name)
    for panel, title in zip(
        panels, ("Output tokens per second, by phase", "Mean K of adaptive drafts, by class"), strict=True
    ):
        for start, length in list(zip(starts, lengths, strict=True))[::2]:
            panel.axvspan(start, start + length, color=_SHADE, zorder=0)
        panel.set_title(title, loc="left", fontsize="medium")
        panel.set_ylim(bottom=0)
        lines = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
        if lines:
            panel.legend(
                lines.values(), lines, ncols=len(lines), frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.97)
            )
    below.set_xlim(0, sum(lengths))
    below.set_xticks(
        [start + length / 2 for start, length in zip(starts, lengths, strict=True)],
        [phase.name for phase in trace.phases],
    )
    figure.tight_layout()
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    return text.getvalue()


def k_runs(
    name: str, phases: Sequence[Sequence[Reading]], starts: Sequence[float]
) -> Iterable[list[tuple[float, float]]]:
    """Yield for each phase in which `name` was drafted for the seconds since the beginning and K, as steps."""
    for start, readings in zip(starts, phases, strict=True):
        run: list[tuple[float, float]] = []
        for before, now in pairwise(readings):
            drafts = now.drafts.get(name, 0.0) - before.drafts.get(name, 0.0)
            if drafts > 0:
                k = (now.verified_tokens.get(name, 0.0) - before.verified_tokens.get(name, 0.0)) / drafts
                run += [(start + before.at - readings[0].at, k), (start + now.at - readings[0].at, k)]
        if run:
            yield run

"""The result of a simulation as Markdown, marked as such. Pure."""

from collections.abc import Mapping, Sequence

from specpilot.bench.report.markdown import table
from tests.simulation.cell import Play, Result
from tests.simulation.gpu_plants import SIMULATION, GpuPlant
from tests.simulation.published import Load, Text

COLUMNS = (
    "in flight", "K chosen", "tokens/s", "over no speculation", "over K = 3", "over K = 7", "best single K", "over it",
)  # fmt: skip


def head(plant: GpuPlant, play: Play) -> str:
    """Return the text above the tables."""
    return (
        f"# {plant.name}: {SIMULATION}\n\n"
        f"**SIMULATION.** Step times of {plant.hardware} with {plant.target}, fitted to published figures; acceptance "
        "as published, the same for all requests of a text. The control law is the real one. Each figure is of "
        f"{play.seconds} virtual seconds of a steady load, replies of {play.reply_tokens:g} tokens in the mean, seed "
        f"{play.seed}; differences below 2 % are noise.\n"
    )


def section(load: Load, texts: Mapping[str, Text], results: Sequence[Result]) -> str:
    """Return the table of one load. `K chosen` is the mean over decodes; with several texts, one for each."""
    names = list(load.shares)
    lines = [f"## {load.name} (SIMULATION)\n"]
    lines += [f"- {_share(load, name)}{_described(texts[name])}" for name in names]
    chosen = "K chosen" if len(names) == 1 else f"K chosen: {' / '.join(names)}"
    titles = [chosen if title == "K chosen" else title for title in COLUMNS]
    return "\n".join([*lines, "", *table(titles, map(_cells, results))]) + "\n"


def _share(load: Load, name: str) -> str:
    return "" if len(load.shares) == 1 else f"{load.shares[name]:.0%} of the requests: "


def _described(text: Text) -> str:
    lengths = ", ".join(f"{length:.2f} at K = {k}" for k, length in sorted(text.lengths.items()))
    return f"{text.name}: acceptance length {lengths} ({text.head}; {text.source})"


def _cells(result: Result) -> list[str]:
    ratios = [f"{result.over(k):.2f}" for k in (0, 3, 7)]
    k = " / ".join(f"{each:.1f}" for each in result.k)
    best = result.best_k
    return [str(result.in_flight), k, f"{result.adaptive:.0f}", *ratios, str(best), f"{result.over(best):.2f}"]

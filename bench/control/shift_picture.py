"""A picture of a shifting load: each arm's throughput in each phase, and K of the adaptive arm over time. Pure.

Above, a bar for each arm and phase, in output tokens per second. Below, for each class, the mean K of the drafts that
were verified between two readings. Time runs along both, from phase to phase.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from xml.sax.saxutils import escape

from specpilot.bench.load.system import Reading
from specpilot.bench.load.trace import Trace

WIDTH, LEFT, RIGHT = 900, 60, 20
BARS_TOP, BARS_HEIGHT = 60, 170
K_TOP, K_HEIGHT = 270, 130
HEIGHT = 430
"""Places and sizes in pixels."""

ARM_COLOURS = ("#1a7f5a", "#9aa5b1", "#c0562f", "#7a6bb0", "#b8860b")
CLASS_COLOURS = ("#1f5fbf", "#b03060", "#2f855a", "#8a6d00")


def picture(trace: Trace, rates: Mapping[str, Sequence[float]], phases: Sequence[Sequence[Reading]]) -> str:
    """Return the SVG. `rates` has each arm's output tokens per second by phase; `phases` the readings of one play."""
    starts = [sum(phase.seconds for phase in trace.phases[:i]) for i in range(len(trace.phases) + 1)]
    inner = WIDTH - LEFT - RIGHT

    def x(seconds: float) -> float:
        return LEFT + inner * seconds / starts[-1]

    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-size="13" '
            'font-family="system-ui, sans-serif" aria-label="Tokens per second by phase, and K over time">'
        ),
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for index, phase in enumerate(trace.phases):
        left, right = x(starts[index]), x(starts[index + 1])
        if index % 2 == 0:
            box = f'x="{left:.0f}" y="{BARS_TOP}" width="{right - left:.0f}" height="{K_TOP + K_HEIGHT - BARS_TOP}"'
            parts.append(f'<rect {box} fill="#f3f6f9"/>')
        label = f'x="{(left + right) / 2:.0f}" y="{K_TOP + K_HEIGHT + 18}" text-anchor="middle"'
        parts.append(f'<text {label} fill="#52606d">{escape(phase.name)}</text>')
    parts += [
        f'<g fill="#1f2933" font-weight="600"><text x="{LEFT}" y="20">Output tokens per second, by phase</text>',
        f'<text x="{LEFT}" y="{K_TOP - 13}">Mean K of adaptive drafts, by class</text></g>',
    ]
    parts += _bars(rates, starts, x)
    parts += _lines(phases, starts, x)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bars(rates: Mapping[str, Sequence[float]], starts: Sequence[float], x: Callable[[float], float]) -> list[str]:
    top = max(max(row) for row in rates.values())
    base = BARS_TOP + BARS_HEIGHT
    parts = []
    for place, (arm, row) in enumerate(rates.items()):
        colour = ARM_COLOURS[place % len(ARM_COLOURS)]
        parts += _legend(place, arm, colour, 38)
        for index, rate in enumerate(row):
            left, right = x(starts[index]), x(starts[index + 1])
            wide = (right - left - 16) / len(rates)
            tall = BARS_HEIGHT * rate / top
            at = f'x="{left + 8 + wide * place:.1f}" y="{base - tall:.1f}" width="{wide - 2:.1f}" height="{tall:.1f}"'
            parts.append(f'<rect {at} fill="{colour}"><title>{escape(arm)}: {rate:.0f}</title></rect>')
    return parts + _scale(BARS_TOP, BARS_HEIGHT, round(top))


def _lines(phases: Sequence[Sequence[Reading]], starts: Sequence[float], x: Callable[[float], float]) -> list[str]:
    names = sorted({name for readings in phases for reading in readings for name in reading.drafts})
    drawn = {name: runs for name in names if (runs := list(_runs(name, phases, starts)))}
    top = math.ceil(max((k for runs in drawn.values() for run in runs for _, k in run), default=1.0)) or 1
    parts = []
    for place, (name, runs) in enumerate(drawn.items()):
        colour = CLASS_COLOURS[place % len(CLASS_COLOURS)]
        parts += _legend(place + 3, name, colour, K_TOP - 14)
        for run in runs:
            points = " ".join(f"{x(at):.1f},{K_TOP + K_HEIGHT * (1 - k / top):.1f}" for at, k in run)
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
    return parts + _scale(K_TOP, K_HEIGHT, top)


def _runs(
    name: str, phases: Sequence[Sequence[Reading]], starts: Sequence[float]
) -> Iterable[list[tuple[float, float]]]:
    """Yield for each phase in which `name` was drafted for the seconds since the beginning and K, as steps."""
    for start, readings in zip(starts, phases, strict=False):
        run: list[tuple[float, float]] = []
        for before, now in pairwise(readings):
            drafts = now.drafts.get(name, 0.0) - before.drafts.get(name, 0.0)
            if drafts > 0:
                k = (now.verified_tokens.get(name, 0.0) - before.verified_tokens.get(name, 0.0)) / drafts
                run += [(start + before.at - readings[0].at, k), (start + now.at - readings[0].at, k)]
        if run:
            yield run


def _legend(place: int, name: str, colour: str, y: int) -> list[str]:
    left = LEFT + 110 * place
    return [
        f'<rect x="{left}" y="{y - 10}" width="12" height="12" fill="{colour}"/>',
        f'<text x="{left + 17}" y="{y + 1}" fill="#1f2933">{escape(name)}</text>',
    ]


def _scale(top: int, height: int, highest: int) -> list[str]:
    return [
        f'<text x="{LEFT - 8}" y="{top + height}" text-anchor="end" fill="#52606d">0</text>',
        f'<text x="{LEFT - 8}" y="{top + 10}" text-anchor="end" fill="#52606d">{highest}</text>',
        f'<path d="M{LEFT} {top}V{top + height}H{WIDTH - RIGHT}" fill="none" stroke="#9aa5b1"/>',
    ]

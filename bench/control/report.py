"""The figures of a control measurement from its plays, a Markdown report and its plots. Pure.

Rates are output tokens per second of a phase, the median over the repetitions of an arm. The arms play a phase one
after another, so each rate is first divided by the machine's speed in this phase of this repetition: the median ratio
of the fixed arms' rates there to their own medians over the repetitions. The oracle has the rate of the best static K
in every phase. Totals weight phases by their length.
"""

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from specpilot.bench.load.play import Played
from specpilot.bench.load.system import Reading
from specpilot.bench.load.trace import Trace
from specpilot.bench.report.markdown import table

ADAPTIVE = "adaptive"
TABLE = "table"
BY_CLASS = "K by class"
LABELLED = "with labels"
ALONE = "engine alone"
NEAR = 0.95
"""Adapted: within 5 % of the oracle."""
_WINDOW = 2
"""Readings (one a second) whose mean rate must be within `NEAR` for an arm to count as adapted."""
_NORMAL_95 = 1.96
_DRAWS = 1000
"""Seeded draws behind `worst_of_equals`: its median is then good to half a percent."""


@dataclass(frozen=True, slots=True)
class Result:
    """Every play of every arm."""

    trace: Trace
    plays: Mapping[str, Sequence[Played]]

    def rates(self, arm: str) -> list[float]:
        """The median rate of each phase."""
        return [statistics.median(column) for column in zip(*self.even(arm), strict=True)]

    def even(self, arm: str) -> list[list[float]]:
        """The rates of each play by phase, divided by the machine's speed."""
        return [
            [rate / speed for rate, speed in zip(play.rates, speeds, strict=True)]
            for play, speeds in zip(self.plays[arm], self.speeds(), strict=True)
        ]

    def speeds(self) -> list[list[float]]:
        """The machine's relative speed in each repetition, by phase; around 1."""
        fixed = {arm: [play.rates for play in self.plays[arm]] for arm in [*self.statics, TABLE]}
        medians = {
            arm: [statistics.median(column) for column in zip(*rows, strict=True)] for arm, rows in fixed.items()
        }
        return [
            [
                statistics.median(rows[repetition][phase] / medians[arm][phase] for arm, rows in fixed.items())
                for phase in range(len(self.trace.phases))
            ]
            for repetition in range(len(self.plays[TABLE]))
        ]

    def scatter(self) -> float:
        """The relative standard deviation of a phase's rate over the plays, without the machine's speed.

        Estimated from the ratios of two fixed arms in the same phase and repetition, in which the speed cancels. The
        logarithm of the ratio has twice the variance of one arm's. 0 with a single play.
        """
        if len(self.plays[TABLE]) == 1:
            return 0.0
        variances = [
            statistics.variance([math.log(a.rates[phase] / b.rates[phase]) for a, b in zip(one, other, strict=True)])
            for one, other in combinations([self.plays[arm] for arm in [*self.statics, TABLE]], 2)
            for phase in range(len(self.trace.phases))
        ]
        return math.sqrt(statistics.mean(variances) / 2)

    def worst_of_equals(self) -> float:
        """The expected worst phase of an arm that equals the arm that it is compared with in every phase.

        The smallest of several ratios is below 1 by chance; this is its median over seeded draws with `scatter`.
        """
        rng, scatter, plays = random.Random(0), self.scatter(), len(self.plays[TABLE])  # noqa: S311 - no secret
        return statistics.median(
            min(
                statistics.median(rng.gauss(1, scatter) for _ in range(plays))
                / statistics.median(rng.gauss(1, scatter) for _ in range(plays))
                for _ in self.trace.phases
            )
            for _ in range(_DRAWS)
        )

    def phase_half_width(self) -> float:
        """Half of the 95 % interval of the ratio of two arms' rates in one phase, each the median over the plays.

        A median of normal values varies by sqrt(pi / 2) times as much as their mean does.
        """
        plays = len(self.plays[TABLE])
        of_median = math.sqrt(math.pi / 2) if plays > 2 else 1.0  # noqa: PLR2004 - a median of two is their mean
        return _NORMAL_95 * of_median * self.scatter() * math.sqrt(2 / plays)

    def half_width(self) -> float:
        """The same for the ratio of two arms' totals: phases vary independently, weighted by their tokens."""
        tokens = [rate * phase.seconds for rate, phase in zip(self.rates(TABLE), self.trace.phases, strict=True)]
        return self.phase_half_width() * math.sqrt(sum(part**2 for part in tokens)) / sum(tokens)

    def total(self, arm: str) -> float:
        """Tokens of the whole trace."""
        return self.tokens(self.rates(arm))

    def tokens(self, rates: Sequence[float]) -> float:
        """Tokens that `rates`, one a phase, add up to."""
        return sum(rate * phase.seconds for rate, phase in zip(rates, self.trace.phases, strict=True))

    @property
    def statics(self) -> list[str]:
        """The arms of a single K."""
        return [arm for arm in self.plays if arm.startswith("K=")]

    @property
    def best_static(self) -> str:
        """The best single K over the trace."""
        return max(self.statics, key=self.total)

    def oracle(self, phase: int) -> str:
        """The best static K of a phase."""
        return max(self.statics, key=lambda arm: self.rates(arm)[phase])


def hand_tuned(trace: Trace, rates: Mapping[int, Sequence[float]], max_running: int) -> list[list[int]]:
    """Return the best table of K by batch size for `trace`, classes unknown, as ranges `[lo, hi, K]`.

    `rates` are those of each static K by phase. Each concurrency of the trace gets the K with the most tokens over its
    phases; ranges meet halfway (geometrically) between neighbouring concurrencies.
    """
    sizes: dict[int, dict[int, float]] = {}
    for index, phase in enumerate(trace.phases):
        by_k = sizes.setdefault(min(sum(phase.streams.values()), max_running), {})
        for k, row in rates.items():
            by_k[k] = by_k.get(k, 0.0) + row[index] * phase.seconds
    ordered = sorted(sizes)
    table, lo = [], 1
    for position, size in enumerate(ordered):
        is_last = position + 1 == len(ordered)
        hi = max_running if is_last else max(lo, int((size * ordered[position + 1]) ** 0.5))
        if lo <= hi:
            table.append([lo, hi, max(sizes[size], key=lambda k, size=size: sizes[size][k])])  # type: ignore[misc]
            lo = hi + 1
    return table


def adapt_s(readings: Sequence[Reading], steady: float) -> float:
    """Return the seconds until two seconds in a row deliver `NEAR` of `steady`; the phase's length if they never do."""
    for start in range(len(readings) - _WINDOW):
        first, last = readings[start], readings[start + _WINDOW]
        if (last.tokens - first.tokens) / (last.at - first.at) >= NEAR * steady:
            return first.at - readings[0].at
    return readings[-1].at - readings[0].at


def steady_rate(readings: Sequence[Reading]) -> float:
    """Return the rate of a phase's second half."""
    half = readings[len(readings) // 2 :]
    return (half[-1].tokens - half[0].tokens) / (half[-1].at - half[0].at) if len(half) > 1 else 0.0


def latency_p99(plays: Sequence[Played]) -> float:
    """Return the 99th percentile of the inter-token latency over whole plays, in seconds, from vLLM's histogram."""
    counts: dict[float, float] = {}
    for readings in [readings for played in plays for readings in played.phases]:
        for bound, count in readings[-1].latency.items():
            counts[bound] = counts.get(bound, 0.0) + count - readings[0].latency.get(bound, 0.0)
    bounds = sorted(counts)
    rank = 0.99 * counts[bounds[-1]]
    below, floor = 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= rank:
            share = (rank - below) / max(counts[bound] - below, 1e-9)
            return floor if bound == float("inf") else floor + share * (bound - floor)
        below, floor = counts[bound], bound
    return floor


def summary(result: Result) -> dict[str, Any]:
    """Return the figures of the report's last line.

    `intervals` has the half-width of the 95 % interval of each figure that compares totals, and of the worst phase's.
    """
    phases = result.trace.phases
    adaptive = result.rates(ADAPTIVE)
    oracle = [result.rates(result.oracle(index))[index] for index in range(len(phases))]
    best = result.total(result.best_static)
    total = result.total(ADAPTIVE)
    deepest = max(result.statics, key=lambda arm: int(arm[2:]))
    plain = [
        max(off, default) for off, default in zip(result.rates("K=0"), result.rates(deepest), strict=True)
    ] if "K=0" in result.plays else result.rates(deepest)  # fmt: skip
    times, static_times = [], []
    for index in range(len(phases)):
        best_plays = result.plays[result.oracle(index)]
        for play, best_play in zip(result.plays[ADAPTIVE], best_plays, strict=True):
            steady = steady_rate(best_play.phases[index])
            times.append(adapt_s(play.phases[index], steady))
            static_times.append(adapt_s(best_play.phases[index], steady))
    compared = {
        "gain_over_best_static": total / best - 1,
        "gain_over_table": total / result.total(TABLE) - 1,
        "over_phase_oracle": total / result.tokens(oracle),
        **{
            figure: total / result.total(arm)
            for figure, arm in (
                ("unlabelled_over_labelled", LABELLED),
                ("over_k_by_class", BY_CLASS),
                ("over_engine_alone", ALONE),
            )
            if arm in result.plays
        },
    }
    figures: dict[str, Any] = {
        **compared,
        "worst_phase": min(rate / other for rate, other in zip(adaptive, plain, strict=True)),
        "intervals": {
            **{name: round(result.half_width(), 3) for name in compared},
            "worst_phase": round(result.phase_half_width(), 3),
        },
        "worst_phase_of_an_equal_arm": result.worst_of_equals(),
        "phase_scatter": result.scatter(),
        "best_single_k": int(result.best_static[2:]),
        "headroom": result.tokens(oracle) / best - 1,
        "adapt_s": statistics.median(times),
        "adapt_s_of_the_oracles_own_arm": statistics.median(static_times),
        "itl_p99_ratio": latency_p99(result.plays[ADAPTIVE]) / latency_p99(result.plays[result.best_static]),
        "failed": sum(sum(played.failed.values()) for plays in result.plays.values() for played in plays),
    }
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}


def markdown(result: Result, tuned: Sequence[Sequence[int]]) -> str:
    """Return the report."""
    arms = list(result.plays)
    speeds = [speed for row in result.speeds() for speed in row]
    head = [
        "# Control measurement",
        "",
        f"Output tokens per second; medians of {len(result.plays[ADAPTIVE])} plays, with their range for `adaptive`.",
        f"The machine's speed, {min(speeds):.2f} to {max(speeds):.2f} of the usual, is taken out.",
        f"The hand-tuned table is {list(tuned)} (`[lo, hi, K]` over running decodes).",
        "",
    ]
    rows = []
    for index, phase in enumerate(result.trace.phases):
        rates = {arm: result.rates(arm)[index] for arm in arms}
        best = result.oracle(index)
        spread = [row[index] for row in result.even(ADAPTIVE)]
        cells = [
            f"{rates[arm]:.0f}" + (f" ({min(spread):.0f} to {max(spread):.0f})" if arm == ADAPTIVE else "")
            for arm in arms
        ]
        rows.append([phase.name, *cells, f"{rates[ADAPTIVE] / rates[best]:.2f} ({best})"])
    totals = [f"{result.total(arm) / result.total(result.best_static):.3f}" for arm in arms]
    rows.append(["tokens, over the best single K", *totals, ""])
    return "\n".join([*head, *table(["phase", *arms, "adaptive over the oracle"], rows)]) + "\n"


def plot(result: Result, path: Path) -> None:
    """Draw each arm's rate over the oracle's by phase, and below it K by class over time in the last adaptive play."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - takes a second, and is not needed to measure

    figure, (above, below) = plt.subplots(2, 1, figsize=(12, 9))
    phases = result.trace.phases
    oracle = [result.rates(result.oracle(index))[index] for index in range(len(phases))]
    for arm in [*result.statics, TABLE, ADAPTIVE]:
        ratios = [rate / best for rate, best in zip(result.rates(arm), oracle, strict=True)]
        above.plot(ratios, marker="o", linewidth=2.5 if arm == ADAPTIVE else 1, label=arm)
    above.set_xticks(range(len(phases)), [phase.name for phase in phases], rotation=40, ha="right", fontsize=8)
    above.set_ylabel("rate over the oracle's")
    above.legend(ncols=4, fontsize=8)
    readings: list[tuple[float, Reading]] = []  # with the time played until then
    for phase_readings in result.plays[ADAPTIVE][-1].phases:
        began = readings[-1][0] if readings else 0.0
        below.axvline(began, color="0.85", zorder=0)
        readings += [(began + reading.at - phase_readings[0].at, reading) for reading in phase_readings]
    for name in sorted({name for _, reading in readings for name in reading.active_k}):
        points = [(at, reading.active_k[name]) for at, reading in readings if name in reading.active_k]
        below.step([at for at, _ in points], [k for _, k in points], where="post", label=name)
    below.set_xlabel("seconds")
    below.set_ylabel("K")
    below.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)

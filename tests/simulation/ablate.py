"""`python -m tests.simulation.ablate`: what each idea of the control law is worth. SIMULATION.

The real law steers simulated engines in virtual time (`traces`): as it is, and with one idea switched off
(`ablations`), over the same traces with the same seeds; and without a controller (`GUIDANCE`). The table says how many tokens per second are left without the idea: below 1, it pays. An idea that is worth nothing on any trace has no
place in the law. A second table has the phase of each trace with the lowest ratio: a mean over a trace may hide it.
"""

import json
import math
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.report import markdown
from specpilot.bench.report.output import say
from specpilot.controller.estimation.t_interval import Interval, interval
from specpilot.policy.settings import ProgramSettings, load
from tests.simulation.ablations import IDEAS, without
from tests.simulation.traces import SimulatedTrace, traces

PROGRAM = "specpilot bench ablate"
GUIDANCE = "guidance"
"""The idea without which no controller runs: no policy, no acceptance of the fleet, no control group."""
_IDEAS = (*IDEAS, GUIDANCE)
_WHOLE = ""
_TAIL = 0.025


class AblateSettings(ProgramSettings):
    """Simulate the control law with one idea after the other switched off."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_ABLATE_")

    ideas: str = Field(default=",".join(_IDEAS), description="which are switched off, one at a time, by commas")
    traces: str = Field(default=",".join(traces()), description="what is played, comma separated")
    seeds: int = Field(default=5, ge=2, le=100, description="plays of each, whose requests differ")
    first_seed: int = Field(default=0, ge=0, description="seed of the first play; the others have the next ones")
    processes: int = Field(default=2, ge=1, le=256, description="plays at a time")
    out: Path = Field(default=Path(".specpilot/bench-ablate"), description="folder for the table, ablations.md")


class WorstPhase(NamedTuple):
    """The phase of a trace with the lowest ratio: its number, from 1, and the logarithm of the ratio."""

    number: int
    log_ratio: Interval


class _Play(NamedTuple):
    """One trace under the law without an idea (`_WHOLE`: with all)."""

    trace: str
    idea: str
    seed: int


def main(arguments: Sequence[str]) -> None:
    """Run it."""
    settings = load(AblateSettings, PROGRAM, arguments)
    ideas = chosen(PROGRAM, "--ideas", settings.ideas, _IDEAS)
    names = chosen(PROGRAM, "--traces", settings.traces, tuple(traces()))
    seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
    plays = [_Play(name, idea, seed) for seed in seeds for name in names for idea in (_WHOLE, *ideas)]
    rates = dict(_played(plays, settings.processes))
    log_ratios = {idea: {name: _log_ratio(rates, name, idea, seeds) for name in names} for idea in ideas}
    lowest = {idea: {name: _worst(rates, name, idea, seeds) for name in names} for idea in ideas}
    text = table({name: traces()[name] for name in names}, log_ratios, lowest, seeds)
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / "ablations.md"
    path.write_text(text)
    say(f"{text}\ntable: {path}")
    say(json.dumps({idea: {name: item.ratios() for name, item in row.items()} for idea, row in log_ratios.items()}))


def table(
    played: Mapping[str, SimulatedTrace],
    log_ratios: Mapping[str, Mapping[str, Interval]],
    worst: Mapping[str, Mapping[str, WorstPhase]],
    seeds: range,
) -> str:
    """Return, as Markdown, what is left of the rate without each idea on each trace; `log_ratios` are logarithms."""
    lines = [
        "# What each idea of the control law is worth: SIMULATION\n",
        "Tokens per second without the idea over those with all, 95 % interval: below 1 it pays.",
        f"{len(seeds)} seeds ({seeds[0]} to {seeds[-1]}).\n",
        *(f"- {name}: {trace.about}" for name, trace in played.items()),
        "",
    ]
    rows = []
    for idea, row in log_ratios.items():
        mean = math.exp(sum(item.mean for item in row.values()) / len(row))
        rows.append([idea, *(_text(row[name]) for name in played), f"{mean:.3f}"])
    lines += markdown.table(["without", *played, "all, equally"], rows)
    lines += ["", "The phase with the lowest ratio, in the mean of the seeds, and its number, from 1:\n"]
    phases = [
        [idea, *(f"{_text(row[name].log_ratio)} ({row[name].number})" for name in played)]
        for idea, row in worst.items()
    ]
    return "\n".join([*lines, *markdown.table(["without", *played], phases)]) + "\n"


def _played(plays: Sequence[_Play], processes: int) -> Iterator[tuple[_Play, list[float]]]:
    """Yield the logarithms of each play's rates, by second of virtual time averaged over each phase."""
    began, context = time.monotonic(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        running: dict[Future[list[float]], _Play] = {pool.submit(_rates, play): play for play in plays}
        for count, future in enumerate(as_completed(running), start=1):
            play = running[future]
            say(
                f"{count} of {len(plays)} plays in {time.monotonic() - began:.0f} s: {play.trace}, seed {play.seed}, "
                f"{f'without {play.idea}' if play.idea else 'the whole law'}"
            )
            yield play, future.result()


def _rates(play: _Play) -> list[float]:
    trace = traces()[play.trace]
    with without(*([play.idea] if play.idea in IDEAS else [])):
        run = trace.play(play.seed, adapts=play.idea == GUIDANCE)
    return [math.log(run.throughput(index)) for index in range(len(trace.phases))]


def _log_ratio(rates: Mapping[_Play, Sequence[float]], name: str, idea: str, seeds: range) -> Interval:
    """Return the logarithm of what is left without `idea`, averaged over the time of a trace, over its seeds."""
    seconds = [phase.seconds for phase in traces()[name].phases]
    by_phase = _differences(rates, name, idea, seeds)
    logs = [
        math.fsum(log * length for log, length in zip(row, seconds, strict=True)) / sum(seconds) for row in by_phase
    ]
    return interval(logs, _TAIL)


def _worst(rates: Mapping[_Play, Sequence[float]], name: str, idea: str, seeds: range) -> WorstPhase:
    """Return the phase of a trace with the lowest ratio without `idea`, in the mean of the seeds."""
    by_phase = [interval(logs, _TAIL) for logs in zip(*_differences(rates, name, idea, seeds), strict=True)]
    return min((WorstPhase(*item) for item in enumerate(by_phase, start=1)), key=lambda phase: phase.log_ratio.mean)


def _differences(rates: Mapping[_Play, Sequence[float]], name: str, idea: str, seeds: range) -> list[list[float]]:
    """Return the logarithms of the ratio of the rates without `idea` and with it, by seed and phase.

    Both laws play the same requests.
    """
    return [
        [
            ablated - whole
            for ablated, whole in zip(rates[_Play(name, idea, seed)], rates[_Play(name, _WHOLE, seed)], strict=True)
        ]
        for seed in seeds
    ]


def _text(log_ratio: Interval) -> str:
    return (
        f"{math.exp(log_ratio.mean):.3f} ± {math.exp(log_ratio.mean) * math.sinh(log_ratio.high - log_ratio.mean):.3f}"
    )

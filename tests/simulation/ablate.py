"""`python -m tests.simulation.ablate`: the control law's tokens per second on each trace, and what each idea adds.

The real law steers simulated engines in virtual time (`traces`): as it is, and with one idea switched off
(`ablations`), over the same traces with the same seeds; and without a controller (`GUIDANCE`). The first row of the
table are the rates of the whole law, to be compared between commits. The others are these rates without an
idea, over those with all of them: below 1 it pays. An idea that is worth nothing on any trace has no place in the law.
"""

import argparse
import json
import math
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import NamedTuple

from specpilot.bench.report.markdown import table
from specpilot.controller.estimation.t_interval import Interval, interval
from tests.simulation.ablations import IDEAS, without
from tests.simulation.traces import traces

GUIDANCE = "guidance"
"""The idea without which no controller runs: no policy, no acceptance of the fleet, no control group."""
WHOLE = "whole law"
_TAIL = 0.025


class Play(NamedTuple):
    """One trace under the law without an idea (`WHOLE`: with all)."""

    trace: str
    idea: str
    seed: int


def log_rate(play: Play) -> float:
    """Return the logarithm of a play's tokens per second of virtual time, averaged over the time of its phases."""
    trace = traces()[play.trace]
    with without(*([play.idea] if play.idea in IDEAS else [])):
        run = trace.play(play.seed, adapts=play.idea == GUIDANCE)
    seconds = [phase.seconds for phase in trace.phases]
    logs = (math.log(run.throughput(at)) * length for at, length in enumerate(seconds))
    return math.fsum(logs) / sum(seconds)


def ratios(rates: Mapping[Play, float], trace: str, idea: str, seeds: Sequence[int]) -> Interval:
    """Return the logarithm of the rate on `trace` without `idea` over that with all; both play the same requests."""
    return interval([rates[Play(trace, idea, seed)] - rates[Play(trace, WHOLE, seed)] for seed in seeds], _TAIL)


def main(arguments: Sequence[str]) -> None:
    """Play, and print the table and a line of JSON: the rates, and the ratios less 1 with their intervals."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.ablate")
    parser.add_argument("--ideas", nargs="*", default=[*IDEAS, GUIDANCE], choices=[*IDEAS, GUIDANCE])
    parser.add_argument("--traces", nargs="*", default=[*traces()], choices=[*traces()])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    given = parser.parse_args(arguments)
    plays = [Play(*item) for item in product(given.traces, [WHOLE, *given.ideas], given.seeds)]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        rates = dict(zip(plays, pool.map(log_rate, plays), strict=True))
    whole = {
        name: math.exp(math.fsum(rates[Play(name, WHOLE, seed)] for seed in given.seeds) / len(given.seeds))
        for name in given.traces
    }
    left = {idea: {name: ratios(rates, name, idea, given.seeds) for name in given.traces} for idea in given.ideas}
    rows = [[f"{WHOLE}, tokens/s", *(f"{rate:.1f}" for rate in whole.values())]]
    rows += [[f"without {idea}", *map(_text, row.values())] for idea, row in left.items()]
    shown = {idea: {name: item.ratios() for name, item in row.items()} for idea, row in left.items()}
    page = "\n".join(table(["SIMULATION", *given.traces], rows))
    sys.stdout.write(f"{page}\n{json.dumps({'tokens_per_s': whole, 'without': shown})}\n")


def _text(log_ratio: Interval) -> str:
    mean = math.exp(log_ratio.mean)
    return f"{mean:.3f} ± {mean * math.sinh(log_ratio.high - log_ratio.mean):.3f}"


if __name__ == "__main__":
    main(sys.argv[1:])

"""`specpilot bench rate`: the highest request rate at which each arm keeps an SLO.

Plays an open-loop load (Poisson or bursty) at rates of a search: doubled until the SLO breaks, then bisected. The SLO
holds if `--attainment` of the requests are whole and within every bound of `--goodput`. The arms alternate trial by
trial. Each trial is a file like a cell of a sweep; after an interruption the same command goes on where it stopped.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.report.markdown import table
from specpilot.bench.report.output import say
from specpilot.bench.sweep.endpoint import EndpointError
from specpilot.bench.sweep.measure import CellFailedError, measure, warm_up
from specpilot.bench.sweep.plan import Arm, Cell, Load
from specpilot.bench.sweep.rate_search import Trial, bounds, next_rate
from specpilot.bench.sweep.settings import Question, SharedSettings, question_of, what_a_measurement_is
from specpilot.bench.sweep.store import Store, open_store, place_of
from specpilot.bench.sweep.systems import SystemFailedError, Systems
from specpilot.policy.settings import ProgramSettings, load

PROGRAM = "specpilot bench rate"
LEAST_CONVERSATIONS = 20
"""Least conversations of a trial: with fewer, a single request decides about the attainment."""


class RateSettings(SharedSettings, ProgramSettings):
    """Find the rate at which an SLO breaks, for each arm."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_RATE_")

    out: Path = Field(default=Path(".specpilot/bench-rate"), description="folder for the trials and the report")
    goodput: str = Field(default="ttft:1000,tpot:50", description="the SLO in ms, as ttft:500,tpot:50,e2el:5000")
    attainment: float = Field(default=0.95, gt=0, le=1, description="share of requests that must keep the SLO")
    start_rate: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="conversations a second of the first trial"
    )
    highest_rate: float = Field(default=1000.0, gt=0, allow_inf_nan=False, description="highest rate to try")
    precision: float = Field(default=0.1, gt=0, description="largest relative difference of the two final rates")
    trial_s: float = Field(
        default=20.0, gt=0, allow_inf_nan=False, description="seconds within which the conversations of a trial begin"
    )


def main(arguments: Sequence[str]) -> None:
    """Run it. Exit status 1 when a server failed; the trials so far are kept."""
    settings = load(RateSettings, PROGRAM, arguments)
    question = question_of(PROGRAM, settings, settings.out)
    store = open_store(PROGRAM, settings.out, _what_a_trial_is(settings, question))
    failure = _search(settings, question, store)
    text = report(store.cells(), settings.goodput, settings.attainment)
    (settings.out / "report.md").write_text(text)
    say(f"\n{text}\nreport: {settings.out / 'report.md'}")
    if failure is not None:
        sys.stderr.write(f"{PROGRAM}: {failure}\n")
        sys.exit(1)


def _search(settings: RateSettings, question: Question, store: Store) -> str | None:
    """Search the rates of all arms and data sets, alternately; return the reason of an early end, if any."""
    systems = Systems(question.engines, question.endpoints, settings.one_at_a_time, question.control_token)
    open_searches = [(arm, item) for item in question.data_sets for arm in question.arms]
    place = ""
    try:
        if not settings.one_at_a_time:
            systems.start(list(dict.fromkeys(arm.system for arm in question.arms)))
        while open_searches:
            for search in list(open_searches):
                arm, item = search
                rate = next_rate(
                    trials(store.cells(), arm, item.name, settings.attainment),
                    settings.start_rate,
                    settings.precision,
                    settings.start_rate / 64,
                    settings.highest_rate,
                )
                if rate is None:
                    open_searches.remove(search)
                    continue
                cell = Cell(arm, item.name, Load(request_rate=rate), 1)
                place = f"trial {cell.name}: "
                count = max(LEAST_CONVERSATIONS, round(rate * settings.trial_s))
                system = systems.use(arm.system)
                warm_up(system, cell, item.conversations, question.conditions, settings.num_prompts)
                figures = measure(system, cell, item.conversations, question.conditions, count)
                store.put(cell, place_of(cell) | figures)
                say(_line(cell, figures, settings.attainment))
    except (CellFailedError, EndpointError, SystemFailedError) as error:
        return f"{place}{error}; trials so far are kept in {store.folder}: the same command goes on from there"
    except KeyboardInterrupt:
        return f"interrupted; trials so far are kept in {store.folder}: the same command goes on from there"
    finally:
        systems.stop()
    return None


def trials(cells: Sequence[dict[str, Any]], arm: Arm, data_set: str, attainment: float) -> list[Trial]:
    """Return the trials of one arm with one data set."""
    return [
        Trial(cell["request_rate"], attained(cell) >= attainment)
        for cell in cells
        if cell["arm"] == arm.name and cell["dataset"] == data_set
    ]


def report(cells: Sequence[dict[str, Any]], goodput: str, attainment: float) -> str:
    """Return, for each arm and data set, the two rates between which the SLO breaks, and the figures at the lower."""
    heads = ("data set", "arm", "holds at, a second", "breaks at", "TTFT p99, ms", "TPOT p99, ms", "output tokens/s")
    rows = []
    for data_set in dict.fromkeys(cell["dataset"] for cell in cells):
        for name, system, k in dict.fromkeys((cell["arm"], cell["system"], cell["k"]) for cell in cells):
            holds_at, breaks_at = bounds(trials(cells, Arm(system, k), data_set, attainment))
            if holds_at is None and breaks_at is None:
                continue
            at = next(
                (
                    cell
                    for cell in cells
                    if (cell["arm"], cell["dataset"], cell["request_rate"]) == (name, data_set, holds_at)
                ),
                None,
            )
            figures = [_shown(at, figure) for figure in ("p99_ttft_ms", "p99_tpot_ms", "output_throughput")]
            rates = [f"{rate:.2f}" if rate is not None else "-" for rate in (holds_at, breaks_at)]
            rows.append([data_set, name, *rates, *figures])
    head = f"# Rates at which the SLO breaks\n\n{goodput} (ms) for {attainment:.1%} of the requests.\n"
    return "\n".join([head, *table(heads, rows)]) + "\n"


def attained(cell: dict[str, Any]) -> float:
    """Return the share of the requests of a trial that kept the SLO; those that failed did not."""
    count = round(cell["request_goodput"] * cell["duration"])  # a rate of whole requests
    return float(count / cell["num_prompts"])


def _shown(cell: dict[str, Any] | None, figure: str) -> str:
    return "-" if cell is None or cell.get(figure) is None else f"{cell[figure]:.0f}"


def _what_a_trial_is(settings: RateSettings, question: Question) -> dict[str, Any]:
    """Return the settings that all trials of a folder must share."""
    return what_a_measurement_is(settings, question) | {"trial_s": settings.trial_s}


def _line(cell: Cell, figures: dict[str, Any], attainment: float) -> str:
    share = attained(figures)
    verdict = "holds" if share >= attainment else "breaks"
    where = f"{cell.arm.name:<14} {cell.data_set:<12} {cell.load.request_rate:8.2f}/s"
    return f"{where}  {share:6.1%} in time: {verdict}"

"""`specpilot bench sweep`: the gain of speculation by K, load and text, and the further gain of adaptive K.

Measures every arm (no speculation, EAGLE-3 and P-EAGLE at each K, adaptive K) at every load with every data set,
several times, on engines that it starts, or on endpoints given by URL. The arms alternate cell by cell. Each cell is a
JSON file with the names of `vllm bench serve`; after an interruption the same command goes on where it stopped. The
report is `report.md` and `report.html`.
"""

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.data.conversation import Conversation
from specpilot.bench.report.output import say
from specpilot.bench.sweep import report
from specpilot.bench.sweep.endpoint import EndpointError
from specpilot.bench.sweep.measure import CellFailedError, measure, warm_up
from specpilot.bench.sweep.plan import Cell, Load, conversations_in, expected_s, plan
from specpilot.bench.sweep.settings import Question, SharedSettings, numbers, question_of, what_a_measurement_is
from specpilot.bench.sweep.store import Store, cells_in, open_store, place_of
from specpilot.bench.sweep.systems import SystemFailedError, Systems
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench sweep"
START_DEMO_S = 120.0
"""Seconds for the start and the warm-up of four engines with the demo pair on two cores."""


class SweepSettings(SharedSettings, ProgramSettings):
    """Measure every arm at every load with every data set."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_SWEEP_")

    out: Path = Field(default=Path(".specpilot/bench-sweep"), description="folder for the cells and the report")
    concurrency: str = Field(default="1,4,8,32", description="conversations in flight, comma separated")
    request_rate: str = Field(default="", description="conversations a second (open loop), in place of --concurrency")
    repetitions: int = Field(default=3, ge=1, description="measurements of each cell")
    report_only: bool = Field(default=False, description="measure nothing; write the report of the cells in --out")


def main(arguments: Sequence[str]) -> None:
    """Run it. Exit status 1 when a server failed; the measured cells are kept, with a report of them."""
    settings = load(SweepSettings, PROGRAM, arguments)
    if settings.report_only:
        if not cells_in(settings.out):
            fail(PROGRAM, f"--out: no cell was measured into {settings.out}")
        _report(settings.out)
        return
    question = question_of(PROGRAM, settings, settings.out)
    loads = _loads(settings)
    most = max(item.concurrency or 0 for item in loads)
    if most > settings.max_num_seqs and not question.endpoints:
        sys.stderr.write(
            f"{PROGRAM}: --concurrency {most} is above --max-num-seqs {settings.max_num_seqs}: the engines run no more "
            f"than that, the rest waits in their queues; to run them all give --max-num-seqs {most}\n"
        )
    store = open_store(PROGRAM, settings.out, _what_a_cell_is(settings, question))
    names = [item.name for item in question.data_sets]
    cells = plan(question.arms, names, loads, settings.repetitions, one_at_a_time=settings.one_at_a_time)
    failure = _run(settings, question, store, cells)
    if store.cells():
        _report(settings.out)
    if failure is not None:
        sys.stderr.write(f"{PROGRAM}: {failure}\n")
        sys.exit(1)


def _report(folder: Path) -> None:
    say(f"{report.write(cells_in(folder), folder)}\nreport: {folder / 'report.html'} and report.md beside it")


def _run(settings: SweepSettings, question: Question, store: Store, cells: Sequence[Cell]) -> str | None:
    """Measure the missing cells; return the reason of an early end, if any."""
    missing = [cell for cell in cells if not store.has(cell)]
    if len(missing) < len(cells):
        say(f"{len(cells) - len(missing)} of {len(cells)} cells were measured before")
    conversations = {item.name: item.conversations for item in question.data_sets}
    counts = {cell: conversations_in(cell.load, settings.num_prompts, conversations[cell.data_set]) for cell in missing}
    expected = {
        cell: _expected_s(question, cell, count, conversations[cell.data_set]) for cell, count in counts.items()
    }
    if missing:
        say(_outset(settings, question, len(missing), sum(expected.values())))
    systems = Systems(question.engines, question.endpoints, settings.one_at_a_time, question.control_token)
    remedy = f"cells measured so far are kept in {store.folder}: the same command goes on from there"
    place, spent_s, done_s = "", 0.0, 0.0
    try:
        if not settings.one_at_a_time:
            _start(systems, question, missing)
        for number, cell in enumerate(missing, start=1):
            place = f"cell {cell.name}: "
            system = systems.use(cell.arm.system)
            data = conversations[cell.data_set]
            warm_up(system, cell, data, question.conditions, settings.num_prompts)
            began = time.monotonic()
            figures = measure(system, cell, data, question.conditions, counts[cell])
            store.put(cell, place_of(cell) | figures)
            spent_s += time.monotonic() - began
            done_s += expected[cell]
            left_s = spent_s / done_s * (sum(expected.values()) - done_s)
            say(_progress(number, len(missing), cell, figures, left_s))
    except (CellFailedError, EndpointError, SystemFailedError) as error:
        return f"{place}{error}; {remedy}"
    except KeyboardInterrupt:
        return f"interrupted; {remedy}"
    finally:
        systems.stop()
    return None


def _expected_s(question: Question, cell: Cell, count: int, data: Sequence[Conversation]) -> float:
    turns = fmean(len(conversation.turns) for conversation in data)
    return expected_s(cell, count, turns, question.conditions.work.output_tokens, question.conditions.settle_s)


def _outset(settings: SweepSettings, question: Question, count: int, seconds: float) -> str:
    """Return the line before the first cell: the number of cells, and their duration if it is known."""
    if not question.endpoints and question.engines.model == SweepSettings.model_fields["model"].default:
        starts_s = START_DEMO_S * (settings.repetitions if settings.one_at_a_time else 1)
        return f"cells to measure: {count}; about {(seconds + starts_s) / 60:.0f} minutes on two cores, with the start"
    return f"cells to measure: {count}; the first one gives an estimate of the duration"


def _start(systems: Systems, question: Question, missing: Sequence[Cell]) -> None:
    names = list(dict.fromkeys(cell.arm.system for cell in missing))
    engines = [name for name in names if name not in question.endpoints]
    if engines:
        say(f"starting engines: {', '.join(engines)}; their output is in {question.engines.folder / 'logs'}")
    systems.start(names)


def _what_a_cell_is(settings: SweepSettings, question: Question) -> dict[str, Any]:
    """Return the settings that all cells of a folder must share."""
    return what_a_measurement_is(settings, question) | {
        "num_prompts": settings.num_prompts,
        "price_per_hour": settings.price_per_hour,
    }


def _loads(settings: SweepSettings) -> list[Load]:
    if not settings.request_rate:
        return [Load(concurrency=item) for item in numbers(PROGRAM, "--concurrency", settings.concurrency, least=1)]
    try:
        rates = [float(item) for item in settings.request_rate.split(",") if item]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < math.inf for rate in rates):
        fail(PROGRAM, f"--request-rate: {settings.request_rate!r} is not a list of finite rates above 0, like 0.5,2")
    return [Load(request_rate=rate) for rate in rates]


def _progress(number: int, count: int, cell: Cell, figures: dict[str, Any], left_s: float) -> str:
    length = figures.get("spec_decode_acceptance_length")
    accepted = f", acceptance length {length:.2f}" if length is not None else ""
    failed = f", {figures['failed']} failed" if figures["failed"] else ""
    where = f"{cell.arm.name:<14} {cell.data_set:<12} {cell.load.name:<5} #{cell.repetition}"
    time_left = f"{left_s / 60:.0f} min left" if left_s >= 90 else f"{left_s:.0f} s left"  # noqa: PLR2004 - a minute and a half
    return f"[{number}/{count}] {where} {figures['output_throughput']:8.0f} tok/s{accepted}{failed}; {time_left}"

"""The search for the rate at which an SLO breaks: against known thresholds, and over real sockets."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.load.arrivals import arrival_times
from specpilot.bench.sweep import measure, rate_command
from specpilot.bench.sweep.plan import Arm, Cell, Load
from specpilot.bench.sweep.rate_search import Bounds, Trial, bounds, next_rate
from specpilot.bench.sweep.settings import SharedSettings
from specpilot.bench.sweep.systems import RunningSystem
from tests.support.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    Seen,
    chunk,
    event,
    reply,
    usage_event,
)
from tests.support.stack import ROOT


def search(threshold: float, start: float = 1.0, precision: float = 0.1) -> list[Trial]:
    trials: list[Trial] = []
    while (rate := next_rate(trials, start, precision, start / 64, 1000.0)) is not None:
        trials.append(Trial(rate, rate <= threshold))
        assert len(trials) < 30
    return trials


@pytest.mark.parametrize("threshold", [0.02, 0.7, 1.0, 3.3, 77.0, 900.0])
def test_the_threshold_is_found_within_the_precision_in_few_trials(threshold: float) -> None:
    trials = search(threshold)
    holds_at, breaks_at = bounds(trials)
    assert holds_at is not None
    assert breaks_at is not None
    assert holds_at <= threshold < breaks_at <= holds_at * 1.1
    assert len(trials) <= 16


def test_beyond_the_highest_and_below_the_lowest_rate_it_says_what_it_knows() -> None:
    assert bounds(search(1e9)) == Bounds(1000.0, None)
    assert bounds(search(0.0)) == Bounds(None, 1.0 / 64)


@pytest.mark.parametrize("start", [0.3, 3.0, 6.0, 7.0, 15.0, 30.0, 1 / 3])
@pytest.mark.parametrize("threshold", [0.0, 0.123, 1e9])
def test_the_search_ends_at_every_start_and_a_rate_is_what_its_file_is_named(start: float, threshold: float) -> None:
    trials = search(threshold, start)
    assert all(trial.rate == float(f"{trial.rate:g}") for trial in trials)
    assert len({trial.rate for trial in trials}) == len(trials)


def test_a_precision_finer_than_rates_are_ends_too() -> None:
    assert len(search(3.3, precision=1e-9)) < 30


def test_a_share_of_requests_is_of_whole_ones() -> None:
    for duration in (14.2226, 36.6002, 13.428):
        cell = {"request_goodput": 57 / duration, "duration": duration, "num_prompts": 60}
        assert rate_command.attained(cell) == 0.95
    cell = {"request_goodput": 199.0, "duration": 1.0, "num_prompts": 200}
    line = rate_command._line(Cell(Arm("none"), "chat", Load(request_rate=2.0), 1), cell, 0.999)
    assert line.endswith(" 99.5% in time: breaks")
    assert "for 99.9% of the requests" in rate_command.report([], "ttft:500", 0.999)


def test_a_lower_rate_that_broke_counts_more_than_a_higher_one_that_held() -> None:
    trials = [Trial(1.0, True), Trial(2.0, False), Trial(4.0, True)]
    assert bounds(trials) == Bounds(1.0, 2.0)


BREAKS_AT = 50.0
"""Conversations a second."""


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedEngine]:
    """A server that in a trial above `BREAKS_AT` refuses every second request, on a machine of any speed."""
    engine = ScriptedEngine()
    rates = [0.0]
    play_trial = rate_command.measure

    def measured(system: RunningSystem, cell: Cell, *how: Any) -> dict[str, Any]:
        rates.append(cell.load.request_rate or 0.0)
        try:
            return play_trial(system, cell, *how)
        finally:
            rates.pop()

    def play(seen: Seen) -> Script:
        if seen.path != "/v1/chat/completions":
            return [reply(b"", "404 Not Found")]
        if rates[-1] > BREAKS_AT and len(engine.seen) % 2:
            return [reply(b"{}", "429 Too Many Requests")]
        return [SSE_HEAD, chunk(event("hi")), chunk(usage_event(1)), chunk(DONE), LAST_CHUNK]

    monkeypatch.setattr(rate_command, "measure", measured)
    engine.choose = play
    await engine.start()
    yield engine
    await engine.stop()


async def test_the_rate_that_a_server_keeps_up_with_is_found_and_kept(server: ScriptedEngine, tmp_path: Path) -> None:
    flags = ["--endpoints", f"none={server.url}", "--out", str(tmp_path), "--data", "adversarial"]
    flags += ["--goodput", "ttft:60000", "--start-rate", "20", "--precision", "0.9", "--trial-s", "0.5"]
    await asyncio.to_thread(rate_command.main, flags)
    found = [json.loads(path.read_text()) for path in (tmp_path / "cells").iterdir()]
    holds_at, breaks_at = bounds([Trial(cell["request_rate"], rate_command.attained(cell) >= 0.95) for cell in found])
    assert holds_at is not None
    assert breaks_at is not None
    assert 20 <= holds_at <= BREAKS_AT < breaks_at <= 2 * holds_at
    assert f"| adversarial | none | {holds_at:.2f} | {breaks_at:.2f} |" in (tmp_path / "report.md").read_text()
    asked = len(server.seen)
    await asyncio.to_thread(rate_command.main, flags)  # all trials are there: nothing is asked again
    assert sum(item.path == "/v1/chat/completions" for item in server.seen[asked:]) == 0


async def test_a_trial_has_an_arrival_for_each_conversation_after_requests_that_do_not_count(
    server: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []

    def arrivals(rate: float, burstiness: float, count: int, rng: random.Random) -> list[float]:
        drawn.append(count)
        return arrival_times(rate, burstiness, count, rng)

    monkeypatch.setattr(measure, "arrival_times", arrivals)
    data = tmp_path / "two.jsonl"
    data.write_text('{"turns": ["One?", "Two?"]}\n')
    flags = ["--endpoints", f"none={server.url}", "--out", str(tmp_path / "out"), "--data", str(data)]
    flags += ["--goodput", "ttft:60000", "--start-rate", "48", "--highest-rate", "48", "--trial-s", "0.5"]
    await asyncio.to_thread(rate_command.main, flags)
    assert drawn == [24]
    [cell] = [json.loads(path.read_text()) for path in (tmp_path / "out" / "cells").iterdir()]
    assert cell["num_prompts"] == 2 * 24
    asked = [seen for seen in server.seen if seen.path == "/v1/chat/completions"]
    assert len(asked) == 2 * (6 + 24)
    assert len({seen.json["cache_salt"] for seen in asked}) == 2


def test_a_rate_without_an_end_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        rate_command.main(["--endpoints", "none=http://127.0.0.1:9", "--out", str(tmp_path), "--start-rate", "inf"])
    assert "--start-rate" in capsys.readouterr().err


def test_every_setting_of_its_own_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "bench.md").read_text()
    page = page.split("## `specpilot bench rate`")[1].split("\n## ")[0]
    rows = re.findall(r"^\|([^|]*)\|", page, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    own = rate_command.RateSettings.model_fields.keys() - SharedSettings.model_fields.keys()
    assert documented == own | {"goodput"}

"""The same command again after a sweep that was interrupted, or with more to measure: finished cells are kept."""

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sweep_endpoint import Endpoint, arguments, cells, sweep


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)])
async def test_interrupted_a_sweep_gives_k_back_and_the_same_command_plays_the_missing_cells_alone(
    sent: signal.Signals, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Endpoint(has_adapter=True, slow_s=5.0)
    engine.slow_after = 6 + 3
    engine.under_way_at = 6 + 3 + 2  # in the second cell
    await engine.start()
    flags = [*arguments(tmp_path, f"p-eagle={engine.url}"), "--k", "3", "--repetitions", "1"]
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "specpilot.bench", "sweep", *flags,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored by what a shell runs with `&`
    )  # fmt: skip
    await asyncio.wait_for(engine.under_way.wait(), PATIENCE_S)
    running.send_signal(sent)
    assert await running.wait() == status
    assert engine.ks[0] == 3
    assert engine.schedule is not None
    assert engine.schedule["guidance"] == {}
    kept = cells(tmp_path)
    assert set(kept) == {"p-eagle-k3__adversarial__c1__1"}

    asked, engine.slow_s = len(engine.asked), 0.0
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "3", "--repetitions", "1") == 0
    assert len(engine.asked) == asked + 6 + 6
    assert "1 of 2 cells were measured before\ncells to measure: 1;" in capsys.readouterr().out
    assert set(cells(tmp_path)) == {*kept, "p-eagle-k3__adversarial__c2__1"}
    assert cells(tmp_path).items() >= kept.items()
    await engine.stop()


async def test_an_endpoint_that_dies_midway_leaves_what_was_measured_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Endpoint(dies_after=11)  # 6 to warm up, 3 of the first cell, 2 of the second
    await engine.start()
    port = engine.port
    assert await sweep(tmp_path, f"none={engine.url}", "--repetitions", "1") == 1
    said = capsys.readouterr().err
    assert "cell none__adversarial__c2__1" in said
    assert "was lost midway" in said
    assert "the same command goes on from there" in said
    kept = cells(tmp_path)
    assert set(kept) == {"none__adversarial__c1__1"}
    assert (tmp_path / "report.md").exists()
    await engine.stop()

    again = Endpoint()
    again._server = await asyncio.get_running_loop().create_server(lambda: _connection(again), "127.0.0.1", port)
    again.port = port
    assert await sweep(tmp_path, f"none={again.url}", "--repetitions", "1") == 0
    assert cells(tmp_path)["none__adversarial__c1__1"] == kept["none__adversarial__c1__1"]
    assert len(cells(tmp_path)) == 2
    assert "1 of 2 cells were measured before" in capsys.readouterr().out
    await again.stop()


def _connection(engine: ScriptedEngine) -> asyncio.Protocol:
    from tests.support.scripted_engine import _Connection  # noqa: PLC0415

    return _Connection(engine)


async def test_a_folder_of_other_cells_is_refused_and_more_cells_of_the_same_are_not(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = f"none={endpoint.url}"
    assert await sweep(tmp_path, asked, "--repetitions", "1") == 0
    assert await sweep(tmp_path, asked, "--repetitions", "1", "--temperature", "1") == 2
    assert "holds cells that were measured with other settings (sampling)" in capsys.readouterr().err
    assert await sweep(tmp_path, asked, "--repetitions", "1", "--data", "retrieval") == 0
    assert len(cells(tmp_path)) == 4


async def test_a_report_is_made_again_without_any_server(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await sweep(tmp_path, f"none={endpoint.url}", "--repetitions", "1") == 0
    (tmp_path / "report.md").unlink()
    assert await sweep(tmp_path, "none=http://127.0.0.1:9", "--report-only") == 0
    assert (tmp_path / "report.md").exists()
    assert await sweep(tmp_path / "empty", "none=http://127.0.0.1:9", "--report-only") == 2
    assert "no cell was measured into" in capsys.readouterr().err

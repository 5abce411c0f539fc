"""What `specpilot bench sweep` measures over real sockets with the real `vllm bench serve`, and what it refuses."""

import asyncio
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from specpilot.bench.sweep import command
from specpilot.bench.sweep.texts import MIXED, SHIPPED
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, reply
from tests.support.sweep_endpoint import Endpoint, arguments, cells, sweep

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "bench.md").read_text()


@pytest.mark.timeout(300)
async def test_a_sweep_over_endpoints_measures_every_cell_at_its_k(
    endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint named `adaptive` is the same server: its arm gets back the K that the server had."""
    monkeypatch.setattr(command, "SETTLE_S", 0.0)  # one unmeasured play
    asked, goodput = f"adaptive={endpoint.url},p-eagle={endpoint.url}/v1", ("--goodput", "ttft:60000")
    assert await sweep(tmp_path, asked, "--k", "1,3", *goodput) == 0
    found = cells(tmp_path)
    names = {f"{arm}__json__c{load}__1" for arm in ("adaptive", "p-eagle-k1", "p-eagle-k3") for load in (1, 2)}
    assert set(found) == names
    cell = found["p-eagle-k3__json__c2__1"]
    assert cell["spec_decode_acceptance_length"] == pytest.approx(3.0)
    assert (cell["completed"], cell["failed"], cell["total_output_tokens"]) == (6, 0, 24)
    assert (cell["max_concurrency"], cell["k"], cell["load"]) == (2, 3, "c2")
    assert cell["request_goodput"] == pytest.approx(cell["request_throughput"])
    assert cell["median_tpot_ms"] >= 0
    assert set(endpoint.ks) == {1, 3, None}  # at first and at last its law chose K
    assert endpoint.ks[-1] is None
    assert len(endpoint.asked) == 2 * 6 + 2 * (3 + 6) + 2 * (3 + 6)  # warm-ups, adaptive K twice, two other arms
    assert all(item["ignore_eos"] and item["messages"][-1]["role"] == "user" for item in endpoint.asked)
    assert len({item["cache_salt"] for item in endpoint.asked}) == 2 + 2 * 2 + 4
    text = (tmp_path / "report.md").read_text()
    assert "| json | 2 in flight | p-eagle-k3 |" in text
    (tmp_path / "report.md").unlink()
    assert await sweep(tmp_path, "none=http://127.0.0.1:9", "--report-only") == 0
    assert (tmp_path / "report.md").read_text() == text
    assert await sweep(tmp_path, asked, "--k", "1,3", "--goodput", "ttft:1") == 2
    assert "holds cells that were measured with other settings (goodput)" in capsys.readouterr().err


@pytest.mark.extended("bench sweep")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)])
async def test_interrupted_a_sweep_gives_k_back_and_the_same_command_plays_the_missing_cells_alone(
    sent: signal.Signals, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Endpoint(has_adapter=True, slow_s=PATIENCE_S)
    engine.slow_after = 6 + 3
    engine.under_way_at = 6 + 3 + 2  # in the second cell
    await engine.start()
    flags = [*arguments(tmp_path, f"p-eagle={engine.url}"), "--k", "3"]
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "specpilot.bench", "sweep", *flags,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # ignored by what a shell runs with `&`
    )  # fmt: skip
    await asyncio.wait_for(engine.under_way.wait(), PATIENCE_S)
    running.send_signal(sent)
    assert await running.wait() == status
    assert engine.ks[0] == 3
    assert engine.schedule is not None
    assert engine.schedule["guidance"] == {}  # as before: its law chooses K
    kept = cells(tmp_path)
    assert set(kept) == {"p-eagle-k3__json__c1__1"}

    asked, engine.slow_s = len(engine.asked), 0.0
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "3") == 0
    assert len(engine.asked) == asked + 6 + 6
    assert "1 of 2 cells were measured before" in capsys.readouterr().out
    assert set(cells(tmp_path)) == {*kept, "p-eagle-k3__json__c2__1"}
    assert cells(tmp_path).items() >= kept.items()
    await engine.stop()


@pytest.mark.extended("bench sweep")
async def test_a_server_that_refuses_every_request_ends_the_sweep_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine()
    engine.script = [reply(b"no field ignore_eos", "400 Bad Request")]
    await engine.start()
    assert await sweep(tmp_path, f"none={engine.url}") == 1
    said = capsys.readouterr().err
    assert "cell none__json__c1__1: no request was answered: Bad Request; cells measured so far are kept" in said
    assert cells(tmp_path) == {}
    await engine.stop()


@pytest.mark.parametrize(
    ("endpoints", "more", "said"),
    [
        ("none=http://127.0.0.1:9", (), "--endpoints: none: http://127.0.0.1:9/v1/models does not answer"),
        ("none", (), "item 1 is not NAME=URL"),
        ("none=ftp://x", (), "is not NAME=URL"),
        ("", ("--arms", "medusa"), "--arms: 'medusa' is none of"),
        ("", ("--k", "a"), "--k: 'a' is not a list of numbers"),
        ("", ("--data", ","), "--data: names none"),
        ("", ("--data", "nowhere.jsonl"), "--data: nowhere.jsonl: No such file"),
        ("", ("--goodput", "itl:5"), "is not ttft, tpot or e2el"),
        ("", ("--model", "/nowhere"), "--model: no model in /nowhere"),
        ("", ("--p-eagle", "./none"), "--p-eagle: no model in ./none"),
        ("", ("--request-rate", "2,inf"), "--request-rate: '2,inf' is not a list of finite rates"),
        ("", ("--concurrency", "0"), "each at least 1"),
        ("", ("--report-only",), "no cell was measured into"),
    ],
)
async def test_what_cannot_be_measured_is_said_before_anything_starts(
    endpoints: str, more: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await sweep(tmp_path, endpoints, *more) == 2
    assert said in capsys.readouterr().err


def test_every_setting_says_what_it_is_and_every_data_set_is_documented() -> None:
    assert all(field.description for field in command.SweepSettings.model_fields.values())
    assert all(f"`{name}`" in PAGE for name in (*SHIPPED, MIXED))

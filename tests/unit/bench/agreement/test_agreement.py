"""The agreement of two clients, calculated by hand; both clients' load; runs that cannot be compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.agreement import command
from specpilot.bench.agreement.comparison import COUNTS, FIGURES, compared, fault
from specpilot.bench.agreement.vllm_client import ClientFailedError, Job
from specpilot.bench.data.forms import parse


def run(rate: float, **more: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COUNTS, 8), **dict.fromkeys(FIGURES, 10.0), "output_throughput": rate} | more


def test_ratios_are_taken_within_a_pair_so_a_machine_that_grows_slower_cancels_out() -> None:
    found = compared([(run(110.0), run(100.0)), (run(55.0), run(50.0)), (run(60.0), run(48.0))])
    assert found["ours_over_vllm"]["output_throughput"] == {"median": 1.1, "low": 1.1, "high": 1.25}
    assert found["ours_over_vllm"]["mean_tpot_ms"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert found["range_over_median"]["ours"]["output_throughput"] == pytest.approx(55 / 60, abs=1e-4)
    assert found["range_over_median"]["vllm"]["output_throughput"] == pytest.approx(52 / 50, abs=1e-4)


def test_runs_that_did_not_do_the_same_work_are_named() -> None:
    assert fault((run(1.0), run(2.0))) is None
    assert fault((run(1.0, total_output_tokens=7), run(2.0))) == (
        "total_output_tokens is 7 here and 8 in vllm bench serve"
    )


def test_both_clients_read_the_same_questions_in_the_same_order(tmp_path: Path) -> None:
    path = tmp_path / "questions.json"
    command.write_questions(path, 300)
    ours = parse("sharegpt", path.read_text(), "questions")
    theirs = [record["conversations"] for record in json.loads(path.read_text())]
    assert len(ours) == 300
    assert all(len(said) == 2 for said in theirs)  # vLLM's client leaves out what has no second turn
    assert [item.turns[0][0]["content"] for item in ours] == [said[0]["value"] for said in theirs]


def test_the_clients_take_turns_and_the_last_line_is_one_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def ours(_url: str, _job: Job, path: Path) -> dict[str, Any]:
        order.append(path.stem)
        return run(99.0)

    def theirs(_url: str, _job: Job, path: Path) -> dict[str, Any]:
        order.append(path.stem)
        return run(100.0)

    monkeypatch.setattr(command, "model_of", lambda _url: "demo")
    monkeypatch.setattr(command, "_sweep_figures", ours)
    monkeypatch.setattr(command, "run", theirs)
    command.main(["--url", "http://a/v1", "--pairs", "2", "--out", str(tmp_path)])
    assert order == ["ours-0", "ours-1", "vllm-1", "vllm-2", "ours-2"]
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["pairs"], last["ours_over_vllm"]["output_throughput"]["median"]) == (2, 0.99)

    def other(_url: str, _job: Job, _path: Path) -> dict[str, Any]:
        return run(100.0, completed=7)

    monkeypatch.setattr(command, "run", other)
    with pytest.raises(SystemExit) as ended:
        command.main(["--url", "http://a", "--pairs", "1", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert "did not do the same work: completed is 8 here and 7" in capsys.readouterr().err


def test_a_client_that_fails_is_said_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_url: str, _job: Job, _path: Path) -> dict[str, Any]:
        raise ClientFailedError("vllm bench serve failed:\nno such model")

    monkeypatch.setattr(command, "model_of", lambda _url: "demo")
    monkeypatch.setattr(command, "_sweep_figures", lambda *_given: run(1.0))
    monkeypatch.setattr(command, "run", failing)
    with pytest.raises(SystemExit) as ended:
        command.main(["--url", "http://a", "--out", str(tmp_path)])
    assert ended.value.code == 1
    assert "no such model" in capsys.readouterr().err

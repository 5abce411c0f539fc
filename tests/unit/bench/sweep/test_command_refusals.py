"""What `specpilot bench sweep` cannot measure, and what it says then."""

from pathlib import Path

import pytest

from tests.support.scripted_engine import ScriptedEngine, reply
from tests.support.sweep_endpoint import cells, sweep


async def test_a_server_that_refuses_every_request_is_an_error_with_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = ScriptedEngine()
    engine.script = [reply(b"no field ignore_eos", "400 Bad Request")]
    await engine.start()
    assert await sweep(tmp_path, f"none={engine.url}", "--repetitions", "1") == 1
    assert "answered no request: status 400: no field ignore_eos" in capsys.readouterr().err
    assert cells(tmp_path) == {}
    await engine.stop()


@pytest.mark.parametrize(
    ("endpoints", "more", "said"),
    [
        ("none=http://127.0.0.1:9", (), "--endpoints: none: http://127.0.0.1:9/v1/models does not answer"),
        ("none", (), "'none' is not NAME=URL"),
        ("none=ftp://x", (), "is not NAME=URL"),
        ("", ("--arms", "medusa"), "--arms: 'medusa' is none of"),
        ("", ("--k", "a"), "--k: 'a' is not a list of numbers"),
        ("", ("--data", "prose"), "--data: there is no data set 'prose'"),
        ("", ("--goodput", "itl:5"), "the name is one of ttft, tpot, e2el"),
        ("", ("--goodput", "ttft"), "is not NAME:MILLISECONDS"),
        ("", ("--model", "/nowhere"), "--model: no model in /nowhere"),
        ("", ("--p-eagle", "./none"), "--p-eagle: no model in ./none"),
        ("", ("--request-rate", "x"), "--request-rate: 'x' is not a list of finite rates"),
        ("", ("--request-rate", "2,inf"), "--request-rate: '2,inf' is not a list of finite rates"),
        ("", ("--request-rate", "nan"), "--request-rate: 'nan' is not a list of finite rates"),
        ("", ("--request-rate", "0"), "--request-rate: '0' is not a list of finite rates"),
        ("", ("--concurrency", "0"), "each at least 1"),
    ],
)
async def test_what_cannot_be_measured_is_said_before_anything_starts(
    endpoints: str, more: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await sweep(tmp_path, endpoints, *more) == 2
    assert said in capsys.readouterr().err


async def test_a_broken_line_of_a_data_set_is_named_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": \n')
    assert await sweep(tmp_path / "out", "", "--data", str(path)) == 2
    assert f"--data: {path}, line 2: not JSON" in capsys.readouterr().err

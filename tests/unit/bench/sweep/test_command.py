"""`specpilot bench sweep` against endpoints over real sockets: resumed, cut short, and asked for what is not there."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.data.catalogue import DEMO
from specpilot.bench.data.forms import FORMS
from specpilot.bench.data.shipped import SHIPPED
from specpilot.bench.sweep import command
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

ANSWER: Script = [SSE_HEAD, chunk(event("hi")), chunk(event("", finish="length")), chunk(usage_event(4)), chunk(DONE),
                  LAST_CHUNK]  # fmt: skip


class Endpoint(ScriptedEngine):
    """An OpenAI-compatible server with vLLM's counters and, when steered, SpecPilot's `/speculation`."""

    def __init__(self, *, is_steered: bool = False, dies_after: int | None = None) -> None:
        super().__init__()
        self.metrics = None
        self.is_steered = is_steered
        self.dies_after = dies_after
        self.asked: list[dict[str, Any]] = []
        self.ks: list[int] = []
        self.choose = self.play

    def play(self, seen: Seen) -> Script:
        if seen.path == "/metrics":
            drafts = 10 * len(self.asked)
            counts = {"num_drafts": drafts, "num_draft_tokens": 3 * drafts, "num_accepted_tokens": 2 * drafts}
            text = "".join(
                f"# TYPE vllm:spec_decode_{name}_total counter\nvllm:spec_decode_{name}_total {count}\n"
                for name, count in counts.items()
            )
            return [reply(text.encode())]
        if seen.path == "/speculation":
            if not self.is_steered:
                return [reply(b"{}", "404 Not Found")]
            if seen.line.startswith(b"PUT"):
                self.ks.append(seen.json["classes"]["default"][0][2])
            return [reply(b'{"k_max": 7}')]
        self.asked.append(seen.json)
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            assert self._server is not None
            self._server.close()
            for connection in [*self.open]:
                connection.end()
        return ANSWER


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    found = Endpoint(is_steered=True)
    await found.start()
    yield found
    await found.stop()


async def sweep(out: Path, endpoints: str, *more: str) -> int:
    """Run the command in a thread; return its exit status."""

    def run() -> int:
        try:
            command.main(["--endpoints", endpoints, "--out", str(out), "--data", "adversarial", "--num-prompts", "2",
                          "--concurrency", "1,2", *more])  # fmt: skip
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return await asyncio.to_thread(run)


def cells(out: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (out / "cells").iterdir()}


async def test_a_sweep_over_endpoints_measures_every_cell_and_sets_k_where_it_can(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    url = endpoint.url
    assert await sweep(tmp_path, f"none={url},p-eagle={url}/v1", "--k", "1,3", "--repetitions", "2") == 0
    found = cells(tmp_path)
    assert len(found) == 3 * 2 * 2
    cell = found["p-eagle-k3__adversarial__c2__1"]
    assert cell["spec_decode_acceptance_length"] == pytest.approx(3.0)
    assert (cell["completed"], cell["total_output_tokens"]) == (6, 24)
    assert cell["max_concurrency"] == 2
    assert {1, 3} == set(endpoint.ks)
    assert "| p-eagle-k3 |" in (tmp_path / "report.md").read_text()
    assert "<svg" in (tmp_path / "report.html").read_text()


async def test_an_endpoint_that_cannot_be_steered_has_one_arm(tmp_path: Path) -> None:
    engine = Endpoint()
    await engine.start()
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "1,3", "--repetitions", "1") == 0
    assert {name.partition("__")[0] for name in cells(tmp_path)} == {"p-eagle"}
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
        ("", ("--request-rate", "x"), "--request-rate: 'x' is not a list of rates"),
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


async def test_an_open_loop_sweep_names_its_rate(endpoint: Endpoint, tmp_path: Path) -> None:
    more = ("--repetitions", "1", "--request-rate", "50", "--goodput", "ttft:10000")
    assert await sweep(tmp_path, f"none={endpoint.url}", *more) == 0
    [cell] = cells(tmp_path).values()
    assert (cell["request_rate"], cell["max_concurrency"]) == (50.0, None)
    assert cell["request_goodput"] == pytest.approx(cell["request_throughput"])


PAGE = (Path(__file__).resolve().parents[4] / "docs" / "reference" / "bench.md").read_text()


def test_every_setting_and_data_set_is_documented_and_no_other() -> None:
    table = PAGE.split("### Settings")[1].split("\n## ")[0]
    rows = re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert documented == set(command.SweepSettings.model_fields)
    text = " ".join(re.findall(r"^\|([^|]*)\|", PAGE.split("## Data sets")[1], re.MULTILINE))
    named = {name.partition("=")[0] for name in re.findall(r"`([a-z0-9=A-Z-]+)`", text)}
    assert named == {*DEMO, *SHIPPED, *FORMS}

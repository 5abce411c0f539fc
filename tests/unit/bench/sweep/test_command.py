"""`specpilot bench sweep` against endpoints over real sockets: resumed, cut short, and asked for what is not there."""

import asyncio
import json
import re
import signal
import sys
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
    """An OpenAI-compatible server with vLLM's counters and, with the adapter, SpecPilot's `/speculation`.

    `controller_after` is after how many requests a controller publishes; `slow_s` is what a request takes.
    """

    def __init__(
        self,
        *,
        has_adapter: bool = False,
        dies_after: int | None = None,
        controller_after: int | None = None,
        schedule: dict[str, Any] | None = None,
        slow_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.metrics = None
        self.has_adapter = has_adapter
        self.dies_after = dies_after
        self.controller_after = controller_after
        self.slow_s = slow_s
        self.schedule = schedule
        self.version = 0 if schedule is None else 40
        self.calibrations_left = 0
        self.under_way = asyncio.Event()
        self.asked: list[dict[str, Any]] = []
        self.ks: list[int] = []
        self.choose = self.play

    def state(self) -> dict[str, Any]:
        """As `engine_adapter.agent.core_methods.state` has it."""
        self.calibrations_left -= 1
        source = "static" if self.schedule is None else "schedule"
        return {
            "k_max": 7,
            "static_k": 5,
            "source": "calibration" if self.calibrations_left >= 0 else source,
            "version": self.version,
            "age_s": None if self.schedule is None else 10.0,
            "schedule": self.schedule,
        }

    def apply(self, schedule: dict[str, Any]) -> None:
        self.version += 1
        self.schedule = {"probe_ratio": 0.0, "like_default": [], "trial": None, **schedule, "version": self.version}

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
            if not self.has_adapter:
                return [reply(b"{}", "404 Not Found")]
            if seen.line.startswith(b"PUT"):
                self.ks.append(seen.json["classes"]["default"][0][2])
                self.apply(seen.json)
            return [reply(json.dumps(self.state()).encode())]
        self.asked.append(seen.json)
        self.under_way.set()
        if len(self.asked) == self.controller_after:
            self.apply({"classes": {"default": [[1, 64, 2]]}, "valid_for_s": 60.0})
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            assert self._server is not None
            self._server.close()
            for connection in [*self.open]:
                connection.end()
        return [self.slow_s, *ANSWER]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    found = Endpoint(has_adapter=True)
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
    assert {1, 3} == set(endpoint.ks[:-1])
    assert "| p-eagle-k3 |" in (tmp_path / "report.md").read_text()
    assert "<svg" in (tmp_path / "report.html").read_text()


async def test_a_cell_whose_k_a_controller_replaced_is_not_kept_and_the_remedy_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Endpoint(has_adapter=True, controller_after=10)  # 6 to warm up, 3 of the first cell
    await engine.start()
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "3", "--repetitions", "1") == 1
    said = capsys.readouterr().err
    assert f"cell p-eagle-k3__adversarial__c2__1: {engine.url} no longer has the K = 3 of this arm" in said
    assert "a controller steers this engine. Stop the controller" in said
    assert set(cells(tmp_path)) == {"p-eagle-k3__adversarial__c1__1"}
    assert engine.ks == [3, 3, 3]  # what the controller put stays
    await engine.stop()


async def test_an_engine_that_was_restarted_midway_has_not_the_k_of_its_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Endpoint(has_adapter=True)
    play = engine.play

    def restarts(seen: Seen) -> Script:
        if len(engine.asked) == 8:
            engine.schedule, engine.version = None, 0
        return play(seen)

    engine.choose = restarts
    await engine.start()
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "3", "--repetitions", "1") == 1
    assert "no longer has the K = 3 of this arm: it was restarted meanwhile" in capsys.readouterr().err
    assert not cells(tmp_path)
    await engine.stop()


async def test_an_endpoint_gets_its_k_back(tmp_path: Path) -> None:
    before = {"classes": {"default": [[1, 8, 6], [9, 64, 2]]}, "probe_ratio": 0.1, "valid_for_s": 100.0}
    plain = Endpoint(has_adapter=True)
    scheduled = Endpoint(has_adapter=True, schedule=before)
    await plain.start()
    await scheduled.start()
    endpoints = f"p-eagle={plain.url},eagle3={scheduled.url}"
    assert await sweep(tmp_path, endpoints, "--k", "3", "--repetitions", "1") == 0
    assert plain.schedule is not None
    assert plain.schedule["classes"] == {"default": [[1, 1, 5]]}  # its static K
    assert plain.schedule["valid_for_s"] <= 5
    assert scheduled.schedule is not None
    assert scheduled.schedule["classes"] == before["classes"]
    assert (scheduled.schedule["probe_ratio"], scheduled.schedule["valid_for_s"]) == (0.1, 90.0)
    await plain.stop()
    await scheduled.stop()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
async def test_an_endpoint_gets_its_k_back_when_the_sweep_is_interrupted(sent: signal.Signals, tmp_path: Path) -> None:
    engine = Endpoint(has_adapter=True, slow_s=0.5)
    await engine.start()
    arguments = ["sweep", "--endpoints", f"p-eagle={engine.url}", "--out", str(tmp_path), "--data", "adversarial"]
    running = await asyncio.create_subprocess_exec(sys.executable, "-m", "specpilot.bench", *arguments, "--k", "3")
    await asyncio.wait_for(engine.under_way.wait(), 60)
    running.send_signal(sent)
    await running.wait()
    assert engine.ks[0] == 3
    assert engine.schedule is not None
    assert engine.schedule["classes"] == {"default": [[1, 1, 5]]}
    await engine.stop()


async def test_an_engine_that_measures_its_own_steps_is_waited_for(tmp_path: Path) -> None:
    engine = Endpoint(has_adapter=True)
    engine.calibrations_left = 3
    await engine.start()
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "3", "--repetitions", "1") == 0
    assert engine.calibrations_left < 0
    await engine.stop()


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

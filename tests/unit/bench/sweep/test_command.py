"""`specpilot bench sweep` over real sockets: resumed, cut short, and with endpoints that do not answer."""

import asyncio
import json
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import Request

from specpilot.bench.data.catalogue import DEMO
from specpilot.bench.data.forms import FORMS
from specpilot.bench.data.shipped import SHIPPED
from specpilot.bench.sweep import command, measure
from specpilot.bench.sweep.systems import SystemFailedError
from specpilot.engine_adapter.agent.endpoint import SpeculationEndpoint
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

    `controller_after` is the number of requests after which a controller publishes; `slow_s` is the time of a request,
    from `slow_after` requests on if that is set. With `guard` it is on another machine, and the adapter's own rule
    decides which clients may set K.
    """

    def __init__(
        self,
        *,
        has_adapter: bool = False,
        dies_after: int | None = None,
        controller_after: int | None = None,
        schedule: dict[str, Any] | None = None,
        slow_s: float = 0.0,
        guard: SpeculationEndpoint | None = None,
    ) -> None:
        super().__init__()
        self.metrics = None
        self.has_adapter = has_adapter
        self.dies_after = dies_after
        self.controller_after = controller_after
        self.slow_s = slow_s
        self.guard = guard
        self.schedule = schedule
        self.version = 0 if schedule is None else 40
        self.calibrations_left = 0
        self.under_way, self.under_way_at = asyncio.Event(), 1
        self.slow_after: int | None = None
        self.asked: list[dict[str, Any]] = []
        self.ks: list[int] = []
        self.choose = self.play

    def state(self) -> dict[str, Any]:
        """The shape of `engine_adapter.agent.core_methods.state`."""
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

    def refusal(self, seen: Seen) -> bytes | None:
        caller = SimpleNamespace(headers=seen.headers, client=SimpleNamespace(host="10.0.0.7"))
        refused = self.guard._refusal(cast("Request", caller)) if self.guard is not None else None
        return reply(bytes(refused.body), f"{refused.status_code} Refused") if refused is not None else None

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
            if (refusal := self.refusal(seen)) is not None:
                return [refusal]
            if seen.line.startswith(b"PUT"):
                self.ks.append(seen.json["classes"]["default"][0][2])
                self.apply(seen.json)
            return [reply(json.dumps(self.state()).encode())]
        self.asked.append(seen.json)
        if len(self.asked) == self.under_way_at:
            self.under_way.set()
        if len(self.asked) == self.controller_after:
            self.apply({"classes": {"default": [[1, 64, 2]]}, "valid_for_s": 60.0})
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            assert self._server is not None
            self._server.close()
            for connection in [*self.open]:
                connection.end()
        is_slow = self.slow_after is None or len(self.asked) > self.slow_after
        return [self.slow_s if is_slow else 0.0, *ANSWER]


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    found = Endpoint(has_adapter=True)
    await found.start()
    yield found
    await found.stop()


def arguments(out: Path, endpoints: str) -> list[str]:
    """A small sweep: two loads, of 3 and 6 requests, after 6 to warm up."""
    flags = ["--endpoints", endpoints, "--out", str(out), "--data", "adversarial"]
    return [*flags, "--num-prompts", "2", "--concurrency", "1,2"]


async def sweep(out: Path, endpoints: str, *more: str) -> int:
    """Run the command in a thread; return its exit status."""

    def run() -> int:
        try:
            command.main([*arguments(out, endpoints), *more])
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    return await asyncio.to_thread(run)


def cells(out: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (out / "cells").iterdir()}


def texts(out: Path) -> list[str]:
    return [path.read_text() for path in out.rglob("*") if path.is_file()]


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


async def test_a_cell_has_whole_conversations_three_for_each_in_flight(endpoint: Endpoint, tmp_path: Path) -> None:
    data = tmp_path / "four.jsonl"
    data.write_text('{"turns": ["1?", "2?", "3?", "4?"]}\n')
    more = ("--repetitions", "1", "--data", str(data), "--concurrency", "4", "--num-prompts", "13")
    assert await sweep(tmp_path, f"none={endpoint.url}", *more) == 0
    [cell] = cells(tmp_path).values()
    assert cell["num_prompts"] == 4 * 12
    firsts = [asked for asked in endpoint.asked if len(asked["messages"]) == 1]
    assert len(firsts) == 6 + 12  # 6 to warm up


async def test_a_system_is_warmed_up_again_after_each_start(endpoint: Endpoint, tmp_path: Path) -> None:
    asked = f"none={endpoint.url},mine={endpoint.url}"
    assert await sweep(tmp_path, asked, "--repetitions", "1", "--one-at-a-time") == 0
    assert len(endpoint.asked) == 2 * (6 + 3 + 6)


async def test_cells_share_no_prefix_cache(endpoint: Endpoint, tmp_path: Path) -> None:
    assert await sweep(tmp_path, f"adaptive={endpoint.url}", "--repetitions", "1", "--settle-s", "0.05") == 0
    salts = Counter(asked["cache_salt"] for asked in endpoint.asked)
    assert {6, 3} <= {*salts.values()}
    assert len(salts) == 2 * 3  # warm-up and two cells, what settles before each apart


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
    await asyncio.wait_for(engine.under_way.wait(), 60)
    running.send_signal(sent)
    assert await running.wait() == status
    assert engine.ks[0] == 3
    assert engine.schedule is not None
    assert engine.schedule["classes"] == {"default": [[1, 1, 5]]}
    kept = cells(tmp_path)
    assert set(kept) == {"p-eagle-k3__adversarial__c1__1"}

    asked, engine.slow_s = len(engine.asked), 0.0
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "3", "--repetitions", "1") == 0
    assert len(engine.asked) == asked + 6 + 6
    assert "1 of 2 cells were measured before\ncells to measure: 1;" in capsys.readouterr().out
    assert set(cells(tmp_path)) == {*kept, "p-eagle-k3__adversarial__c2__1"}
    assert cells(tmp_path).items() >= kept.items()
    await engine.stop()


TOKEN = "a-token-of-the-engine"


def guarded(monkeypatch: pytest.MonkeyPatch, token: str | None) -> Endpoint:
    """An engine on another machine, with this control token."""
    monkeypatch.setenv("SPECPILOT_ENGINE_CONTROL_TOKEN", token or "")
    return Endpoint(has_adapter=True, guard=SpeculationEndpoint())


async def test_k_of_an_engine_elsewhere_is_set_with_its_token_which_is_shown_and_kept_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = guarded(monkeypatch, TOKEN)
    await engine.start()
    monkeypatch.setenv("SPECPILOT_BENCH_SWEEP_CONTROL_TOKEN", TOKEN)
    assert await sweep(tmp_path, f"p-eagle={engine.url},none={engine.url}", "--k", "1,3", "--repetitions", "1") == 0
    assert {name.partition("__")[0] for name in cells(tmp_path)} == {"none", "p-eagle-k1", "p-eagle-k3"}
    assert engine.ks[-1] == 5  # given back
    assert {seen.path for seen in engine.seen if TOKEN in str(seen.headers)} == {"/speculation"}
    said = capsys.readouterr()
    assert TOKEN not in said.out + said.err
    assert len(kept := texts(tmp_path)) >= 3 + 6  # question, reports and cells
    assert not [text for text in kept if TOKEN in text]
    await engine.stop()


@pytest.mark.parametrize(
    ("token", "given", "said"),
    [
        (TOKEN, (), "wants --control-token to set K: it must be the engine's SPECPILOT_ENGINE_CONTROL_TOKEN"),
        (TOKEN, ("--control-token", "another"), "refuses this --control-token"),
        (None, (), "rejects a change of K from here, because it has no control token"),
    ],
)
async def test_an_engine_that_lets_nobody_set_k_is_named_before_anything_is_measured(
    token: str | None, given: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    engine = guarded(monkeypatch, token)
    await engine.start()
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "1,3", *given) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"--endpoints: p-eagle: {engine.url} {said}" in line
    assert "name the endpoint otherwise to measure it at the K that it has" in line
    assert not engine.asked
    await engine.stop()


async def test_an_engine_that_measures_its_own_steps_is_waited_for(tmp_path: Path) -> None:
    engine = Endpoint(has_adapter=True)
    engine.calibrations_left = 3
    await engine.start()
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "3", "--repetitions", "1") == 0
    assert engine.calibrations_left < 0
    await engine.stop()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(b"{}", "404 Not Found"), "has no /speculation, so it is no engine of SpecPilot's"),
        (reply(b"{}"), "does not report the K in force, so it is no engine of SpecPilot's"),
        (reply(b'{"error": "no key"}', "401 Unauthorized"), "refuses to name its K: 401"),
    ],
)
async def test_an_endpoint_that_cannot_be_steered_has_one_arm_and_that_is_said(
    answer: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = Endpoint()
    play = engine.play
    engine.choose = lambda seen: [answer] if seen.path == "/speculation" else play(seen)
    await engine.start()
    assert await sweep(tmp_path, f"p-eagle={engine.url}", "--k", "1,3", "--repetitions", "1") == 0
    assert {name.partition("__")[0] for name in cells(tmp_path)} == {"p-eagle"}
    [line] = capsys.readouterr().err.splitlines()
    assert f"p-eagle is measured at the K that it has, --k is not for it: {engine.url} {said}" in line
    await engine.stop()


async def test_acceptance_of_an_sglang_server_is_the_mean_of_what_it_shows_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "LENGTH_EVERY_S", 0.05)
    engine = Endpoint(slow_s=0.1)
    play = engine.play

    def sglang(seen: Seen) -> Script:
        if seen.path != "/metrics":
            return play(seen)
        length = 2.0 if len(engine.asked) <= 6 else 3.0  # 2 is of the warm-up
        return [reply(f"# TYPE sglang:spec_accept_length gauge\nsglang:spec_accept_length {length}\n".encode())]

    engine.choose = sglang
    await engine.start()
    assert await sweep(tmp_path, f"mine={engine.url}", "--repetitions", "1") == 0
    cell = cells(tmp_path)["mine__adversarial__c1__1"]
    assert cell["spec_decode_acceptance_length"] == 3.0
    assert "spec_decode_per_position_acceptance_rates" not in cell
    assert "| mine | 3.00 |" in (tmp_path / "report.md").read_text()
    await engine.stop()


def test_how_long_the_sweep_takes_is_said_where_it_is_known_and_the_default_one_ends_within_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoEngines:
        """Ends the sweep when the first engine is to start."""

        def __init__(self, *_given: object) -> None: ...

        def start(self, _names: object) -> None:
            raise SystemFailedError("there is no engine here")

        def stop(self) -> None: ...

    monkeypatch.setattr(command, "Systems", NoEngines)
    with pytest.raises(SystemExit):
        command.main(["--out", str(tmp_path)])
    said, faults = capsys.readouterr()
    assert "--max-num-seqs" not in faults
    found = re.match(r"cells to measure: (\d+); about (\d+) minutes on two cores", said)
    assert found is not None
    assert int(found[1]) == (1 + 4 + 4 + 1) * 3 * 4 * 3
    assert int(found[2]) <= 40
    assert f"{found[1]} cells and about {5 * round(int(found[2]) / 5)} minutes" in re.sub(r"\s+", " ", PAGE)
    with pytest.raises(SystemExit):
        command.main(
            ["--out", str(tmp_path / "other"), "--model", "a/model", "--arms", "none", "--concurrency", "8,64"]
        )
    said = capsys.readouterr()
    assert "the first one gives an estimate of the duration" in said.out
    [queued, _] = said.err.splitlines()
    assert "--concurrency 64 is above --max-num-seqs 32" in queued


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
        ("", ("--request-rate", "x"), "--request-rate: 'x' is not a list of finite rates"),
        ("", ("--concurrency", "0"), "each at least 1"),
    ],
)
async def test_what_cannot_be_measured_is_said_before_anything_starts(
    endpoints: str, more: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await sweep(tmp_path, endpoints, *more) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("rates", ["2,inf", "nan", "0"])
async def test_a_rate_that_is_none_is_refused(
    rates: str, endpoint: Endpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await sweep(tmp_path, f"none={endpoint.url}", "--request-rate", rates) == 2
    assert f"--request-rate: {rates!r} is not a list of finite rates" in capsys.readouterr().err


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

"""K of the endpoints of a sweep: set where that may be done, watched, and given back."""

from pathlib import Path

import pytest

from specpilot.engine_adapter.agent.endpoint import SpeculationEndpoint
from tests.support.scripted_engine import Script, Seen, reply
from tests.support.sweep_endpoint import Endpoint, cells, sweep


def texts(out: Path) -> list[str]:
    return [path.read_text() for path in out.rglob("*") if path.is_file()]


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
    before = {"guidance": {"classes": {"default": {"k_max": 6}}, "probe_ratio": 0.1}}
    plain = Endpoint(has_adapter=True)
    scheduled = Endpoint(has_adapter=True, schedule=before)
    await plain.start()
    await scheduled.start()
    endpoints = f"p-eagle={plain.url},eagle3={scheduled.url}"
    assert await sweep(tmp_path, endpoints, "--k", "3", "--repetitions", "1") == 0
    assert plain.schedule is not None
    assert plain.schedule["guidance"] == {}  # its law chooses, as before
    assert scheduled.schedule is not None
    assert scheduled.schedule["guidance"] == before["guidance"]
    await plain.stop()
    await scheduled.stop()


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
    assert engine.ks[-1] is None  # given back
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

"""The order of the parts, their files, and what the command says at its end; its parts are short ones of the tests."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.gpu_check import command, parts
from specpilot.bench.gpu_check.line import FAILED, PASSED, SKIPPED, Line
from specpilot.bench.gpu_check.parts import Check, Part, PartError


class Runs:
    """Notes which parts ran; `outcomes` are their verdicts."""

    def __init__(self, **outcomes: str) -> None:
        self.ran: list[str] = []
        self._outcomes = outcomes

    def part(self, name: str, at_most_s: float = 1.0) -> Part:
        def run(check: Check) -> Any:
            self.ran.append(name)
            if self._outcomes.get(name) == "breaks":
                raise PartError("ended with status 9")
            return [Line(f"what {name} asks", self._outcomes.get(name, PASSED), "a | b")], {"limit": check.limit_s}

        return Part(name, at_most_s, run)


def run(out: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main(["--out", str(out), *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs(second=SKIPPED)
    monkeypatch.setattr(command, "PARTS", [runs.part(name) for name in ("machine", "first", "second")])
    return runs


def test_all_parts_run_once_and_are_in_the_report(runs: Runs, tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    assert run(tmp_path) == 0
    assert runs.ran == ["machine", "first", "second"]
    page = (tmp_path / "report.md").read_text()
    assert "2 passed, 1 skipped" in page
    assert "| second | what second asks | skipped | a \\| b |" in page
    report = json.loads((tmp_path / "report.json").read_text())
    assert [part["part"] for part in report["parts"]] == ["machine", "first", "second"]
    assert report["left"] == []


def test_some_parts_and_again(runs: Runs, tmp_path: Path) -> None:
    assert run(tmp_path, "--only", "second") == 0
    assert runs.ran == ["machine", "second"]
    assert run(tmp_path, "--only", "second", "--again") == 0
    assert runs.ran == ["machine", "second", "second"]


def test_a_part_that_may_not_fit_is_left_for_the_next_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs()
    monkeypatch.setattr(
        command,
        "PARTS",
        [runs.part("machine"), runs.part("long", 100.0), runs.part("short"), runs.part("longer", 200.0)],
    )
    assert run(tmp_path, "--within-s", "50") == command.GO_ON
    assert runs.ran == ["machine", "short"]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["left"] == ["long", "longer"]
    assert "Not run yet: long; longer." in (tmp_path / "report.md").read_text()
    assert run(tmp_path, "--within-s", "150") == command.GO_ON
    assert run(tmp_path) == 0
    assert runs.ran == ["machine", "short", "long", "longer"]


def test_a_call_takes_forty_minutes_at_most_unless_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs()
    monkeypatch.setattr(command, "PARTS", [runs.part("machine"), runs.part("fits", 2390.0), runs.part("long", 2401.0)])
    assert run(tmp_path) == command.GO_ON
    assert runs.ran == ["machine", "fits"]
    page = (tmp_path / "report.md").read_text()
    assert "Not run yet: long. They may not have fitted the 2400 s of one call (`--within-s`)" in page
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["left"], report["within_s"]) == (["long"], 2400.0)
    assert run(tmp_path, "--within-s", "3000") == 0
    assert runs.ran == ["machine", "fits", "long"]


@pytest.mark.parametrize("verdict", [FAILED, "breaks"])
def test_a_line_that_fails_is_the_exit_status_and_stands_out(
    verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(first=verdict)
    monkeypatch.setattr(command, "PARTS", [runs.part(name) for name in ("machine", "first", "second")])
    assert run(tmp_path) == 1
    assert runs.ran == ["machine", "first", "second"]
    assert "**failed**" in (tmp_path / "report.md").read_text()


def test_a_part_that_was_interrupted_runs_anew(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "first.partial").write_text('{"part": "fir')
    assert run(tmp_path) == 0
    assert runs.ran == ["machine", "first", "second"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--k", "0,9"), "'0,9' is not between 0 and --k-max 7"),
        (("--k", "a"), "give numbers like 0,3,7"),
        (("--only", "nothing"), "no part is called 'nothing'; there are: machine; first; second"),
    ],
)
def test_what_it_does_not_understand_ends_it(
    runs: Runs, arguments: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err
    assert runs.ran == []


def test_a_folder_of_other_settings_is_refused(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    assert run(tmp_path, "--k", "0,7") == 2
    assert "holds parts of other settings" in capsys.readouterr().err


def test_the_names_of_real_parts_can_be_asked_for() -> None:
    for part in parts.PARTS:
        assert command._wanted(f"machine,{part.name}") == [parts.PARTS[0], part]
    assert len({parts._slug(part.name) for part in parts.PARTS}) == len(parts.PARTS)
    assert max(part.at_most_s for part in parts.PARTS) < 600


def a_check(out: Path) -> Check:
    (out / "logs").mkdir()
    (out / "parts").mkdir()
    here = Path()
    return Check(out, here, here, here, 7, [0, 7], [], None, None, None, limit_s=0.5)


def test_a_program_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    check = a_check(tmp_path)
    began = time.monotonic()
    with pytest.raises(PartError, match=r"did not end within 0\.5 s"):
        check.program("hangs", log="hangs", environment={"PYTHONPATH": str(tmp_path)})
    assert time.monotonic() - began < 20
    child = int((tmp_path / "logs" / "hangs.log").read_text())
    deadline = time.monotonic() + 10
    while runs_still(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs_still(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return state.rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize(
    ("text", "says"), [("raise ValueError('no such head')", "ValueError: no such head"), ("print('x')", "status 0: x")]
)
def test_a_program_that_fails_or_says_nothing_is_told_with_its_last_words(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(text)
    check = a_check(tmp_path)
    check.limit_s = 60.0
    with pytest.raises(PartError, match=says):
        check.program("fails", log="fails", environment={"PYTHONPATH": str(tmp_path)})

"""The order of the parts, their files, and the command's last lines, with short parts of the tests' own."""

import json
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.gpu_check import command
from specpilot.bench.gpu_check.check import FAILED, PASSED, SKIPPED, Check, Line, Part, PartError, slug
from specpilot.bench.gpu_check.step_parts import GRAPH_MODES
from tests.support.gateway_workers import is_alive
from tests.support.stack import until


class Runs:
    """Records the parts that ran; `outcomes` are their verdicts."""

    def __init__(self, **outcomes: str) -> None:
        self.ran: list[str] = []
        self._outcomes = outcomes

    def part(self, name: str, at_most_s: float = 1.0, **more: Any) -> Part:
        def run(check: Check) -> Any:
            self.ran.append(name)
            if self._outcomes.get(name) == "breaks":
                raise PartError("ended with status 9")
            if self._outcomes.get(name) == "takes long":
                raise PartError(f"did not end within {check.limit_s:g} s", is_cut=True)
            return [Line(f"what {name} asks", self._outcomes.get(name, PASSED), "a | b")], {"limit": check.limit_s}

        return Part(name, at_most_s, run, **more)


def use(monkeypatch: pytest.MonkeyPatch, *found: Part) -> None:
    """Replace the command's parts with these."""
    monkeypatch.setattr(command, "all_parts", lambda _: [*found])


def run(out: Path, *arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        command.main(["--out", str(out), *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    runs = Runs(second=SKIPPED)
    use(monkeypatch, *(runs.part(name) for name in ("machine", "first", "second")))
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
    use(monkeypatch, runs.part("machine"), runs.part("long", 100.0), runs.part("short"), runs.part("longer", 200.0))
    assert run(tmp_path, "--within-s", "50") == command.GO_ON
    assert runs.ran == ["machine", "short"]
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["left"] == ["long", "longer"]
    page = (tmp_path / "report.md").read_text()
    assert "Not run yet: long; longer. They may not have fitted the 50 s of one call (`--within-s`)" in page
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["left"], report["within_s"]) == (["long", "longer"], 50.0)
    assert run(tmp_path, "--within-s", "150") == command.GO_ON
    assert run(tmp_path) == 0
    assert runs.ran == ["machine", "short", "long", "longer"]


@pytest.mark.parametrize("verdict", [FAILED, "breaks"])
def test_a_line_that_fails_is_the_exit_status_and_stands_out(
    verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(first=verdict)
    use(monkeypatch, *(runs.part(name) for name in ("machine", "first", "second")))
    assert run(tmp_path) == 1
    assert runs.ran == ["machine", "first", "second"]
    assert "**failed**" in (tmp_path / "report.md").read_text()


def test_without_time_for_the_part_that_the_others_rest_on_nothing_runs(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--within-s", "0.5") == 2
    assert "--within-s: 0.5 s do not suffice for the part `machine`" in capsys.readouterr().err
    assert runs.ran == []


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
        (("--graph-modes", "FULL,NEVER"), "--graph-modes: 'FULL,NEVER': name some of default, FULL, "),
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
    real = command.all_parts(GRAPH_MODES)
    for part in real:
        assert command._selection(f"machine,{part.name}", real) == [real[0], part]
    assert len({slug(part.name) for part in real}) == len(real)
    assert max(part.at_most_s for part in real) < 600
    assert all(part.needs_s is None or part.needs_s <= part.at_most_s for part in real)


def test_a_part_that_can_be_cut_short_begins_with_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs()
    use(monkeypatch, runs.part("machine"), runs.part("steps", 480.0, needs_s=50.0), runs.part("whole", 480.0))
    assert run(tmp_path, "--within-s", "100") == command.GO_ON
    assert runs.ran == ["machine", "steps"]
    limit = json.loads((tmp_path / "parts" / "steps.json").read_text())["data"]["limit"]
    assert 90 < limit <= 100


def test_a_part_that_the_call_cut_is_left_and_one_that_its_own_limit_cut_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(steps="takes long", brief="takes long")
    use(monkeypatch, runs.part("machine"), runs.part("steps", 480.0, needs_s=50.0), runs.part("brief", 60.0))
    assert run(tmp_path, "--within-s", "100") == command.GO_ON
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["left"] == ["steps"]
    assert not (tmp_path / "parts" / "steps.json").exists()
    assert "**failed**" in (tmp_path / "report.md").read_text()


def a_check(out: Path) -> Check:
    (out / "logs").mkdir()
    (out / "parts").mkdir()
    here = Path()
    return Check(out, here, here, here, 7, [0, 7], [], None, None, None, limit_s=0.5)


def test_a_program_that_does_not_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    check = a_check(tmp_path)
    check.limit_s = 5.0  # time to start the child, on a busy machine too
    with pytest.raises(PartError, match="did not end within 5 s"):
        check.program("hangs", log="hangs", environment={"PYTHONPATH": str(tmp_path)})
    child = int((tmp_path / "logs" / "hangs.log").read_text())
    until(lambda: not is_alive(child), every=0.02)


@pytest.mark.parametrize(
    ("text", "says"), [("raise ValueError('no such head')", "ValueError: no such head"), ("print('x')", "status 0: x")]
)
def test_a_program_that_fails_or_says_nothing_is_told_with_its_last_words(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(text)
    check = a_check(tmp_path)
    check.limit_s = 60.0
    with pytest.raises(PartError, match=says):
        check.program("fails", log="fails", environment={"PYTHONPATH": str(tmp_path)})

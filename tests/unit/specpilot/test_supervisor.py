import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specpilot.supervisor import Part, PartFailedError, Supervisor, _Running
from tests.support.gateway_workers import is_alive
from tests.support.patience import PATIENCE_S
from tests.support.stack import until

SLEEPER = "import time; print('hello', flush=True); time.sleep(600)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    subject = Supervisor(tmp_path / "logs", said.append)
    yield subject
    subject.stop()


def process_ids(supervisor: Supervisor) -> dict[str, int]:
    return {item.part.name: item.process.pid for item in supervisor._running if item.process is not None}


def test_parts_start_log_and_stop(supervisor: Supervisor, tmp_path: Path, said: list[str]) -> None:
    log = tmp_path / "logs" / "one.log"
    supervisor.start([Part("one", python(SLEEPER), lambda: "hello" in log.read_text())], ready_within_s=PATIENCE_S)
    [line] = said
    assert re.fullmatch(r"one: ready after \d+ s", line)
    pid = process_ids(supervisor)["one"]
    supervisor.stop()
    assert not is_alive(pid)


def test_a_part_that_dies_before_it_is_ready_ends_the_start_with_its_log(supervisor: Supervisor) -> None:
    part = Part("bad", python("import sys; print('no such model'); sys.exit(3)"), lambda: False)
    with pytest.raises(PartFailedError, match=r"bad ended with status 3 before it was ready:\nno such model"):
        supervisor.start([part], ready_within_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("setting", "rest"),
    [(None, "; its log is"), ("--ready-within-s", r" \(--ready-within-s sets how long")],
)
def test_a_part_that_is_never_ready_is_named_with_the_setting_that_allows_it_more_time(
    supervisor: Supervisor, setting: str | None, rest: str
) -> None:
    with pytest.raises(PartFailedError, match=rf"slow is not ready within 0\.5 s{rest}"):
        supervisor.start([Part("slow", python(SLEEPER), lambda: False)], 0.5, setting)


def test_a_start_does_not_wait_when_the_end_is_wanted(tmp_path: Path) -> None:
    """A model takes minutes to load, and SIGTERM must not wait for that."""
    end = threading.Event()
    subject = Supervisor(tmp_path / "logs", lambda _: None, end=end)
    threading.Timer(0.3, end.set).start()
    subject.start([Part("slow", python(SLEEPER), lambda: False)], ready_within_s=600.0)
    pid = process_ids(subject)["slow"]
    subject.stop()
    assert not is_alive(pid)


def test_a_part_that_dies_later_is_reported_and_restarted(supervisor: Supervisor, said: list[str]) -> None:
    supervisor.start([Part("one", python(SLEEPER), lambda: True)], ready_within_s=PATIENCE_S)
    victim = process_ids(supervisor)["one"]
    os.kill(victim, signal.SIGKILL)

    def is_restarted() -> bool:
        supervisor.watch()
        return process_ids(supervisor).get("one", victim) != victim

    until(is_restarted)
    assert is_alive(process_ids(supervisor)["one"])
    assert any("one died with status -9" in line for line in said)
    supervisor.watch()
    supervisor.watch()
    assert [line.partition(" after ")[0] for line in said].count("one: ready") == 2, "one line for each start"


def test_a_part_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpilot.supervisor.STOP_S", 0.3)
    said: list[str] = []
    supervisor = Supervisor(tmp_path, said.append)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    )
    supervisor.start([Part("deaf", python(deaf), lambda: "deaf" in (tmp_path / "deaf.log").read_text())], PATIENCE_S)
    pid = process_ids(supervisor)["deaf"]
    supervisor.stop()
    assert not is_alive(pid)
    assert said[-1] == "deaf does not stop; killing it"


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_parts_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from specpilot.supervisor import Part, Supervisor\n"
        "supervisor = Supervisor(Path(sys.argv[1]), lambda line: None)\n"
        "supervisor.start([Part('one', [sys.executable, '-c', 'import time; time.sleep(600)'], lambda: True)], 10.0)\n"
        "print(supervisor._running[0].process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([*python(code), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not is_alive(child))


def test_lines_go_to_a_receiver_in_place_of_a_file(tmp_path: Path, said: list[str]) -> None:
    got: list[tuple[str, str]] = []
    subject = Supervisor(tmp_path / "logs", said.append, lambda part, line: got.append((part, line)))
    subject.start([Part("one", python(SLEEPER), lambda: bool(got))], ready_within_s=PATIENCE_S)
    subject.stop()
    assert got == [("one", "hello")]
    assert list((tmp_path / "logs").iterdir()) == []


def test_what_keeps_dying_ends_the_whole_with_its_last_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpilot.supervisor.PAUSE_LIMIT_S", 0.0)
    got: list[str] = []
    subject = Supervisor(tmp_path, got.append, lambda part, line: got.append(f"{part}: {line}"), deaths_limit=3)
    dies = python("import sys; print('out of memory', flush=True); sys.stdin.read(); sys.exit(9)")
    subject.start([Part("one", python(SLEEPER), lambda: True)], ready_within_s=PATIENCE_S)
    subject._running[0].part.command = dies
    os.kill(process_ids(subject)["one"], signal.SIGKILL)

    def watch() -> None:
        until(subject.watch, every=0.02)

    with pytest.raises(PartFailedError, match=r"one died 3 times in a row:\n(.*\n)*out of memory"):
        watch()
    subject.stop()


@pytest.mark.parametrize(("is_ready", "deaths"), [(False, [1, 2, 3]), (True, [1, 1, 1])])
def test_a_part_that_dies_while_it_loads_keeps_dying_however_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ready: bool, deaths: list[int]
) -> None:
    """A model that takes minutes to load and then does not fit into memory would be loaded for ever."""
    monkeypatch.setattr("specpilot.supervisor.HEALTHY_S", 0.1)
    said: list[str] = []
    subject = Supervisor(tmp_path, said.append)
    subject.start([Part("one", python(SLEEPER), lambda: True)], ready_within_s=PATIENCE_S)
    [running] = subject._running
    running.part.is_ready = lambda: is_ready
    found = []

    def pauses() -> list[str]:
        return [line.rpartition("restarting in ")[2].partition(" s")[0] for line in said if "restarting in" in line]

    for death in range(1, 4):
        time.sleep(0.3)
        subject.watch()
        time.sleep(0.3)  # alive for longer than HEALTHY_S, and ready for as long if it is ever ready
        os.kill(process_ids(subject)["one"], signal.SIGKILL)

        def is_told(death: int = death) -> bool:
            subject.watch()
            return len(pauses()) == death

        until(is_told, every=0.02)
        found.append(running.deaths)
        running.pause_s, pause_s = 0.0, running.pause_s
        subject.watch()
        running.pause_s = pause_s
    subject.stop()
    assert found == deaths
    assert pauses() == (["1"] * 3 if is_ready else ["1", "2", "4"])


def test_children_of_a_part_that_died_do_not_live_on(supervisor: Supervisor, tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    log = tmp_path / "logs" / "one.log"
    supervisor.start([Part("one", python(code), lambda: bool(log.read_text().strip()))], ready_within_s=PATIENCE_S)
    child = int(log.read_text().split()[0])
    os.kill(process_ids(supervisor)["one"], signal.SIGKILL)

    def is_gone() -> bool:
        supervisor.watch()
        return not is_alive(child)

    until(is_gone, every=0.02)


def test_a_part_whose_supervisor_died_before_it_began_does_not_begin(tmp_path: Path) -> None:
    running = _Running(Part("one", python(SLEEPER), lambda: False), tmp_path / "log", None)
    running._supervisor = 1  # as if another process had begun it
    running.start()
    assert running.process is not None
    assert running.process.wait(PATIENCE_S) == 1
    assert (tmp_path / "log").read_text() == ""

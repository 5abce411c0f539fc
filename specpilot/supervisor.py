"""Keeps a set of programs running: starts them in order, restarts those that die, stops them in reverse order.

Each part's output goes to a log file of its own, or line by line to a receiver. A part that dies before it was ever
ready ends the start, because a setting is wrong; the end of its log says which. A part that dies later is reported and
restarted, after a pause that doubles up to `PAUSE_LIMIT_S`. One that dies `deaths_limit` times without
having been ready for `HEALTHY_S` in between ends the whole. Children do not outlive the supervisor, however it ends.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

PAUSE_LIMIT_S = 30.0
STOP_S = 15.0
TAIL = 15  # lines of a log that an error shows
LINE_BYTES = 65_536
HEALTHY_S = 60.0
_SET_PARENT_DEATH_SIGNAL = 1  # prctl(2)


Receive = Callable[[str, str], None]
"""Takes the name of a part and one line that it wrote."""


class PartFailedError(Exception):
    """A part ended before it was ready, or keeps dying. Carries the end of its log."""


@dataclass
class Part:
    """One program: its command, additions to its environment, the test that it is ready, and the cores that it may use.

    `stop_s` is how long it may take to stop, in seconds; `None`: `STOP_S`.
    """

    name: str
    command: Sequence[str]
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] | None = None
    stop_s: float | None = None


class _Running:
    """A part and its process."""

    def __init__(self, part: Part, log_path: Path, receive: Receive | None) -> None:
        self.part = part
        self.log_path = log_path
        self.receive = receive
        self.last_lines: deque[str] = deque(maxlen=TAIL)
        self.deaths = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.pause_s = 1.0
        self.ready_at: float | None = None
        self._supervisor = os.getpid()

    def start(self) -> None:
        if self.receive is None:
            with self.log_path.open("ab") as log:
                self.process = self._started(log)
        else:
            self.process = self._started(subprocess.PIPE)
            assert self.process.stdout is not None
            threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True).start()
        self.started_at = time.monotonic()
        self.ready_at = None

    def was_healthy(self) -> bool:
        """Whether it was ready for `HEALTHY_S`. Time since its start would include the loading of a model."""
        return self.ready_at is not None and time.monotonic() - self.ready_at > HEALTHY_S

    def _started(self, out: IO[bytes] | int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the command is ours
            list(self.part.command),
            env=os.environ | dict(self.part.environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which stops the parts in order
            preexec_fn=self._before_exec,  # noqa: PLW1509 - runs a few system calls and no Python locks
        )

    def _read(self, out: IO[bytes]) -> None:
        """Pass the output of the process on until its last child has closed the pipe."""
        assert self.receive is not None
        with out:
            while line := out.readline(LINE_BYTES):
                text = line.decode(errors="replace").rstrip("\n")
                self.last_lines.append(text)
                self.receive(self.part.name, text)

    def _before_exec(self) -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
            if os.getppid() != self._supervisor:  # it died before the call, which sends nothing any more
                os._exit(1)
            if self.part.cores:
                os.sched_setaffinity(0, self.part.cores)

    def log_tail(self) -> str:
        if self.receive is not None:
            return "\n".join(self.last_lines)
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-TAIL:])

    def kill_group(self) -> None:
        """End its remaining processes, children included."""
        assert self.process is not None
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Supervisor:
    """Runs parts until stopped. `say` receives each line meant for a person.

    With `receive` the parts' lines go there, each with the part's name, and no log file is written. Once `end` is set
    no start waits any longer: the owner is about to call `stop`.
    """

    def __init__(
        self,
        log_folder: Path,
        say: Callable[[str], None],
        receive: Receive | None = None,
        deaths_limit: int | None = None,
        end: threading.Event | None = None,
    ) -> None:
        log_folder.mkdir(parents=True, exist_ok=True)
        self._log_folder = log_folder
        self._say = say
        self._receive = receive
        self._deaths_limit = deaths_limit
        self._running: list[_Running] = []
        self._end = end or threading.Event()

    def start(self, parts: Sequence[Part], ready_within_s: float, setting: str | None = None) -> None:
        """Start `parts` together and return when all are ready, or when `end` is set.

        Raises `PartFailedError` when one ends first, or is not ready in time, which `setting` sets.
        """
        waiting = []
        for part in parts:
            log_path = self._log_folder / f"{part.name}.log"
            log_path.unlink(missing_ok=True)
            running = _Running(part, log_path, self._receive)
            running.start()
            self._running.append(running)
            waiting.append(running)
        deadline = time.monotonic() + ready_within_s
        limit = f"within {ready_within_s:g} s" + (f" ({setting} sets how long it may take)" if setting else "")
        while waiting and not self._end.is_set():
            time.sleep(0.1)
            for running in waiting:
                self._await_ready(running, deadline, limit)
            waiting = [running for running in waiting if running.ready_at is None]

    def _await_ready(self, running: _Running, deadline: float, limit: str) -> None:
        name = running.part.name
        assert running.process is not None
        if (status := running.process.poll()) is not None:
            raise PartFailedError(f"{name} ended with status {status} before it was ready:\n{running.log_tail()}")
        self._check_ready(running)
        if running.ready_at is None and time.monotonic() > deadline:
            raise PartFailedError(f"{name} is not ready {limit}; its log is {running.log_path}:\n{running.log_tail()}")

    def _check_ready(self, running: _Running) -> None:
        """Test whether a part is ready until it was once since its start; record the time and report it."""
        if running.ready_at is None and running.part.is_ready():
            running.ready_at = time.monotonic()
            self._say(f"{running.part.name}: ready after {running.ready_at - running.started_at:.0f} s")

    def watch(self) -> None:
        """Restart parts that died; call it about once a second. Raises `PartFailedError` for one that keeps dying."""
        for running in self._running:
            if running.process is None:
                if time.monotonic() >= running.started_at + running.pause_s:
                    running.start()
                continue
            status = running.process.poll()
            if status is None:
                self._check_ready(running)
                continue
            lived_s = time.monotonic() - running.started_at
            was_healthy = running.was_healthy()
            running.deaths = 1 if was_healthy else running.deaths + 1
            name = running.part.name
            if self._deaths_limit is not None and running.deaths >= self._deaths_limit:
                raise PartFailedError(f"{name} died {running.deaths} times in a row:\n{running.log_tail()}")
            running.kill_group()  # its children may hold its port, or the GPU
            running.pause_s = 1.0 if was_healthy else min(PAUSE_LIMIT_S, running.pause_s * 2)
            where = "" if running.receive is not None else f" (log: {running.log_path})"
            self._say(
                f"{name} died with status {status} after {lived_s:.0f} s; restarting in {running.pause_s:.0f} s{where}"
            )
            running.process = None
            running.started_at = time.monotonic()

    def stop(self) -> None:
        """Stop every part, the last started first, and wait for each."""
        for running in reversed(self._running):
            process = running.process
            if process is None or process.poll() is not None:
                continue
            process.terminate()
            try:
                process.wait(STOP_S if running.part.stop_s is None else running.part.stop_s)
            except subprocess.TimeoutExpired:
                self._say(f"{running.part.name} does not stop; killing it")
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._running.clear()

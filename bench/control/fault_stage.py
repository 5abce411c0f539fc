"""A system of several engines whose parts can be frozen, killed, hidden and restarted."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from specpilot.bench.control.stepped_clock import SteppedClock
from specpilot.bench.control.uncontrolled_system import uncontrolled_system
from specpilot.bench.load.system import wait_for
from specpilot.bench.process_end import end
from specpilot.policy.http_client import open_url
from specpilot.policy.settings import fail

ENGINES_FROM = 5
"""The first engine's port, from the first port on."""


class Stage:
    """The running system, with methods that break and repair each of its parts."""

    def __init__(  # noqa: PLR0913, PLR0917 - everything that can be broken
        self,
        program: str,
        out: Path,
        port: int,
        redis: subprocess.Popen[bytes],
        redis_url: str,
        clock: SteppedClock,
    ) -> None:
        """`program` is the name in error messages, `out` the folder for logs, `port` the first port."""
        self._program = program
        self._out = out
        self.redis_url = redis_url
        self._controllers: dict[int, subprocess.Popen[bytes]] = {}
        self.redis = redis
        self.port = port
        self.clock = clock

    @property
    def gateway_url(self) -> str:
        """The gateway's URL."""
        return f"http://127.0.0.1:{self.port}"

    def controller_port(self, number: int) -> int:
        """Return the admin port of controller `number`."""
        return self.port + 1 + number

    def engine_port(self, number: int) -> int:
        """Return the port of engine `number`."""
        return self.port + ENGINES_FROM + number

    def start_controller(self, number: int = 0, program: Sequence[str] = ("specpilot.cli", "controller")) -> None:
        """Start controller `number`, on the clock that can be stepped, and wait until it answers.

        `program` is the module that runs it, with its arguments before the flags.
        """
        port = self.controller_port(number)
        command = [sys.executable, "-P", "-m", *program, "--redis-url", self.redis_url]
        command += ["--trust-this-machine"]
        with (self._out / f"controller-{number}.log").open("ab") as log:
            self._controllers[number] = subprocess.Popen(
                [*command, "--port", str(port)], env=os.environ | self.clock.environment, stdout=log, stderr=log
            )
        wait_for(self._program, f"http://127.0.0.1:{port}/health", 30.0)

    def kill_controller(self, number: int = 0) -> None:
        """Kill controller `number` with SIGKILL."""
        process = self._controllers.pop(number)
        process.kill()
        process.wait()

    def stop_controllers(self) -> None:
        """Stop every controller by SIGTERM."""
        end(*self._controllers.values())
        self._controllers.clear()

    def leads(self, number: int) -> bool:
        """Whether controller `number` holds the lease."""
        with open_url(f"http://127.0.0.1:{self.controller_port(number)}/metrics", timeout=2.0) as reply:
            return b"specpilot_controller_lease_held 1.0" in reply.read()

    def kill_engine(self, number: int) -> None:
        """Kill all processes of engine `number`; its supervisor restarts it.

        Raises `ProcessLookupError` when there is none.
        """
        for group in self.groups(number):
            os.killpg(group, signal.SIGKILL)

    def groups(self, number: int) -> set[int]:
        """Return the process groups of engine `number`; raises `ProcessLookupError` when there is none."""
        groups: set[int] = set()
        flag = ["--port", str(self.engine_port(number))]
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if any(arguments[at : at + 2] == flag for at in range(len(arguments))) and "--scheduler-cls" in arguments:
                groups.add(os.getpgid(int(folder.name)))
        if not groups:
            raise ProcessLookupError(f"engine {number} does not run")
        return groups

    def hide_metrics(self, number: int) -> None:
        """Move the folder with the counters of engine `number` away."""
        shutil.rmtree(self._hidden(number), ignore_errors=True)  # of a run that was killed
        shutil.move(self._metrics(number), self._hidden(number))

    def show_metrics(self, number: int) -> None:
        """Move the folder back."""
        shutil.move(self._hidden(number), self._metrics(number))

    def _metrics(self, number: int) -> Path:
        return Path(tempfile.gettempdir()) / f"specpilot-metrics-{os.getuid()}-{self.engine_port(number)}"

    def _hidden(self, number: int) -> Path:
        return self._out / f"hidden-metrics-{number}"

    def await_engine(self, number: int) -> None:
        """Return once engine `number` answers."""
        wait_for(self._program, f"http://127.0.0.1:{self.engine_port(number)}/health", 300.0)

    def k(self, classes: Iterable[str]) -> dict[str, float] | None:
        """Return the mean K that running requests of each of `classes` have on engine 0; `None` without an answer."""
        try:
            with open_url(f"http://127.0.0.1:{self.engine_port(0)}/speculation", timeout=2.0) as reply:
                running = json.load(reply)["bands"]["running"]
        except OSError:
            return None
        mean_k: dict[str, float] = {}
        for name in classes:
            items = [item for item in running if item["class"] == name]
            count = sum(item["requests"] for item in items)
            mean_k |= {name: sum(item["k"] * item["requests"] for item in items) / count} if count else {}
        return mean_k


@contextmanager
def engines_alone(program: str, out: Path, port: int, count: int = 2) -> Iterator[Stage]:
    """Run Redis, `count` engines and a gateway, without a controller."""
    try:
        clock = SteppedClock(out)
    except FileNotFoundError as error:
        fail(program, str(error))
    flags = ["--engines", str(count), "--port", str(port), "--engine-port", str(port + ENGINES_FROM)]
    with uncontrolled_system(out, flags) as system:
        stage = Stage(program, out, port, system.redis, system.redis_url, clock)
        try:
            for number in range(count):
                stage.await_engine(number)
            wait_for(program, f"{stage.gateway_url}/ready", 60.0, system.up)
            yield stage
        finally:
            system.redis.send_signal(signal.SIGCONT)
            stage.stop_controllers()

"""Gateways, a Redis server and canned engines, each in processes of its own that can be broken."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request

from specpilot import embedded_redis
from specpilot.bench.processes import end, wait_for
from specpilot.bench.report.metric_sums import metric_sums
from specpilot.bench.report.process_tree import tree
from specpilot.policy.http_client import open_url
from specpilot.policy.settings import fail

START_WITHIN_S = 60.0
ENDS_WITHIN_S = 60.0
_SERVES = re.compile(rb"worker \d+ serves")
ADMIN_TOKEN = "bench"  # noqa: S105 - of a gateway that lives for one measurement


class GatewayStage:
    """Starts, calls, breaks and stops the parts. Gateways listen from `port` on, engines from `port + 10` on."""

    def __init__(self, program: str, out: Path, port: int, engines: int) -> None:
        """`program` is the name in error messages, `out` the folder for logs."""
        self._program = program
        self.out = out
        self.port = port
        self.engine_ports = [port + 10 + at for at in range(engines)]
        self.engines: dict[int, subprocess.Popen[bytes]] = {}
        self.gateways: dict[int, subprocess.Popen[bytes]] = {}
        self._redis_command, self.redis_url = embedded_redis.server_command(out / "redis")
        self.start_redis()

    def start_redis(self) -> None:
        """Start the Redis server, with its persisted data."""
        self.redis = subprocess.Popen(self._redis_command, stdout=subprocess.DEVNULL)

    def start_engine(self, port: int) -> None:
        """Start the engine of `port` and wait until it answers."""
        self.engines[port] = subprocess.Popen(
            [sys.executable, "-P", "-m", "specpilot.bench.gateway.canned_engine", str(port)]
        )
        wait_for(self._program, f"http://127.0.0.1:{port}/v1/models", START_WITHIN_S)

    def kill_engine(self, port: int) -> None:
        """Kill the engine of `port`."""
        _kill(self.engines[port])

    def set_mode(self, port: int, mode: dict[str, Any]) -> None:
        """Set the mode of the engine of `port`, as in `bench.gateway.canned_engine`."""
        request = Request(f"http://127.0.0.1:{port}/mode", method="PUT", data=json.dumps(mode).encode())
        with open_url(request, timeout=5.0):
            pass

    def slots(self) -> dict[int, dict[str, int]]:
        """Return each engine's held slots and its count of requests."""
        slots = {}
        for port in self.engine_ports:
            with open_url(f"http://127.0.0.1:{port}/slots", timeout=5.0) as reply:
                slots[port] = json.load(reply)
        return slots

    def start_gateway(self, port: int, flags: Sequence[str] = (), workers: int = 1) -> int:
        """Start a gateway in front of all engines; return its process id once all of its workers serve.

        Clients that connect while only the first worker serves would all stay with it.
        """
        command = [
            sys.executable,
            "-P",
            "-m",
            "specpilot.cli",
            "gateway",
            "--port",
            str(port),
            "--workers",
            str(workers),
        ]
        command += ["--redis-url", self.redis_url, "--admin-token", ADMIN_TOKEN]
        for engine in self.engine_ports:
            command += ["--engine", f"http://127.0.0.1:{engine}"]
        path = self.out / f"gateway-{port}.log"
        with path.open("ab") as log:
            begin = log.tell()
            process = subprocess.Popen([*command, *flags], stdout=log, stderr=log)
        self.gateways[port] = process
        wait_for(self._program, f"http://127.0.0.1:{port}/ready", START_WITHIN_S)
        if workers > 1:
            self._wait_for_workers(path, begin, workers)
        return process.pid

    def _wait_for_workers(self, log: Path, begin: int, workers: int) -> None:
        end = time.monotonic() + START_WITHIN_S
        while len(_SERVES.findall(log.read_bytes()[begin:])) < workers:
            if time.monotonic() > end:
                fail(self._program, f"{log} does not say that {workers} workers serve within {START_WITHIN_S:.0f} s")
            time.sleep(0.1)

    def metrics(self, port: int) -> dict[str, float]:
        """Return the metrics of the gateway on `port`, each summed over its labels, without their common prefix."""
        return {name.removeprefix("specpilot_gateway_"): value for name, value in metric_sums(port).items()}

    def workers(self, port: int) -> list[int]:
        """Return the process ids of the workers of the gateway on `port`."""
        return tree(self.gateways[port].pid)[1:]

    def stop_gateway(self, port: int) -> None:
        """End the gateway on `port` with a drain, and wait for its end."""
        process = self.gateways.pop(port)
        process.terminate()
        process.wait(ENDS_WITHIN_S)

    def kill_gateway(self, port: int) -> None:
        """Kill the gateway on `port`."""
        _kill(self.gateways.pop(port))

    def complaints(self, port: int) -> list[str]:
        """Return the first lines of the errors that the gateway on `port` has logged."""
        with (self.out / f"gateway-{port}.log").open(errors="replace") as log:
            return [line.rstrip() for line in log if line.startswith(("ERROR", "CRITICAL", "Traceback"))]

    def close(self) -> None:
        """Stop everything."""
        processes = (*self.gateways.values(), *self.engines.values(), self.redis)
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
        end(*processes, within_s=ENDS_WITHIN_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextmanager
def stage(program: str, out: Path, port: int, engines: int) -> Iterator[GatewayStage]:
    """Run Redis and the engines, without a gateway."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    scene = GatewayStage(program, out, port, engines)
    try:
        for engine in scene.engine_ports:
            scene.start_engine(engine)
        yield scene
    finally:
        scene.close()

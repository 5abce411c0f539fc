"""A gateway, a Redis server and canned engines, each in processes of its own."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from specpilot import embedded_redis
from specpilot.bench.processes import end, wait_for
from specpilot.bench.report.metric_sums import metric_sums
from specpilot.policy.http_client import open_url
from specpilot.policy.settings import fail

START_WITHIN_S = 60.0
ENDS_WITHIN_S = 60.0
_SERVES = re.compile(rb"worker \d+ serves")
ADMIN_TOKEN = "bench"  # noqa: S105 - of a gateway that lives for one measurement


class GatewayStage:
    """Redis and engines that run, and the gateway on `port` once it is started; engines listen from `port + 10` on."""

    def __init__(self, program: str, out: Path, port: int, engines: int) -> None:
        """`program` is the name in error messages, `out` the folder for logs."""
        self._program = program
        self._log = out / "gateway.log"
        self._port = port
        self._engine_ports = [port + 10 + at for at in range(engines)]
        command, self.redis_url = embedded_redis.server_command(out / "redis")
        self._processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL)]
        for engine in self._engine_ports:
            words = ["-P", "-m", "specpilot.bench.gateway.canned_engine", str(engine)]
            self._processes.append(subprocess.Popen([sys.executable, *words]))

    def wait_for_engines(self) -> None:
        """Return once every engine answers."""
        for engine in self._engine_ports:
            wait_for(self._program, f"http://127.0.0.1:{engine}/v1/models", START_WITHIN_S)

    def slots(self) -> int:
        """Return the number of requests that the engines hold."""
        held = 0
        for engine in self._engine_ports:
            with open_url(f"http://127.0.0.1:{engine}/slots", timeout=5.0) as reply:
                held += json.load(reply)["held"]
        return held

    def start_gateway(self, flags: Sequence[str] = (), workers: int = 1) -> int:
        """Start the gateway in front of all engines; return its process id once all of its workers serve.

        Clients that connect while only the first worker serves would all stay with it.
        """
        command = [sys.executable, "-P", "-m", "specpilot.cli", "gateway", "--port", str(self._port)]
        command += ["--workers", str(workers), "--redis-url", self.redis_url, "--admin-token", ADMIN_TOKEN]
        for engine in self._engine_ports:
            command += ["--engine", f"http://127.0.0.1:{engine}"]
        with self._log.open("wb") as log:
            process = subprocess.Popen([*command, *flags], stdout=log, stderr=log)
        self._processes.append(process)
        wait_for(self._program, f"http://127.0.0.1:{self._port}/ready", START_WITHIN_S)
        ends_at = time.monotonic() + START_WITHIN_S
        while workers > 1 and len(_SERVES.findall(self._log.read_bytes())) < workers:
            if time.monotonic() > ends_at:
                fail(self._program, f"{self._log} does not say that {workers} workers serve")
            time.sleep(0.1)
        return process.pid

    def metrics(self) -> dict[str, float]:
        """Return the gateway's metrics, each summed over its labels, without their common prefix."""
        return {name.removeprefix("specpilot_gateway_"): value for name, value in metric_sums(self._port).items()}

    def complaints(self) -> list[str]:
        """Return the first lines of the errors that the gateway has logged."""
        with self._log.open(errors="replace") as log:
            return [line.rstrip() for line in log if line.startswith(("ERROR", "CRITICAL", "Traceback"))]

    def close(self) -> None:
        """Stop everything, the gateway first."""
        end(*reversed(self._processes), within_s=ENDS_WITHIN_S)


@contextmanager
def stage(program: str, out: Path, port: int, engines: int) -> Iterator[GatewayStage]:
    """Run Redis and the engines, without a gateway."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    scene = GatewayStage(program, out, port, engines)
    try:
        scene.wait_for_engines()
        yield scene
    finally:
        scene.close()

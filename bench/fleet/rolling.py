"""`specpilot bench rolling`: checks that no request fails while every part of a running system is replaced under load.

Real processes: two gateways, two controllers, a vLLM engine on the demo pair, Redis as one server, behind Sentinel or
as a cluster. Clients call `/invocations` without a pause (`bench.fleet.endpoint_calls`), spread over the gateways as
behind a balancer of connections, half of them on connections that they keep. The stretches, one after the other:

| stretch     | change                                                                                      |
|-------------|---------------------------------------------------------------------------------------------|
| calm        | nothing, to compare with                                                                    |
| gateways    | for each: a new one is ready before the old one gets SIGTERM                                |
| controllers | for each: the same; the other one leads meanwhile                                           |
| engine      | a new one is ready before the old one gets SIGTERM, drains and ends with status 0           |
| redis       | the server is restarted, or the primary is killed and its replica takes over                |

Counted are requests sent, failed (an error, or a wrong answer) and lost (no whole answer). It fails when a request
failed or was lost, when an engine that drains does not report it in Redis, or when no controller leads at the end.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.fleet.endpoint_calls import Callers
from specpilot.bench.fleet.redis_servers import SYSTEM, TOPOLOGIES
from specpilot.bench.load.system import wait_for
from specpilot.bench.process_end import end
from specpilot.bench.report.markdown import table
from specpilot.bench.report.output import say
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.errors import PolicyError
from specpilot.policy.http_client import open_url
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench rolling"
GRACE_S = 4.0
"""Drain grace of gateways and engines: longer than the clients' checks and a gateway's notice of an engine take."""
DRAIN_S = 60.0
START_WITHIN_S = 240.0
LEADS_WITHIN_S = 15.0
SHOWN_FAULTS = 20


class RollingSettings(ProgramSettings):
    """Replace every part under load and count what fails."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_ROLLING_")

    redis: Literal["server", "sentinel", "cluster"] = Field(default="server", description="topology of Redis")
    only: str = Field(default="", description="stretches to play, comma separated; default: all")
    clients: int = Field(default=6, ge=2, description="requests in flight")
    calm_s: float = Field(default=5.0, gt=0, description="seconds before and after each replacement")
    pair: Path = Field(default=DEMO_MODEL, description="folder with target/ and peagle/")
    out: Path = Field(default=Path(".specpilot/bench-rolling"), description="folder for logs")
    port: int = Field(default=8900, ge=1, le=65000, description="first of the ports to use")


class Fleet:
    """The parts, each in processes of its own, with methods that start and stop each."""

    def __init__(self, settings: RollingSettings, folder: Path) -> None:
        """`folder` is for the Redis servers' state."""
        self._settings = settings
        self._free_ports = itertools.count(settings.port)
        self.redis = TOPOLOGIES[settings.redis](folder)
        self.store = RedisStore(self.redis.url)
        self.gateways: dict[int, subprocess.Popen[bytes]] = {}
        self.controllers: dict[int, subprocess.Popen[bytes]] = {}
        self.engines: dict[int, subprocess.Popen[bytes]] = {}
        self.ports: list[int] = []  # of the gateways that clients call
        self.faults: list[str] = []

    def start(self) -> None:
        """Start everything; returns when a request would be answered."""
        self.start_engine()
        for _ in range(2):
            self.start_controller()
            self.ports.append(self.start_gateway())

    def start_gateway(self) -> int:
        """Start another gateway; return its port when it is ready."""
        port = next(self._free_ports)
        drains = ("--drain-grace-s", str(GRACE_S), "--drain-timeout-s", str(DRAIN_S))
        self.gateways[port] = self._run("gateway", port, *drains)
        wait_for(PROGRAM, f"http://127.0.0.1:{port}/ready", START_WITHIN_S)
        return port

    def start_controller(self) -> None:
        """Start another controller, and wait until it answers."""
        port = next(self._free_ports)
        self.controllers[port] = self._run("controller", port, "--trust-this-machine", "--holder", f"c{port}")
        wait_for(PROGRAM, f"http://127.0.0.1:{port}/health", START_WITHIN_S)

    def start_engine(self) -> int:
        """Start another engine; return its port when it has loaded and registered."""
        port, pair = next(self._free_ports), self._settings.pair
        flags = ["--model", str(pair / "target"), "--drafter", str(pair / "peagle"), "--served-model-name", "demo"]
        flags += ["--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "8", "--engine-id", f"e{port}"]
        flags += ["--distributed-executor-backend", "uni", "--disable-uvicorn-access-log"]
        flags += ["--drain-grace-s", str(GRACE_S), "--drain-timeout-s", str(DRAIN_S)]
        cpu = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
        self.engines[port] = self._run("engine", port, *flags, **cpu, HF_HUB_OFFLINE="1")
        wait_for(PROGRAM, f"http://127.0.0.1:{port}/health", START_WITHIN_S)
        self.until(lambda: f"e{port}" in self.registered(), "the engine is not registered")
        return port

    def registered(self) -> dict[str, bool]:
        """Return the engines in Redis, and whether each drains; none while Redis does not answer."""
        try:
            return {item.engine_id: item.draining for item in self.store.engines()}
        except PolicyError:
            return {}

    def until(self, condition: Callable[[], bool], fault: str, within_s: float = 30.0) -> None:
        """Wait until `condition` holds; note the `fault` when it does not in time."""
        ends_at = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > ends_at:
                self.faults.append(fault)
                return
            time.sleep(0.1)

    def end(self, parts: dict[int, subprocess.Popen[bytes]], port: int) -> None:
        """End a part by SIGTERM; note a status that is not 0."""
        process = parts.pop(port)
        if not end(process, within_s=GRACE_S + DRAIN_S + 30.0):
            self.faults.append(f"the part on port {port} did not end by itself")
        elif process.returncode:
            self.faults.append(f"the part on port {port} ended with status {process.returncode}")

    @property
    def leaders(self) -> int:
        """The number of controllers that lead."""
        count = 0
        for port in self.controllers:
            with suppress(OSError), open_url(f"http://127.0.0.1:{port}/metrics", timeout=2.0) as reply:
                count += b"specpilot_controller_lease_held 1.0" in reply.read()
        return count

    def close(self) -> None:
        """End everything."""
        end(*self.gateways.values(), *self.controllers.values(), *self.engines.values(), within_s=GRACE_S + 20.0)
        self.redis.close()

    def _run(self, command: str, port: int, *flags: str, **environment: str) -> subprocess.Popen[bytes]:
        words = [
            sys.executable,
            "-P",
            "-m",
            "specpilot.cli",
            command,
            "--port",
            str(port),
            "--redis-url",
            self.redis.url,
        ]
        with (self._settings.out / f"{command}-{port}.log").open("wb") as log:
            return subprocess.Popen([*words, *flags], env=os.environ | environment, stdout=log, stderr=log)


def _roll_gateways(fleet: Fleet) -> None:
    for port in list(fleet.gateways):
        fleet.ports.append(fleet.start_gateway())
        fleet.end(fleet.gateways, port)
        fleet.ports.remove(port)


def _roll_controllers(fleet: Fleet) -> None:
    for port in list(fleet.controllers):
        fleet.start_controller()
        fleet.end(fleet.controllers, port)
        fleet.until(lambda: fleet.leaders == 1, "not one controller leads", LEADS_WITHIN_S)


def _roll_engine(fleet: Fleet) -> None:
    [old] = fleet.engines
    fleet.start_engine()
    fleet.engines[old].terminate()
    fleet.until(lambda: fleet.registered().get(f"e{old}", False), "the engine never said that it drains", GRACE_S)
    process = fleet.engines.pop(old)
    fleet.until(lambda: process.poll() is not None, "the engine did not end", GRACE_S + DRAIN_S)
    if process.poll():
        fleet.faults.append(f"the engine ended with status {process.returncode}")
    fleet.until(lambda: f"e{old}" not in fleet.registered(), "the engine is still registered")


def _fail_redis_over(fleet: Fleet) -> None:
    fleet.redis.fail_over()
    fleet.until(lambda: fleet.leaders == 1, "not one controller leads", LEADS_WITHIN_S)
    fleet.until(lambda: len(fleet.registered()) == len(fleet.engines), "an engine is not registered again")


STRETCHES: dict[str, Callable[[Fleet], None]] = {
    "calm": lambda _: None,
    "gateways": _roll_gateways,
    "controllers": _roll_controllers,
    "engine": _roll_engine,
    "redis": _fail_redis_over,
}


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object, and the exit status is 1 when something failed or was lost."""
    settings = load(RollingSettings, PROGRAM, arguments)
    names = chosen(PROGRAM, "--only", settings.only, STRETCHES) or list(STRETCHES)
    if SYSTEM is None or shutil.which("redis-cli") is None:
        fail(PROGRAM, "there is no redis-server and redis-cli on this machine; install the system's package `redis`")
    if not (settings.pair / "target" / "config.json").is_file():
        fail(PROGRAM, f"--pair: no target in {settings.pair}; name a folder with target/ and peagle/")
    settings.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="specpilot-rolling-") as folder:
        fleet = Fleet(settings, Path(folder))
        try:
            fleet.start()
            say(f"two gateways, two controllers, an engine, Redis: {settings.redis}")
            rows = _play(settings, fleet, names)
        finally:
            fleet.close()
    broken = broken_promises(rows, fleet.faults)
    say("\n" + markdown(rows))
    for violation in broken:
        say(violation)
    say(json.dumps({"redis": settings.redis, "stretches": rows, "broken_promises": broken}))
    sys.exit(1 if broken else 0)


def _play(settings: RollingSettings, fleet: Fleet, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    callers = Callers(fleet.ports, "demo", settings.clients, pause_s=0.0, keeping=settings.clients // 2)
    callers.start()
    rows: dict[str, dict[str, Any]] = {}
    try:
        for name in names:
            before, began = dict(callers.counts), time.monotonic()
            time.sleep(settings.calm_s)
            STRETCHES[name](fleet)
            time.sleep(settings.calm_s)
            if name == names[-1]:
                callers.end()
            rows[name] = _row(before, callers, time.monotonic() - began)
            say(f"{name}: {json.dumps(rows[name])}")
    finally:
        callers.end()
    for fault in callers.faults[:SHOWN_FAULTS]:
        say(f"  {fault.outcome}: {fault.detail}")
    return rows


def _row(before: dict[str, int], callers: Callers, seconds: float) -> dict[str, Any]:
    now = {name: callers.counts[name] - before.get(name, 0) for name in ("sent", "refused", "wrong", "lost")}
    failed = now["refused"] + now["wrong"]
    return {"seconds": round(seconds, 1), "sent": now["sent"], "failed": failed, "lost": now["lost"]}


def broken_promises(rows: dict[str, dict[str, Any]], faults: Sequence[str]) -> list[str]:
    """Return the violated expectations."""
    violations = [
        f"{name}: {row[kind]} {kind} of {row['sent']}"
        for name, row in rows.items()
        for kind in ("failed", "lost")
        if row[kind]
    ]
    violations += [f"{name}: nothing was sent" for name, row in rows.items() if not row["sent"]]
    return [*violations, *faults]


def markdown(rows: dict[str, dict[str, Any]]) -> str:
    """Return the table."""
    cells = [(name, f"{row['seconds']:g}", row["sent"], row["failed"], row["lost"]) for name, row in rows.items()]
    return "\n".join(table(("replaced", "seconds", "sent", "failed", "lost"), cells)) + "\n"

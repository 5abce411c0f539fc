"""`specpilot bench sizing`: the capacity of Redis, one controller and one gateway core, on simulated engines.

Real programs and a real Redis with `bench.fleet.simulated_engines`. The parts, in order:

- *memory*: Redis' bytes for each policy, engine, schedule and decision, by its `used_memory`;
- *links*: some engines keep the adapter's link to Redis (`engine_adapter.agent.link.EngineLink`: heartbeat,
  subscription, polling of the schedule): Redis' CPU, commands and bytes for each;
- *controller*: one controller with all engines and policies: CPU of a tick, memory, Redis' work for it, and whether
  every engine was scraped;
- *gateway*: one gateway (one worker) with all engines, idle and under load: CPU, memory, requests for a core.

CPU is counted by process, not by wall clock, so other load on the machine has little effect. A table, then one JSON
object as the last line.
"""

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.fleet.redis_servers import SYSTEM, Node
from specpilot.bench.fleet.simulated_engines import CLASSES, K_MAX, K, model_of
from specpilot.bench.fleet.small_calls import calls_for
from specpilot.bench.load.system import wait_for
from specpilot.bench.process_end import end
from specpilot.bench.report.markdown import table
from specpilot.bench.report.metric_sums import metric_sums
from specpilot.bench.report.output import say
from specpilot.bench.report.process_tree import cpu_s_of, memory_of
from specpilot.controller.publication import RENEW_S
from specpilot.engine_adapter.agent.link import HEARTBEAT_S, TTL_S, EngineLink
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl
from specpilot.policy.bands import BANDS
from specpilot.policy.clock import SystemClock
from specpilot.policy.errors import PolicyError
from specpilot.policy.model_policy import ClassPolicy, Policy
from specpilot.policy.records import EngineRecord
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.schedule import ClassGuidance, FleetAcceptance, Guidance, Schedule
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench sizing"
MAX_NUM_SEQS = 64
START_WITHIN_S = 120.0
_KIB, _MIB = 1 << 10, 1 << 20


class SizingSettings(ProgramSettings):
    """Measure the capacity of Redis, a controller and a gateway core."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_SIZING_")

    engines: int = Field(default=1000, ge=1, description="simulated engines")
    pools: int = Field(default=50, ge=1, description="pools, each of a model of its own")
    policies: int = Field(default=100, ge=1, description="models with a policy")
    links: int = Field(default=100, ge=1, description="engines that keep a real link to Redis in that part")
    interval_s: float = Field(default=5.0, ge=0.1, le=5, description="the controller's interval")
    ticks: int = Field(default=6, ge=2, description="ticks of the controller that count")
    seconds: float = Field(
        default=15.0, gt=0, description="duration of each measurement of links, idle and loaded gateway"
    )
    clients: int = Field(default=16, ge=1, description="connections that load the gateway")
    only: str = Field(default="", description="parts to measure, comma separated; default: all")
    out: Path = Field(default=Path(".specpilot/bench-sizing"), description="folder for logs")
    port: int = Field(default=8950, ge=1, le=65000, description="first of the ports to use")


class Stage:
    """Redis, the simulated engines and their records."""

    def __init__(self, settings: SizingSettings, folder: Path) -> None:
        self.settings = settings
        self.redis = Node(folder)
        self.redis.until_said("PONG", "ping")
        self.url = f"redis://127.0.0.1:{self.redis.port}"
        self.store = RedisStore(self.url)
        module = "specpilot.bench.fleet.simulated_engines"
        self._engines = subprocess.Popen([sys.executable, "-P", "-m", module, str(settings.port), str(settings.pools)])
        wait_for(PROGRAM, f"http://127.0.0.1:{settings.port}/e0/v1/models", START_WITHIN_S)
        self._ended = threading.Event()
        self._keeping = threading.Thread(target=self._keep)
        self._started: list[subprocess.Popen[bytes]] = []

    def info(self) -> dict[str, float]:
        """Return the numbers of Redis' INFO."""
        numbers: dict[str, float] = {}
        for line in self.redis.ask("info", "everything").splitlines():
            name, _, value = line.strip().partition(":")
            with suppress(ValueError):
                numbers[name] = float(value)
        return numbers

    def record(self, number: int) -> EngineRecord:
        """Return the record of engine `number`."""
        url = f"http://127.0.0.1:{self.settings.port}/e{number}"
        model = model_of(number, self.settings.pools)
        versions = ("eagle3", "0.32.0", "0.1.0")
        return EngineRecord(f"10-0-0-{number}:8000", url, model, "h200", K_MAX, K, MAX_NUM_SEQS, *versions, 1.0, 1.0)

    def keep_engines(self) -> None:
        """Keep every engine registered from now on."""
        if not self._keeping.is_alive():
            self._keeping.start()

    def _keep(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with suppress(PolicyError):
                self.register()

    def register(self) -> None:
        """Register every engine for a while."""
        for number in range(self.settings.engines):
            self.store.heartbeat(self.record(number), 10 * TTL_S)

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a program of the product on Redis."""
        command = [sys.executable, "-P", "-m", "specpilot.cli", *words, "--redis-url", self.url]
        with (self.settings.out / f"{words[0]}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._started.append(process)
        return process

    def close(self) -> None:
        """End everything."""
        self._ended.set()
        if self._keeping.is_alive():
            self._keeping.join()
        end(*self._started, self._engines, within_s=10.0)
        self.redis.kill()


def per_second(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Return Redis' work per second between two of its INFOs, `seconds` apart."""

    def grown(*names: str) -> float:
        return sum(after[name] - before[name] for name in names) / seconds

    return {
        "cpu_ms": 1000 * grown("used_cpu_sys", "used_cpu_user"),
        "commands": grown("total_commands_processed"),
        "bytes_in": grown("total_net_input_bytes"),
        "bytes_out": grown("total_net_output_bytes"),
    }


def _memory(stage: Stage) -> dict[str, float]:
    """Fill Redis; return the bytes of each kind of document."""
    settings, store = stage.settings, stage.store
    classes = {name: ClassPolicy() for name in CLASSES}
    store.put_policy(Policy("another", classes=classes), None, time.time())  # Redis caches its scripts once
    lease = store.acquire_lease("sizing", 60.0)
    if lease is None:
        fail(PROGRAM, "somebody else leads in a Redis that was just started")
    store.publish_schedule(_schedule("another", 1), lease)
    used = [stage.info()["used_memory"]]
    for number in range(settings.policies):
        store.put_policy(Policy(f"model-{number}", classes=classes), None, time.time())
    used.append(stage.info()["used_memory"])
    stage.register()
    used.append(stage.info()["used_memory"])
    for number in range(settings.pools):
        store.publish_schedule(_schedule(f"model-{number}", 1), lease)
    used.append(stage.info()["used_memory"])
    store.release_lease(lease)
    counts = (settings.policies, settings.engines, settings.pools)
    grown = [(after - before) / count for before, after, count in zip(used, used[1:], counts, strict=False)]
    return dict(zip(("bytes_a_policy", "bytes_an_engine", "bytes_a_schedule"), map(round, grown), strict=True))


def _schedule(model: str, version: int) -> Schedule:
    """Return a schedule with requirements of its own for every class, and the fleet's acceptance."""
    classes = {name: ClassGuidance(itl_slo_ms=50.0 + number) for number, name in enumerate(CLASSES)}
    trials = ((200.0,) * K_MAX,) * BANDS
    fleet = FleetAcceptance(trials, ((123.4,) * K_MAX,) * BANDS)
    return Schedule(model, "h200", version, time.time(), Guidance(classes=classes), fleet)


def _renew(stage: Stage, ended: threading.Event) -> None:
    """Renew every pool's schedule as the leader does, until `ended`."""
    lease = stage.store.acquire_lease("sizing", 3600.0)
    if lease is None:
        fail(PROGRAM, "somebody else leads in a Redis that was just started")
    version = 1
    while not ended.wait(RENEW_S):
        version += 1
        for number in range(stage.settings.pools):
            stage.store.publish_schedule(_schedule(f"model-{number}", version), lease)
    stage.store.release_lease(lease)


def _links(stage: Stage) -> dict[str, float]:
    """Return Redis' work per second for one engine's link, while its pool's schedule is renewed."""
    settings = stage.settings
    calm, links = stage.info(), []
    for number in range(settings.links):
        record = replace(stage.record(number), engine_id=f"linked-{number}")
        control = SpeculationControl(record.model, record.pool, k_max=K_MAX, static_k=K, max_running=MAX_NUM_SEQS)
        link = EngineLink(RedisStore(stage.url, timeout_s=5.0), control, record, SystemClock())
        thread = threading.Thread(target=link.run)
        thread.start()
        links.append((link, thread))
    ended = threading.Event()
    renewing = threading.Thread(target=_renew, args=(stage, ended))
    renewing.start()
    time.sleep(3.0)
    before, began = stage.info(), time.monotonic()
    time.sleep(settings.seconds)
    after = stage.info()
    figures = per_second(before, after, time.monotonic() - began)
    ended.set()
    renewing.join()
    figures["connection_bytes"] = after["used_memory"] - calm["used_memory"]
    for link, _ in links:
        link.stop()
    for _, thread in links:
        thread.join()
    return {name: value / settings.links for name, value in figures.items()}


def _controller(stage: Stage) -> dict[str, float]:
    """Return the cost of one controller with all engines and policies."""
    settings, port = stage.settings, stage.settings.port + 1
    interval = ("--interval-s", str(settings.interval_s))
    process = stage.run("controller", "--port", str(port), "--trust-this-machine", *interval)
    wait_for(PROGRAM, f"http://127.0.0.1:{port}/health", START_WITHIN_S, process)
    count = "specpilot_controller_tick_seconds_count"

    def ticked(ticks: float) -> dict[str, float]:
        ends_at = time.monotonic() + START_WITHIN_S + ticks * settings.interval_s * 4
        while (metrics := metric_sums(port, 30.0))[count] < ticks:
            if time.monotonic() > ends_at or process.poll() is not None:
                fail(PROGRAM, f"the controller does not tick; its log is {settings.out / 'controller.log'}")
            time.sleep(0.2)
        return metrics

    first = ticked(3)  # by then it leads, and every engine was scraped once
    cpu_s, redis, began = cpu_s_of(process.pid), stage.info(), time.monotonic()
    last = ticked(first[count] + settings.ticks)
    cpu_s, after, seconds = cpu_s_of(process.pid) - cpu_s, stage.info(), time.monotonic() - began
    ticks = last[count] - first[count]
    wall_s = last["specpilot_controller_tick_seconds_sum"] - first["specpilot_controller_tick_seconds_sum"]
    logged = (settings.out / "controller.log").read_text(errors="replace")
    figures = {
        "cpu_s_a_tick": cpu_s / ticks,
        "tick_s": wall_s / ticks,
        "memory_mib": memory_of(process.pid) / _MIB,
        "engines_not_scraped": float(logged.count(": no metrics: ")),
        "leads": last["specpilot_controller_lease_held"],
        **{f"redis_{name}_a_second": value for name, value in per_second(redis, after, seconds).items()},
    }
    streams = [f"specpilot:decisions:{{model-{number} h200}}" for number in range(settings.pools)]
    lengths = [int(stage.redis.ask("xlen", key) or 0) for key in streams]
    if any(lengths):
        held = sum(int(stage.redis.ask("memory", "usage", key) or 0) for key in streams)
        figures["bytes_a_decision"] = held / sum(lengths)
    end(process)
    return figures


def _gateway(stage: Stage) -> dict[str, float]:
    """Return the cost of one gateway with every engine, idle and loaded."""
    settings, port = stage.settings, stage.settings.port + 2
    process = stage.run("gateway", "--port", str(port), "--no-access-log")
    wait_for(PROGRAM, f"http://127.0.0.1:{port}/ready", START_WITHIN_S, process)
    time.sleep(5.0)
    redis, cpu_s, began = stage.info(), cpu_s_of(process.pid), time.monotonic()
    time.sleep(settings.seconds)
    seconds = time.monotonic() - began
    idle, after = (cpu_s_of(process.pid) - cpu_s) / seconds, stage.info()
    cpu_s = cpu_s_of(process.pid)
    calls = calls_for(port, settings.pools, settings.clients, settings.seconds)
    counts = uvloop.run(calls)
    loaded = cpu_s_of(process.pid) - cpu_s
    figures = {
        "idle_cpu_ratio": idle,
        "memory_mib": memory_of(process.pid) / _MIB,
        "requests": float(counts.answered),
        "failed": float(counts.failed),
        "cpu_us_a_request": 1e6 * (loaded - idle * counts.seconds) / max(1, counts.answered),
        **{f"redis_{name}_a_second": value for name, value in per_second(redis, after, seconds).items()},
    }
    end(process)
    return figures


PARTS: dict[str, Callable[[Stage], dict[str, float]]] = {
    "memory": _memory,
    "links": _links,
    "controller": _controller,
    "gateway": _gateway,
}


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(SizingSettings, PROGRAM, arguments)
    if SYSTEM is None:
        fail(PROGRAM, "there is no redis-server on this machine; install the system's package `redis`")
    names = chosen(PROGRAM, "--only", settings.only, PARTS) or list(PARTS)
    settings.out.mkdir(parents=True, exist_ok=True)
    outcome: dict[str, Any] = {name: getattr(settings, name) for name in ("engines", "pools", "policies", "interval_s")}
    with tempfile.TemporaryDirectory(prefix="specpilot-sizing-") as folder:
        stage = Stage(settings, Path(folder))
        try:
            for name in ["memory", *(item for item in names if item != "memory")]:  # it fills Redis for the others
                if name in {"controller", "gateway"}:
                    stage.keep_engines()
                outcome[name] = {key: round(value, 3) for key, value in PARTS[name](stage).items()}
                say(f"{name}: {json.dumps(outcome[name])}")
        finally:
            stage.close()
    say("\n" + markdown(outcome))
    say(json.dumps(outcome))


def markdown(outcome: Mapping[str, Any]) -> str:
    """Return the table."""
    rows = [
        (part, name.replace("_", " "), f"{value:g}")
        for part in PARTS
        if part in outcome
        for name, value in outcome[part].items()
    ]
    return "\n".join(table(("part", "figure", "value"), rows)) + "\n"

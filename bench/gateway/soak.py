"""`specpilot bench gateway-soak`: the gateway under all kinds of load at once, for as long as you like.

A gateway of two workers, a real Redis and three canned engines (`bench.gateway.canned_engine`). Clients send all kinds
of requests (`bench.gateway.call_mix`): every route, streams, large bodies, long conversations, a key over its limits,
invalid requests, engines' errors and broken streams; some stop reading for a while, some close their connection, in
every phase. The load leaves most of a core idle. It fails when

- an answer is wrong, truncated or of another request; or the gateway logs an error or ends;
- the gateway, idle again, holds a request, a slot of an engine, or a file descriptor more than before;
- memory grows: the 95 % interval of the slope after the warm-up (`bench.report.slope`) lies above `--slope-mib`.

Before the first reading the clients send more conversations than the gateway's memory of prefixes holds, so that this
memory is full from the start.
"""

import asyncio
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import uvloop
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.gateway.call_mix import KEYS, Mix
from specpilot.bench.gateway.judged_call import Call, Caller, connect
from specpilot.bench.gateway.stage import ADMIN_TOKEN, GatewayStage, stage
from specpilot.bench.report.output import say
from specpilot.bench.report.process_tree import cpu_s_of, descriptors_of, memory_of, tree
from specpilot.bench.report.slope import slope
from specpilot.policy.settings import ProgramSettings, load

PROGRAM = "specpilot bench gateway-soak"
ENGINES = 3
WORKERS = 2
FLAGS = ("--engine-capacity", "8", "--keep-alive-s", "5")
FILL_CALLS = 6000
"""Each adds about 40 prefixes; two workers hold 65,536 each."""
FILL_CLIENTS = 16
REUSED_WITHIN_S = 3.0
"""Well below the gateway's 5 s: on a longer idle connection, a request and the gateway's close could cross."""
READ_EVERY_S = 5.0
IDLE_WITHIN_S = 30.0
SHOWN_FAULTS = 20
_MIB = 1 << 20


class GatewaySoakSettings(ProgramSettings):
    """Load a gateway with all kinds of requests at once and look for wrong answers and leaks."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_GATEWAY_SOAK_")

    minutes: float = Field(default=10.0, gt=0, description="how long the load lasts")
    clients: int = Field(default=50, ge=1, description="clients at once")
    pause_s: float = Field(
        default=0.5, ge=0, description="mean seconds between an answer and the client's next request"
    )
    slope_mib: float = Field(default=0.1, ge=0, description="tolerated growth of memory a minute, in MiB")
    seed: int = Field(default=1, description="seed of the load")
    out: Path = Field(default=Path(".specpilot/bench-gateway-soak"), description="folder for logs")
    port: int = Field(default=8640, ge=1, le=65000, description="first of the ports to use")


class GatewaySoak:
    """One run: requests, faults, readings."""

    def __init__(self, settings: GatewaySoakSettings, scene: GatewayStage, pid: int) -> None:
        self._settings = settings
        self._scene = scene
        self._pid = pid
        self._mix = Mix(settings.seed, ADMIN_TOKEN)
        self._rng = random.Random(settings.seed)  # noqa: S311 - a reproducible load
        self._ends_at = 0.0
        self._requests: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._memory: list[tuple[float, float]] = []
        self._wrong = 0
        self._faults: list[str] = []

    async def run(self) -> dict[str, Any]:
        """Fill, load, wait until idle; return the report."""
        say("filling the gateway's memory of prefixes")
        numbers = iter(range(FILL_CALLS))
        await asyncio.gather(*(self._fill(numbers) for _ in range(FILL_CLIENTS)))
        before, _ = await self._rest()
        workers = tree(self._pid)
        began, cpu_s = time.monotonic(), cpu_s_of(self._pid)
        self._ends_at = began + 60.0 * self._settings.minutes
        await asyncio.gather(self._watch(began), *(self._client() for _ in range(self._settings.clients)))
        cpu_ratio = (cpu_s_of(self._pid) - cpu_s) / (time.monotonic() - began)
        after, held = await self._rest(before)
        if tree(self._pid) != workers:
            self._faults.append("a worker ended")
        self._faults += self._scene.complaints()
        if after > before:
            self._faults.append(f"{after - before} more open files than before")
        self._faults += [f"still held at the end: {name} {value:g}" for name, value in held.items() if value]
        low, middle, high = slope(self._memory)
        if low > self._settings.slope_mib:
            self._faults.append(f"memory grows by {middle:.2f} MiB a minute (95 %: {low:.2f} to {high:.2f})")
        return {
            "minutes": self._settings.minutes,
            "requests": self._requests.total(),
            "by_kind": dict(sorted(self._requests.items())),
            "verdicts": dict(sorted(self._verdicts.items())),
            "wrong": self._wrong,
            "gateway_cpu_ratio": round(cpu_ratio, 3),
            "memory_mib": [round(mib, 1) for _, mib in (self._memory[0], self._memory[-1])],
            "memory_slope_mib_per_min": [
                round(item, 3) if math.isfinite(item) else None for item in (low, middle, high)
            ],
            "open_files": [before, after],
            "left_over": held,
            "faults": self._faults,
        }

    async def _fill(self, numbers: Iterator[int]) -> None:
        caller: Caller | None = None
        for at in numbers:
            if caller is None or caller.is_closed or at % 50 == 0:
                caller = await self._reconnect(caller)
            await self._ask(caller, self._mix.of("conversation"))
        if caller is not None:
            caller.close()

    async def _client(self) -> None:
        caller: Caller | None = None
        idle_since, before = 0.0, ""
        while (now := time.monotonic()) < self._ends_at:
            is_old = now - idle_since > REUSED_WITHIN_S
            if caller is None or caller.is_closed or is_old or self._rng.random() < 0.1:  # noqa: PLR2004 - one of ten
                caller = await self._reconnect(caller)
                before = "on a new connection"
            call = self._mix.draw()
            await self._ask(caller, call, before)
            self._requests[call.kind] += 1
            idle_since, before = time.monotonic(), f"after {call.kind}"
            await asyncio.sleep(self._rng.expovariate(1 / self._settings.pause_s) if self._settings.pause_s else 0.0)
        if caller is not None:
            caller.close()

    async def _reconnect(self, caller: Caller | None) -> Caller:
        if caller is not None:
            caller.close()
        return await connect(self._settings.port)

    async def _ask(self, caller: Caller, call: Call, before: str = "") -> None:
        began = time.monotonic()
        verdict = await caller.ask(call)
        self._verdicts[str(verdict)] += 1
        if verdict not in call.expected:
            self._wrong += 1
            if self._wrong <= SHOWN_FAULTS:
                took_s = time.monotonic() - began
                about = f"{call.kind} {call.leaves} {call.number} {before}, in {took_s:.3f} s"
                self._faults.append(f"{' '.join(about.split())}: {verdict}")
                say(self._faults[-1])

    async def _watch(self, began: float) -> None:
        while (now := time.monotonic()) < self._ends_at:
            minutes, mib = (now - began) / 60.0, memory_of(self._pid) / _MIB
            self._memory.append((minutes, mib))
            say(
                f"{minutes:5.1f} of {self._settings.minutes:g} min  {self._requests.total():7d} requests  "
                f"{mib:6.1f} MiB  {descriptors_of(self._pid):4d} files  {self._wrong} wrong"
            )
            await asyncio.sleep(READ_EVERY_S)

    async def _rest(self, most_files: int | None = None) -> tuple[int, dict[str, float]]:
        """Return the gateway's open files, and the requests and slots that it and the engines hold.

        Waits until idle connections have been closed; with `most_files` further until there are no more files.
        """
        await asyncio.sleep(2 * READ_EVERY_S)
        end = time.monotonic() + IDLE_WITHIN_S
        while True:
            held = {"slots": float(await asyncio.to_thread(self._scene.slots))}
            metrics = await asyncio.to_thread(self._scene.metrics)
            held |= {name: metrics.get(name, 0.0) for name in ("in_flight", "queue_length")}
            await asyncio.sleep(1.0)
            files = descriptors_of(self._pid)
            if (not any(held.values()) and (most_files is None or files <= most_files)) or time.monotonic() > end:
                return files, held


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object, and the exit status is 1 after a fault."""
    settings = load(GatewaySoakSettings, PROGRAM, arguments)
    with stage(PROGRAM, settings.out, settings.port, ENGINES) as scene:
        keys = settings.out / "keys.json"
        keys.write_text(json.dumps(KEYS))
        pid = scene.start_gateway((*FLAGS, "--api-keys-file", str(keys)), WORKERS)
        report = uvloop.run(GatewaySoak(settings, scene, pid).run())
    say(json.dumps(report))
    sys.exit(1 if report["faults"] else 0)

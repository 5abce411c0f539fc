"""`specpilot bench gateway-faults`: effects on clients while a part around the gateway fails, and leaks afterwards.

Three canned engines (`bench.gateway.canned_engine`), a real Redis, and for each fault a fresh gateway of two workers,
or two gateways behind a load balancer, all with default settings. Only the rolled gateways have a flag, which every
deployment behind a balancer sets: `--drain-grace-s`, the time that the balancer needs to notice a drain. A mixed load
of JSON, streams, paced streams and large bodies is always in flight. Every answer is checked
(`bench.gateway.judged_call`): right, whole, and of the right request. The promises:

- a request without a byte of its answer goes to another engine: none is rejected;
- a stream that has begun on an engine that fails ends with one clear error event: none is lost;
- no effect on clients of other engines, and no effect at all when no engine fails;
- a killed gateway loses only the requests on its connections; one that drains or reloads loses none;
- a second after the load has ended no engine holds a slot; memory and open files are as before.

A table, then one JSON object as the last line; the exit status is 1 after a broken promise.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.gateway.call_mix import EVERYDAY, FREE_KEY, LEAVING, Mix
from specpilot.bench.gateway.stage import ADMIN_TOKEN, GatewayStage, stage
from specpilot.bench.gateway.steady_calls import SteadyCalls
from specpilot.bench.report.markdown import table
from specpilot.bench.report.output import say
from specpilot.bench.report.process_tree import descriptors_of, memory_of
from specpilot.policy.settings import ProgramSettings, load

PROGRAM = "specpilot bench gateway-faults"
ENGINES = 3
ROLLED = ("--drain-grace-s", "1")
HANG_S = 20.0
"""Seconds of a hang: with default settings the gateway's probes notice a hung engine within 10 s."""
WAIT_S = 0.2
WARM_UP_S = 3.0
REST_S = 5.0
"""Seconds, longer than a gateway keeps an idle connection to an engine (`--engine-keep-alive-s`)."""
IDLE_WITHIN_S = 15.0
SLOW_S = 1.5
FLAPS = 4
CUT_SLACK_S = 0.25
MEMORY_RATIO = 1.1


class GatewayFaultsSettings(ProgramSettings):
    """Break one part after the other under load, and count effects on clients and leaks."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_GATEWAY_FAULTS_")

    only: str = Field(default="", description="faults to play, comma separated; default: all")
    clients: int = Field(default=100, ge=2, description="requests in flight")
    lasts_s: float = Field(default=8.0, gt=0, description="seconds that a fault holds")
    calm_s: float = Field(default=4.0, gt=0, description="seconds before and after it")
    seed: int = Field(default=1, description="seed of the load")
    out: Path = Field(default=Path(".specpilot/bench-gateway-faults"), description="folder for logs")
    port: int = Field(default=8660, ge=1, le=65000, description="first of the ports to use")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: `play` injects it, waits the given seconds and removes it.

    Attributes:
        fails: an engine fails, so requests go to others.
        breaks: streams that have begun on that engine end with an error.
        cuts: clients' connections are cut, so their requests are lost.
        gateways: number of gateways behind a load balancer; a single one has two workers.
        flags: further flags of the gateways.
        leaves: the phase in which half of the clients close their connections.
    """

    says: str
    play: Callable[[GatewayStage, float], None]
    fails: bool = False
    breaks: bool = False
    cuts: bool = False
    gateways: int = 1
    flags: tuple[str, ...] = ()
    leaves: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The counts of one fault. `memory_ratio`: the gateways' memory after over before; `files`: more open files."""

    says: str
    sent: int
    ok: int
    disconnected: int
    elsewhere: int
    refused: int
    broken: int
    lost: int
    lost_later: int
    wrong: int
    slots: int
    in_flight: int
    memory_ratio: float
    files: int
    logged_errors: int
    codes: Mapping[str, int]


def broken_promises(fault: Fault, row: Row, clients: int) -> list[str]:
    """Return the promises that `fault` broke, with `clients` requests in flight."""
    checks = (
        (row.refused > 0, f"{row.refused} refused before a byte, although an engine was there"),
        (row.wrong > 0, f"{row.wrong} wrong answers"),
        (row.broken > 0 and not fault.breaks, f"{row.broken} streams broken, although no engine went away under them"),
        (row.lost > (clients if fault.cuts else 0), f"{row.lost} lost"),
        (row.lost_later > 0, f"{row.lost_later} lost that began after connections were cut"),
        (fault.fails and row.elsewhere == 0, "no request went to another engine: the fault had no effect"),
        (fault.cuts and row.lost == 0, "no request was lost: the fault had no effect"),
        (bool(fault.leaves) and row.disconnected == 0, "nobody left"),
        (
            row.sent != row.ok + row.disconnected + row.refused + row.broken + row.lost + row.wrong,
            "the counts do not add up",
        ),
        (row.slots > 0, f"{row.slots} slots of engines still held"),
        (row.in_flight > 0, f"{row.in_flight} requests still in flight"),
        (row.memory_ratio > MEMORY_RATIO, f"memory {row.memory_ratio:.2f} times that before"),
        (row.files > 0, f"{row.files} open files more than before"),
        (row.logged_errors > 0, f"{row.logged_errors} errors in the gateway's log"),
    )
    return [violation for is_broken, violation in checks if is_broken]


def _nothing(_scene: GatewayStage, lasts_s: float) -> None:
    time.sleep(lasts_s)


def _kill_engine(scene: GatewayStage, lasts_s: float) -> None:
    scene.kill_engine(scene.engine_ports[-1])
    time.sleep(lasts_s)
    scene.start_engine(scene.engine_ports[-1])


def _hang_engine(scene: GatewayStage, lasts_s: float) -> None:
    engine = scene.engines[scene.engine_ports[-1]]
    engine.send_signal(signal.SIGSTOP)
    time.sleep(max(lasts_s, HANG_S))
    engine.send_signal(signal.SIGCONT)


def _set_mode(mode: Mapping[str, Any], scene: GatewayStage, lasts_s: float) -> None:
    scene.set_mode(scene.engine_ports[-1], dict(mode))
    time.sleep(lasts_s)
    scene.set_mode(scene.engine_ports[-1], {})


def _mute_engine(scene: GatewayStage, lasts_s: float) -> None:
    _set_mode({"mute": True}, scene, max(lasts_s, HANG_S))


def _flap_engine(scene: GatewayStage, lasts_s: float) -> None:
    for _ in range(FLAPS):
        _kill_engine(scene, lasts_s / FLAPS / 2)
        time.sleep(lasts_s / FLAPS / 2)


def _kill_redis(scene: GatewayStage, lasts_s: float) -> None:
    scene.redis.kill()
    scene.redis.wait()
    time.sleep(lasts_s)
    scene.start_redis()


def _freeze_redis(scene: GatewayStage, lasts_s: float) -> None:
    scene.redis.send_signal(signal.SIGSTOP)
    time.sleep(lasts_s)
    scene.redis.send_signal(signal.SIGCONT)


def _kill_worker(scene: GatewayStage, lasts_s: float) -> None:
    os.kill(scene.workers(scene.port)[-1], signal.SIGKILL)
    time.sleep(lasts_s)


def _kill_gateway(scene: GatewayStage, lasts_s: float) -> None:
    scene.kill_gateway(scene.port)
    time.sleep(lasts_s)
    _start_gateway(scene, scene.port)


def _roll_gateways(scene: GatewayStage, lasts_s: float) -> None:
    for port in list(scene.gateways):
        scene.stop_gateway(port)
        _start_gateway(scene, port, ROLLED)
        time.sleep(lasts_s / 2)


def _reload_workers(scene: GatewayStage, lasts_s: float) -> None:
    scene.gateways[scene.port].send_signal(signal.SIGHUP)
    time.sleep(lasts_s)


FAULTS: Mapping[str, Fault] = {
    "none": Fault("nothing, to compare with", _nothing),
    "engine-killed": Fault("one engine of three killed", _kill_engine, fails=True, breaks=True),
    "engine-hung": Fault("one engine hung", _hang_engine, fails=True, breaks=True),
    "engine-mute": Fault("one engine accepts and never answers", _mute_engine, fails=True),
    "engine-401": Fault("one engine answers 401", partial(_set_mode, {"status": 401}), fails=True),
    "engine-error-events": Fault(
        "one engine answers 200 and an error event", partial(_set_mode, {"error_event": True}), fails=True
    ),
    "engine-slow": Fault("one engine slow to its first byte", partial(_set_mode, {"wait_s": SLOW_S})),
    "engine-500": Fault("one engine answers 500", partial(_set_mode, {"status": 500}), fails=True),
    "engine-flapping": Fault("one engine killed and started, over and over", _flap_engine, fails=True, breaks=True),
    "redis-killed": Fault("Redis killed", _kill_redis),
    "redis-frozen": Fault("Redis frozen", _freeze_redis),
    "worker-killed": Fault("one worker of two killed", _kill_worker, cuts=True),
    "gateway-killed": Fault("one gateway of two killed", _kill_gateway, cuts=True, gateways=2),
    "gateways-rolled": Fault("two gateways rolled, one after the other", _roll_gateways, gateways=2, flags=ROLLED),
    "workers-reloaded": Fault("both workers reloaded", _reload_workers),
    **{f"clients-leave-{phase}": Fault(f"clients leave: {phase}", _nothing, leaves=phase) for phase in LEAVING},
}


def _start_gateway(scene: GatewayStage, port: int, flags: Sequence[str] = (), workers: int = 1) -> None:
    scene.start_gateway(port, ("--api-keys-file", str(scene.out / "keys.json"), *flags), workers)


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object, and the exit status is 1 when a promise was broken."""
    settings = load(GatewayFaultsSettings, PROGRAM, arguments)
    names = chosen(PROGRAM, "--only", settings.only, FAULTS) or list(FAULTS)
    rows: dict[str, Row] = {}
    broken: list[str] = []
    with stage(PROGRAM, settings.out, settings.port, ENGINES) as scene:
        # A limit that no request reaches, so that the gateway calls Redis for every request.
        key = {"key_id": "free", "key": FREE_KEY, "requests_per_minute": 1_000_000, "tokens_per_minute": 1_000_000_000}
        (scene.out / "keys.json").write_text(json.dumps([key]))
        for name in names:
            say(f"{name}: {FAULTS[name].says}")
            rows[name] = uvloop.run(_play(settings, scene, FAULTS[name]))
            say(f"  {json.dumps(asdict(rows[name]))}")
            violations = broken_promises(FAULTS[name], rows[name], settings.clients)
            broken += [f"{name}: {violation}" for violation in violations]
    say("\n" + markdown(rows))
    for violation in broken:
        say(violation)
    say(json.dumps({"rows": {name: asdict(row) for name, row in rows.items()}, "broken_promises": broken}))
    sys.exit(1 if broken else 0)


async def _play(settings: GatewayFaultsSettings, scene: GatewayStage, fault: Fault) -> Row:
    ports = [scene.port + at for at in range(fault.gateways)]
    workers = 1 if fault.gateways > 1 else 2
    for port in ports:
        await asyncio.to_thread(_start_gateway, scene, port, fault.flags, workers)
    mix = Mix(EVERYDAY, settings.seed, ADMIN_TOKEN, WAIT_S)
    async with SteadyCalls(ports, mix, settings.clients).running():
        await asyncio.sleep(WARM_UP_S)
    memory, files, _, _ = await _rest(scene)
    elsewhere = await _retries(scene)
    calls = SteadyCalls(ports, mix, settings.clients, fault.leaves)
    async with calls.running():
        await asyncio.sleep(settings.calm_s)
        calls.is_leaving = bool(fault.leaves)
        calls.cut_at = time.monotonic() + CUT_SLACK_S
        await asyncio.to_thread(fault.play, scene, settings.lasts_s)
        calls.is_leaving = False
        await asyncio.sleep(settings.calm_s)
    memory_after, files_after, slots, in_flight = await _rest(scene, files)
    elsewhere = max(0, await _retries(scene) - elsewhere)  # a replaced gateway's counters are gone
    errors = sum(len(scene.complaints(port)) for port in ports)
    for port in ports:
        await asyncio.to_thread(scene.stop_gateway, port)
    counts = calls.counts
    return Row(
        says=fault.says,
        sent=counts.requests,
        ok=counts.outcomes["ok"],
        disconnected=counts.outcomes["left"],
        elsewhere=elsewhere,
        refused=counts.outcomes["refused"],
        broken=counts.outcomes["broken"],
        lost=counts.outcomes["lost"],
        lost_later=counts.lost_later,
        wrong=counts.outcomes["wrong"],
        slots=slots,
        in_flight=in_flight,
        memory_ratio=round(memory_after / memory, 3),
        files=files_after - files,
        logged_errors=errors,
        codes=dict(counts.codes),
    )


async def _retries(scene: GatewayStage) -> int:
    metrics = [await asyncio.to_thread(scene.metrics, port) for port in scene.gateways]
    return round(sum(item["retries_total"] for item in metrics))


async def _rest(scene: GatewayStage, most_files: int | None = None) -> tuple[int, int, int, int]:
    """Return the gateways' memory and open files at rest, and the slots and requests held a second after the load.

    Waits until idle connections have been closed; when `most_files` is given, further until there are no more files.
    """
    await asyncio.sleep(1.0)
    slots = sum(item["held"] for item in (await asyncio.to_thread(scene.slots)).values())
    metrics = [await asyncio.to_thread(scene.metrics, port) for port in scene.gateways]
    in_flight = round(sum(item.get("in_flight", 0.0) for item in metrics))
    await asyncio.sleep(REST_S)
    end = time.monotonic() + IDLE_WITHIN_S
    while True:
        pids = [process.pid for process in scene.gateways.values()]
        files = sum(map(descriptors_of, pids))
        if most_files is None or files <= most_files or time.monotonic() > end:
            return sum(map(memory_of, pids)), files, slots, in_flight
        await asyncio.sleep(0.5)


def markdown(rows: Mapping[str, Row]) -> str:
    """Return the table."""
    heads = ["fault", "sent", "right", "left", "sent elsewhere", "refused before a byte", "ended with an error event"]
    heads += ["lost", "slots held", "memory after over before", "files more"]
    cells = [
        (
            *(
                row.says,
                row.sent,
                row.ok,
                row.disconnected,
                row.elsewhere,
                row.refused,
                row.broken,
                row.lost,
                row.slots,
            ),
            f"{row.memory_ratio:.2f}",
            f"{row.files:+d}",
        )
        for row in rows.values()
    ]
    return "\n".join(table(heads, cells)) + "\n"

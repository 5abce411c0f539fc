"""`specpilot bench alerts`: checks that every alert fires under its fault, or that none fires over a shifting load.

Starts a system of its own, with real engines, Redis, a controller, a gateway and a Prometheus server that has the rules
of `--rules`. With faults: three engines; the rules' durations are divided by `--faster`, and each fault lasts until its
alerts fire. The table has the seconds until each fired, and the other alerts that fired. With `--quiet-s`: one engine,
the rules unchanged, the demo's shifting load for this time; the report has every alert that fired or was pending. The
last line is one JSON object; status 1 if an alert did not fire under its fault, or fired over the quiet load.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.control.alert_faults import EASY, FAULTS, HARD, MODEL, Fault, Scene
from specpilot.bench.control.alert_rules import quickened
from specpilot.bench.control.alert_stage import Prometheus, RedisSocket, prometheus
from specpilot.bench.control.fault_stage import Stage, engines_alone
from specpilot.bench.load.chat_client import ChatClient, Sampling
from specpilot.bench.load.closed_loop import Load
from specpilot.bench.load.trace import TRACES, read_prompts, read_trace
from specpilot.bench.report.markdown import table
from specpilot.bench.report.output import say
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import ProgramSettings, fail, load
from specpilot.policy.text_files import read_text

PROGRAM = "specpilot bench alerts"
RULES = DEMO_MODEL.parent / "prometheus" / "rules" / "specpilot.yml"
LOOK_EVERY_S = 0.5
QUIET_LOOK_EVERY_S = 5.0
QUIETENS_WITHIN_S = 60.0
"""Longest wait between two faults for all alerts to end that the first one began."""
STREAMS = 3
GATEWAY = {
    "SPECPILOT_GATEWAY_ENGINE_CAPACITY": "16",
    "SPECPILOT_GATEWAY_QUEUE_LIMIT": "16",
    "SPECPILOT_GATEWAY_ENGINE_COUNTERS_S": "0",
}
"""Flags of the gateway. The limits make its queues fill. The last one keeps its page of metrics from waiting up to 2 s
for stopped engines, because a scrape has 1 s here (usually 10)."""


class AlertsSettings(ProgramSettings):
    """Check that each alert fires under its fault, or that none fires over a shifting load."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_ALERTS_")

    only: str = Field(default="", description="faults to make, comma separated; default: all")
    faster: float = Field(default=60.0, ge=1, description="factor by which the rules' durations are divided")
    engines: int = Field(default=3, ge=1, le=16, description="engines; with fewer than 3 two faults cannot be played")
    settle_s: float = Field(default=150.0, gt=0, description="seconds of calm load before the first fault")
    quiet_s: float = Field(default=0.0, ge=0, description="no fault: play the demo's load for so many seconds")
    rules: Path = Field(default=RULES, description="the alerts' rule file")
    out: Path = Field(default=Path(".specpilot/bench-alerts"), description="folder for logs")
    port: int = Field(default=8590, ge=1, le=65000, description="first of the ports to use")


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(AlertsSettings, PROGRAM, arguments)
    names = chosen(PROGRAM, "--only", settings.only, FAULTS) or list(FAULTS)
    unfit = [name for name in names if FAULTS[name].least_engines > settings.engines and not settings.quiet_s]
    if unfit:
        fail(PROGRAM, f"--engines: {', '.join(unfit)} need 3 engines or more; leave them out with --only")
    try:
        rules = read_text(settings.rules)
    except OSError as error:
        fail(PROGRAM, f"--rules: {settings.rules} cannot be read: {error.strerror}")
    settings.out.mkdir(parents=True, exist_ok=True)
    if not settings.quiet_s:
        os.environ.update(GATEWAY)
    engines, played = (1, rules) if settings.quiet_s else (settings.engines, quickened(rules, settings.faster))
    with engines_alone(PROGRAM, settings.out, settings.port, engines) as stage:
        stage.start_controller()
        redis = RedisSocket(stage.redis_url)
        targets = {
            "specpilot-engines": [stage.engine_port(number) for number in range(engines)],
            "specpilot": [stage.port, stage.controller_port(0)],
        }
        with prometheus(PROGRAM, settings.out, settings.port + 11, played, targets) as server:
            if settings.quiet_s:
                outcome = asyncio.run(_watch(stage, server, settings.quiet_s))
            else:
                outcome = asyncio.run(_make(settings, stage, server, redis, names))
    wrong = faults_of(outcome)
    say("\n" + (markdown(outcome) if "faults" in outcome else "") + "".join(f"{line}\n" for line in wrong))
    say(json.dumps(outcome))
    sys.exit(1 if wrong else 0)


async def _watch(stage: Stage, server: Prometheus, seconds: float) -> dict[str, Any]:
    """Play the demo's load repeatedly, and sum the seconds in which each alert was active."""
    trace = read_trace(TRACES / "demo.json")
    load_ = Load(f"{stage.gateway_url}/v1", MODEL, read_prompts(DEMO_MODEL / "prompts", trace.prompts))
    began, active_s = time.monotonic(), dict[str, dict[str, float]]()
    try:
        while time.monotonic() - began < seconds:
            for phase in trace.phases:
                await load_.shift_to(phase)
                ends_at = time.monotonic() + phase.seconds
                while (remaining_s := ends_at - time.monotonic()) > 0:
                    for name, state in (await asyncio.to_thread(server.alerts)).items():
                        states = active_s.setdefault(name, {"pending": 0.0, "firing": 0.0})
                        states[state] += min(QUIET_LOOK_EVERY_S, remaining_s)
                    await asyncio.sleep(min(QUIET_LOOK_EVERY_S, remaining_s))
    finally:
        await load_.close()
    faults = await asyncio.to_thread(server.faults)
    watched = round(time.monotonic() - began)
    return {
        "quiet_s": watched,
        "sent": load_.requests,
        "failed": dict(load_.failed),
        "seen_s": active_s,
        "rule_faults": faults,
    }


async def _make(
    settings: AlertsSettings, stage: Stage, server: Prometheus, redis: RedisSocket, names: Sequence[str]
) -> dict[str, Any]:
    prompts = read_prompts(DEMO_MODEL / "prompts", tuple({*EASY.demand, *HARD.demand}))
    load_ = Load(f"{stage.gateway_url}/v1", MODEL, prompts)
    other = Load(f"http://127.0.0.1:{stage.engine_port(settings.engines - 1)}/v1", MODEL, prompts)
    scene = Scene(stage, settings.engines, load_, other, redis, settings.out / "belief")
    streaming = asyncio.create_task(_stream(stage.gateway_url, prompts["json"]))
    outcome: dict[str, Any] = {"faster": settings.faster, "faults": {}}
    try:
        await load_.shift_to(EASY)
        outcome["calm"] = await _calm(server, settings.settle_s)
        for name in names:
            say(f"{name}: {FAULTS[name].says}")
            outcome["faults"][name] = await _hold(scene, server, FAULTS[name])
            say(f"  {json.dumps(outcome['faults'][name])}")
    finally:
        streaming.cancel()
        with suppress(asyncio.CancelledError):
            await streaming
        await load_.close()
        await other.close()
    outcome["rule_faults"] = await asyncio.to_thread(server.faults)
    return outcome


async def _calm(server: Prometheus, seconds: float) -> list[str]:
    """Wait without a fault; return the alerts that fired in the second half."""
    say(f"{seconds:.0f} s of calm load")
    fired: set[str] = set()
    await asyncio.sleep(seconds / 2)
    ends_at = time.monotonic() + seconds / 2
    while time.monotonic() < ends_at:
        fired |= _firing(await asyncio.to_thread(server.alerts))
        await asyncio.sleep(LOOK_EVERY_S)
    return sorted(fired)


async def _hold(scene: Scene, server: Prometheus, fault: Fault) -> dict[str, Any]:
    """Inject `fault` and wait for its alerts; return the seconds until each fired, and until none was active again."""
    before = _firing(await asyncio.to_thread(server.alerts))
    fired: dict[str, float] = {}
    began = time.monotonic()
    async with fault.make(scene):
        made = time.monotonic()
        while not set(fault.alerts) <= fired.keys() and time.monotonic() - made < fault.within_s:
            for name in _firing(await asyncio.to_thread(server.alerts)) - before:
                fired.setdefault(name, round(time.monotonic() - began, 1))
            await asyncio.sleep(LOOK_EVERY_S)
    mended = time.monotonic()
    alerts = {*fault.alerts}
    while alerts and time.monotonic() - mended < QUIETENS_WITHIN_S:
        await asyncio.sleep(LOOK_EVERY_S)
        alerts = _firing(await asyncio.to_thread(server.alerts)) - before
    return {
        "says": fault.says,
        "fired_after_s": {name: fired.get(name) for name in fault.alerts},
        "also_fired_after_s": {name: after for name, after in fired.items() if name not in fault.alerts},
        "quiet_again_after_s": None if alerts else round(time.monotonic() - mended, 1),
    }


async def _stream(url: str, prompts: Sequence[Mapping[str, Any]]) -> None:
    """Keep some streams in flight: only streams have inter-token latencies."""

    async def ask(client: ChatClient, seed: int) -> None:
        while True:
            await client.ask(prompts[seed % len(prompts)]["messages"], 96, seed)
            seed += STREAMS
            await asyncio.sleep(0.05)

    async with ChatClient(url, MODEL, Sampling()) as client:
        await asyncio.gather(*(ask(client, seed) for seed in range(STREAMS)))


def _firing(states: Mapping[str, str]) -> set[str]:
    return {name for name, state in states.items() if state == "firing"}


def markdown(outcome: Mapping[str, Any]) -> str:
    """Return the table of the alerts that fired under each fault."""
    rows = [
        (f"`{alert}`", fault["says"], "never" if after is None else f"{after:.0f} s")
        for fault in outcome["faults"].values()
        for alert, after in fault["fired_after_s"].items()
    ]
    heads = ("alert", "fault", f"fires after, durations {outcome['faster']:g} times as short")
    return "\n".join(table(heads, rows)) + "\n"


def faults_of(outcome: Mapping[str, Any]) -> list[str]:
    """Return the failed expectations as texts."""
    wrong = [f"rule {fault}" for fault in outcome["rule_faults"]]
    wrong += [f"{name} fired in the calm" for name in outcome.get("calm", ())]
    wrong += [
        f"{name} fired over the quiet load" for name, states in outcome.get("seen_s", {}).items() if states["firing"]
    ]
    for name, fault in outcome.get("faults", {}).items():
        wrong += [
            f"{alert} did not fire under {name}" for alert, after in fault["fired_after_s"].items() if after is None
        ]
    return wrong

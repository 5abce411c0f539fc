"""`specpilot bench faults`: effects on clients while a part of the running system fails. Real engines, a real Redis.

Starts a system of its own with two engines and keeps a mixed load on it. Each fault has a calm stretch before it, in
which K settles, the stretch of the fault, and one after its end. Counted are requests sent and failed, tokens that
clients received, and every K of the running classes on an engine that did not fail. A table, then one JSON object as
the last line.

The faults: Redis frozen; the controller killed, later started again; a stand-by that takes over from a killed leader;
the metrics of one engine of two unreadable; one engine of two killed, which its supervisor restarts; the controller's
wall clock stepped by an hour, forth and back.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.chosen import chosen
from specpilot.bench.control.fault_stage import Stage, engines_alone
from specpilot.bench.load.closed_loop import Load
from specpilot.bench.load.trace import LoadPhase, read_prompts
from specpilot.bench.report.markdown import table
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot bench faults"
DEMAND = {"json": 6, "code": 6}
READ_EVERY_S = 0.25
STEP_S = 3600
STAND_BY_S = 3.0
LEADS_WITHIN_S = 30.0


class FaultsSettings(ProgramSettings):
    """Break one part after the other under load, and count the effects on clients."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_BENCH_FAULTS_")

    only: str = Field(default="", description="faults to play, comma separated; default: all")
    lasts_s: float = Field(default=20.0, gt=0, description="seconds that a fault holds")
    calm_s: float = Field(default=10.0, gt=0, description="seconds before and after it")
    prompts: Path = Field(
        default=DEMO_MODEL / "prompts",
        description="folder with <class>.jsonl",
    )
    out: Path = Field(default=Path(".specpilot/bench-faults"), description="folder for logs")
    port: int = Field(default=8490, ge=1, le=65000, description="first of the ports to use")


@dataclass(slots=True)
class Stretch:
    """The counts of one stretch; `k` lists every K by class, in order."""

    seconds: float = 0.0
    tokens: int = 0
    k: list[dict[str, float]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Tokens per second that clients received."""
        return self.tokens / self.seconds


Change = Callable[[Stage], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: functions that begin and end it; both return figures of their own, mostly seconds."""

    says: str
    begin: Change
    mend: Change


def _nothing(_stage: Stage) -> dict[str, float]:
    return {}


def _freeze_redis(stage: Stage) -> dict[str, float]:
    stage.redis.send_signal(signal.SIGSTOP)
    return {}


def _thaw_redis(stage: Stage) -> dict[str, float]:
    stage.redis.send_signal(signal.SIGCONT)
    return {}


def _kill_controller(stage: Stage) -> dict[str, float]:
    stage.kill_controller()
    return {}


def _start_controller(stage: Stage) -> dict[str, float]:
    stage.start_controller()
    return {}


def _take_over(stage: Stage) -> dict[str, float]:
    stage.start_controller(1)
    time.sleep(STAND_BY_S)
    killed_at = time.monotonic()
    stage.kill_controller(0)
    while not stage.leads(1):
        if time.monotonic() - killed_at > LEADS_WITHIN_S:
            fail(PROGRAM, f"no controller took over within {LEADS_WITHIN_S:.0f} s")
        time.sleep(0.1)
    return {"take_over_s": time.monotonic() - killed_at}


def _lead_again(stage: Stage) -> dict[str, float]:
    stage.start_controller(0)
    stage.kill_controller(1)
    return {}


def _hide_metrics(stage: Stage) -> dict[str, float]:
    stage.hide_metrics(1)
    return {}


def _show_metrics(stage: Stage) -> dict[str, float]:
    stage.show_metrics(1)
    return {}


def _kill_engine(stage: Stage) -> dict[str, float]:
    stage.kill_engine(1)
    return {}


def _await_engine(stage: Stage) -> dict[str, float]:
    began = time.monotonic()
    stage.await_engine(1)
    return {"further_s_until_the_engine_is_back": time.monotonic() - began}


def _step_clock(stage: Stage) -> dict[str, float]:
    stage.clock.step(STEP_S)
    return {}


def _step_clock_back(stage: Stage) -> dict[str, float]:
    stage.clock.step(-STEP_S)
    return {}


FAULTS: Mapping[str, Fault] = {
    "none": Fault("nothing, to compare with", _nothing, _nothing),
    "redis-frozen": Fault("Redis frozen", _freeze_redis, _thaw_redis),
    "controller-killed": Fault("controller killed, then started again", _kill_controller, _start_controller),
    "take-over": Fault("two controllers, the leader killed", _take_over, _lead_again),
    "scrape-failing": Fault("metrics of one engine of two unreadable", _hide_metrics, _show_metrics),
    "engine-killed": Fault("one engine of two killed, restarted by its supervisor", _kill_engine, _await_engine),
    "clock-stepped": Fault("the controller's clock an hour ahead, then an hour behind", _step_clock, _step_clock_back),
}


def main(arguments: Sequence[str]) -> None:
    """Run it; the last line is one JSON object."""
    settings = load(FaultsSettings, PROGRAM, arguments)
    names = chosen(PROGRAM, "--only", settings.only, FAULTS) or list(FAULTS)
    settings.out.mkdir(parents=True, exist_ok=True)
    with engines_alone(PROGRAM, settings.out, settings.port) as stage:
        outcome = asyncio.run(_play(settings, stage, names))
    sys.stdout.write("\n" + markdown(outcome) + "\n" + json.dumps(outcome) + "\n")


async def _play(settings: FaultsSettings, stage: Stage, names: Sequence[str]) -> dict[str, Any]:
    load_ = Load(f"{stage.gateway_url}/v1", "demo", read_prompts(settings.prompts, tuple(DEMAND)))
    outcome: dict[str, Any] = {}
    try:
        await load_.shift_to(LoadPhase("mixed", 1.0, DEMAND))
        await asyncio.to_thread(stage.start_controller)
        sys.stdout.write("K settles\n")
        await _watch(stage, load_, 2 * settings.calm_s)
        for name in names:
            fault = FAULTS[name]
            sys.stdout.write(f"{name}: {fault.says}\n")
            sys.stdout.flush()
            requests_before, failed_before = load_.requests, load_.failed.total()
            before = await _watch(stage, load_, settings.calm_s)
            figures = await asyncio.to_thread(fault.begin, stage)
            during = await _watch(stage, load_, settings.lasts_s)
            figures |= await asyncio.to_thread(fault.mend, stage)
            after = await _watch(stage, load_, settings.calm_s)
            outcome[name] = {
                "says": fault.says,
                "sent": load_.requests - requests_before,
                "failed": load_.failed.total() - failed_before,
                "during_over_before": round(during.rate / before.rate, 3),
                "after_over_before": round(after.rate / before.rate, 3),
                "k_before": before.k,
                "k_during": during.k,
                "k_after": after.k,
                **{figure: round(value, 2) for figure, value in figures.items()},
            }
            sys.stdout.write(f"  {json.dumps(outcome[name])}\n")
            sys.stdout.flush()
    finally:
        await load_.close()
    return outcome


async def _watch(stage: Stage, load_: Load, seconds: float) -> Stretch:
    stretch = Stretch()
    began, tokens = time.monotonic(), load_.tokens
    while (elapsed := time.monotonic() - began) < seconds:
        k = await asyncio.to_thread(stage.k, DEMAND)
        if k is not None and (not stretch.k or stretch.k[-1] != k):
            stretch.k.append(k)
        await asyncio.sleep(min(READ_EVERY_S, seconds - elapsed))
    stretch.seconds = time.monotonic() - began
    stretch.tokens = load_.tokens - tokens
    return stretch


def markdown(outcome: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table."""

    def shown(stretch: Sequence[Mapping[str, int]]) -> str:
        return ", ".join("/".join(str(k[name]) for name in DEMAND) for k in stretch)

    rows = [
        (
            *(row["says"], row["sent"], row["failed"]),
            f"{row['during_over_before']:.2f}, {row['after_over_before']:.2f}",
            "; ".join(shown(row[f"k_{stretch}"]) for stretch in ("before", "during", "after")),
        )
        for row in outcome.values()
    ]
    k = f"K of {'/'.join(DEMAND)} before; during; after"
    return "\n".join(table(("fault", "sent", "failed", "tokens during and after, over before", k), rows)) + "\n"

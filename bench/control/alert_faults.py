"""The fault behind each alert, injected into a running system and removed again.

A fault is an async context: entering injects it, leaving removes it. It causes the real condition, not the metric: a
part is stopped, slowed or starved, traffic changes, Redis gets less memory. Errors of a controller that no outside
condition can cause come from `false_controller`.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request

from specpilot.bench.control import false_controller
from specpilot.bench.control.alert_stage import RedisSocket
from specpilot.bench.control.fault_stage import Stage
from specpilot.bench.load.closed_loop import Load
from specpilot.bench.load.system import System
from specpilot.bench.load.trace import LoadPhase
from specpilot.policy.http_client import open_url

MODEL = "demo"
EASY = LoadPhase("predictable", 1.0, {"json": 9})
HARD = LoadPhase("unpredictable", 1.0, {"chat": 12}, temperature=1.5)
CROWD = LoadPhase("crowd", 1.0, {"json": 120})
ERRING = ("specpilot.bench.control.false_controller",)


@dataclass(frozen=True, slots=True)
class Scene:
    """The running system and its load. `belief` is the file that `false_controller` reads."""

    stage: Stage
    engines: int
    load: Load
    other_load: Load
    redis: RedisSocket
    belief: Path

    def system(self) -> System:
        """Return the system's admin API."""
        return System(self.stage.gateway_url, f"http://127.0.0.1:{self.stage.controller_port(0)}", None)


Making = Callable[[Scene], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, the alerts that must fire during it, the seconds that they may take, and the engines that it needs."""

    says: str
    make: Making
    alerts: tuple[str, ...]
    within_s: float = 60.0
    least_engines: int = 1


def _admin(scene: Scene, method: str, path: str) -> None:
    url = f"http://127.0.0.1:{scene.stage.controller_port(0)}{path}"
    with open_url(Request(url, method=method), timeout=10.0):
        pass


@asynccontextmanager
async def _frozen(scene: Scene) -> AsyncIterator[None]:
    await asyncio.to_thread(_admin, scene, "PUT", f"/admin/freezes/{MODEL}")
    yield
    await asyncio.to_thread(_admin, scene, "DELETE", f"/admin/freezes/{MODEL}")


@asynccontextmanager
async def _redis_full(scene: Scene) -> AsyncIterator[None]:
    before = await asyncio.to_thread(scene.redis.memory)
    await asyncio.to_thread(scene.redis.limit, round(before["used_memory"] / 0.9))
    yield
    await asyncio.to_thread(scene.redis.limit, before["maxmemory"])


@asynccontextmanager
async def _redis_silent(scene: Scene) -> AsyncIterator[None]:
    scene.stage.redis.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        scene.stage.redis.send_signal(signal.SIGCONT)


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` until the block ends, then cancel it and wait for its end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def _stumbling(scene: Scene, engines: Iterable[int], stopped_s: float, running_s: float) -> AsyncIterator[None]:
    """Stop and continue the processes of `engines` repeatedly, like another load on their cores."""
    groups = set().union(*(scene.stage.groups(number) for number in engines))

    def send(number: int) -> None:
        for group in groups:
            os.killpg(group, number)

    async def stumble() -> None:
        try:
            while True:
                send(signal.SIGSTOP)
                await asyncio.sleep(stopped_s)
                send(signal.SIGCONT)
                await asyncio.sleep(running_s)
        finally:
            send(signal.SIGCONT)

    async with _beside(stumble()):
        yield


def _one_slow(scene: Scene) -> AbstractAsyncContextManager[None]:
    return _stumbling(scene, [scene.engines - 1], 0.3, 0.1)


def _all_slow(scene: Scene) -> AbstractAsyncContextManager[None]:
    return _stumbling(scene, range(scene.engines), 1.5, 0.5)


@asynccontextmanager
async def _one_gets_other_traffic(scene: Scene) -> AsyncIterator[None]:
    await scene.other_load.shift_to(HARD)
    try:
        yield
    finally:
        await scene.other_load.pause()


@asynccontextmanager
async def _traffic(scene: Scene, phase: LoadPhase) -> AsyncIterator[None]:
    await scene.load.shift_to(phase)
    try:
        yield
    finally:
        await scene.load.shift_to(EASY)


@asynccontextmanager
async def _metrics_hidden(scene: Scene) -> AsyncIterator[None]:
    scene.stage.hide_metrics(scene.engines - 1)
    try:
        yield
    finally:
        scene.stage.show_metrics(scene.engines - 1)


@asynccontextmanager
async def _erring(scene: Scene, state: str) -> AsyncIterator[None]:
    """Let a controller lead that errs as `state` says; the traffic makes deep drafts lose."""
    before = await asyncio.to_thread(scene.system().policy, MODEL)
    often = {**before, "static_k": 0, "control_group_ratio": 0.4}
    await asyncio.to_thread(scene.system().put_policy, often)
    await asyncio.to_thread(scene.stage.kill_controller)
    scene.belief.write_text(state)
    try:
        await asyncio.to_thread(scene.stage.start_controller, 0, (*ERRING, str(scene.belief)))
        async with _traffic(scene, HARD):
            yield
    finally:
        scene.belief.write_text("")
        await asyncio.to_thread(scene.stage.kill_controller)
        await asyncio.to_thread(scene.stage.start_controller)
        await asyncio.to_thread(scene.system().put_policy, before)


@asynccontextmanager
async def _without_controller(scene: Scene) -> AsyncIterator[None]:
    await asyncio.to_thread(scene.stage.kill_controller)
    try:
        yield
    finally:
        await asyncio.to_thread(scene.stage.start_controller)


@asynccontextmanager
async def _without_engines(scene: Scene) -> AsyncIterator[None]:
    """Kill every engine, again when its supervisor has brought it back."""

    async def kill() -> None:
        while True:
            for number in range(scene.engines):
                with suppress(ProcessLookupError):
                    scene.stage.kill_engine(number)
            await asyncio.sleep(1.0)

    async with _beside(kill()):
        yield


FAULTS: Mapping[str, Fault] = {
    "frozen": Fault("an operator froze the model and forgot it", _frozen, ("SpecPilotFrozenForLong",)),
    "hard-traffic": Fault(
        "all traffic becomes hard to draft", lambda scene: _traffic(scene, HARD), ("SpecPilotAcceptanceFell",), 120.0
    ),
    "redis-full": Fault("Redis given little more memory than it uses", _redis_full, ("SpecPilotRedisMemory",)),
    "redis-silent": Fault("Redis stopped", _redis_silent, ("SpecPilotRedisGone",)),
    "engine-slow": Fault(
        "one engine of three stopped three quarters of the time", _one_slow, ("SpecPilotEngineSlow",), least_engines=3
    ),
    "other-traffic": Fault(
        "one engine of three is sent traffic that is hard to draft", _one_gets_other_traffic,
        ("SpecPilotEngineAcceptsLess",), least_engines=3,
    ),
    "metrics-hidden": Fault("the metrics of one engine unreadable", _metrics_hidden, ("SpecPilotEngineNotScraped",)),
    "false-counters": Fault(
        "engines seem to accept everything; the law may not fall back",
        lambda scene: _erring(scene, false_controller.INSISTS),
        ("SpecPilotAdaptiveLosesToStatic",), 300.0,
    ),
    "false-counters-guarded": Fault(
        "the same, and the law falls back",
        lambda scene: _erring(scene, false_controller.BELIEVES), ("SpecPilotStaticBetter",), 300.0,
    ),
    "ticks-fail": Fault(
        "every decision meets an error", lambda scene: _erring(scene, false_controller.FAILS), ("SpecPilotTicksFail",)
    ),
    "no-controller": Fault(
        "the only controller killed", _without_controller,
        ("SpecPilotNoLeader", "SpecPilotSchedulesStale", "SpecPilotPartDown"), 90.0,
    ),
    "engines-stumble": Fault(
        "all engines stopped for 1.5 s, repeatedly", _all_slow, ("SpecPilotGatewaySlow",), 90.0
    ),
    "crowd": Fault(
        "more requests than engines and queues have room for", lambda scene: _traffic(scene, CROWD),
        ("SpecPilotGatewayQueue",), 90.0,
    ),
    "no-engine": Fault("every engine killed", _without_engines, ("SpecPilotGatewayErrors",), 90.0),
}  # fmt: skip
"""In order: the system takes long to recover from the last one."""

"""Draining at SIGTERM in an engine's API server: the real signal on a real event loop, with a stub of the core."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI

from specpilot.engine_adapter.agent import core_methods
from specpilot.engine_adapter.agent.draining import Draining
from tests.support.patience import PATIENCE_S


class Core:
    """Records its calls, and answers each check with the next of `running`, the last one for ever."""

    def __init__(self, *running: Any) -> None:
        self.running = list(running)
        self.asked_at: list[float] = []

    async def begin(self) -> Any:
        self.asked_at.append(time.monotonic())
        if self.running[0] == "hung":
            await asyncio.Event().wait()
        if self.running[0] == "dead":
            raise RuntimeError("the engine core is dead")
        return self.running.pop(0) if len(self.running) > 1 else self.running[0]


@pytest.fixture
async def stopped() -> AsyncIterator[asyncio.Event]:
    """Set by SIGINT, which is how vLLM's own shutdown is reached."""
    found = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, found.set)
    yield found
    loop.remove_signal_handler(signal.SIGINT)
    loop.remove_signal_handler(signal.SIGTERM)


async def seconds_to_stop(
    core: Core, stopped: asyncio.Event, grace_s: float, timeout_s: float, signals: int = 1
) -> float:
    app = FastAPI()
    Draining(core.begin, grace_s, timeout_s).attach(app)
    async with app.router.lifespan_context(app):
        began = time.monotonic()
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
        async with asyncio.timeout(PATIENCE_S):
            await stopped.wait()
        return time.monotonic() - began


async def test_sigterm_marks_the_record_at_once_waits_for_gateways_and_then_for_running_requests(
    stopped: asyncio.Event,
) -> None:
    core = Core(True, True, False, True, False)
    took_s = await seconds_to_stop(core, stopped, grace_s=0.3, timeout_s=600.0)
    assert core.asked_at[1] - core.asked_at[0] >= 0.3
    assert len(core.asked_at) == 6  # idle, busy again, idle twice in a row
    assert took_s >= 0.3 + 5 * 0.25


@pytest.mark.parametrize("running", [True, "hung"])
async def test_what_runs_too_long_or_hangs_is_left_to_vllm(running: object, stopped: asyncio.Event) -> None:
    assert await seconds_to_stop(Core(running), stopped, grace_s=0.1, timeout_s=0.5) >= 0.6


async def test_a_second_sigterm_stops_at_once(stopped: asyncio.Event) -> None:
    await seconds_to_stop(Core(True), stopped, grace_s=600.0, timeout_s=600.0, signals=2)


@pytest.mark.parametrize("running", ["dead", None])
async def test_an_engine_that_is_dead_or_has_no_adapter_stops_at_once(
    running: str | None, stopped: asyncio.Event
) -> None:
    await seconds_to_stop(Core(running), stopped, grace_s=600.0, timeout_s=600.0)


def test_the_core_is_marked_and_returns_whether_requests_run() -> None:
    begun: list[bool] = []
    scheduler = SimpleNamespace(begin_drain=lambda: begun.append(True), has_unfinished_requests=lambda: len(begun) < 2)
    core = SimpleNamespace(scheduler=scheduler)
    assert [core_methods.drain(core), core_methods.drain(core)] == ["true", "false"]
    assert core_methods.drain(SimpleNamespace(scheduler=object())) == "null"

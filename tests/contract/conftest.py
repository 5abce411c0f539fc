"""Gateways and scripted engines, started on demand and gone after each test."""

import gc
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from specpilot.gateway.process import background
from tests.support.gateway_server import GatewayProgram, GatewayThread, eventually, running_gateway
from tests.support.gateway_workers import lines
from tests.support.hand_clock import Clock
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine

StartGateway = Callable[..., Awaitable[GatewayThread]]
StartProgram = Callable[..., Awaitable[GatewayProgram]]


@pytest.fixture(autouse=True)
def whole_first_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a gateway that a test starts in this process know its engines before it serves, however slow the machine."""
    monkeypatch.setattr(background, "FIRST_PROBE_S", 10.0)


@pytest.fixture
def clock() -> Clock:
    """For a gateway whose time the test moves."""
    return Clock()


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as started:
        yield started


@pytest.fixture
async def other_engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine() as started:
        yield started


@pytest.fixture
async def two_models() -> AsyncIterator[ScriptedEngine]:
    """An engine that serves `tiny` and `other`."""
    async with ScriptedEngine(models=("tiny", "other")) as started:
        yield started


@pytest.fixture(scope="session")
def leaving() -> Iterator[list[GatewayThread]]:
    """Gateways that stop while the next tests run; each takes a fifth of a second."""
    gateways: list[GatewayThread] = []
    yield gateways
    for gateway in gateways:
        gateway.join()


@pytest.fixture
async def start_gateway(leaving: list[GatewayThread], tmp_path: Path) -> AsyncIterator[StartGateway]:
    """`keys` are written to the API keys file."""
    running: list[GatewayThread] = []

    async def start(
        *engines: ScriptedEngine, keys: list[dict[str, Any]] | None = None, **settings: Any
    ) -> GatewayThread:
        if keys is not None:
            path = tmp_path / "keys.json"
            path.write_text(json.dumps(keys))
            settings["api_keys_file"] = str(path)
        gateway = GatewayThread(**{"engine": tuple(engine.url for engine in engines), "show_engine": True, **settings})
        running.append(gateway)
        return await gateway.start()

    yield start
    for gateway in running:
        gateway.leave()
    leaving += running


@pytest.fixture
async def gateway(engine: ScriptedEngine, start_gateway: StartGateway) -> GatewayThread:
    """One with the default settings, in front of `engine`."""
    return await start_gateway(engine)


@pytest.fixture
def empty_heap() -> Iterator[None]:
    """Keep what was made before the test out of `gc.get_objects`: reading the heap of a long run takes seconds."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def full_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server that accepts nothing and whose queue is full: connecting to it hangs."""
    monkeypatch.setattr(background, "FIRST_PROBE_S", 0.1)  # the first probe finds out nothing
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as listener,
        socket.create_connection(listener.getsockname()),
    ):
        yield listener.getsockname()[1]


@pytest.fixture
async def start_program(engine: ScriptedEngine) -> AsyncIterator[StartProgram]:
    """As users start it, in front of `engine`."""
    async with AsyncExitStack() as stack:

        async def start(*flags: str) -> GatewayProgram:
            return await stack.enter_async_context(running_gateway("--engine", engine.url, *flags))

        yield start


@pytest.fixture
def start_workers(start_program: StartProgram) -> StartProgram:
    """With two of them, which serve."""

    async def start(*flags: str) -> GatewayProgram:
        program = await start_program("--workers", "2", *flags)
        await eventually(lambda: len(lines(program, "serves")) == 2)
        return program

    return start


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server

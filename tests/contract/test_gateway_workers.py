"""Several workers on one port under load: real processes, their sums, deaths, replacements and logs."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable

from prometheus_client.parser import text_string_to_metric_families

from tests.contract.conftest import StartProgram
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.gateway_workers import children, is_alive, lines, worker_of
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, stream

PREFIX = "specpilot_gateway_"


async def metrics(program: GatewayProgram) -> dict[str, float]:
    """Each metric, summed over its labels."""
    text = (await call(program.port, request(path="/metrics", method="GET"))).body.decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(PREFIX)
            found[name] = found.get(name, 0.0) + sample.value
    return found


async def until(program: GatewayProgram, name: str, value: float) -> None:
    """Wait until the sum is `value`; it must not pass it, nor fall on the way."""
    last = 0.0
    async with asyncio.timeout(PATIENCE_S):
        while last != value:
            found = (await metrics(program)).get(name, 0.0)
            assert last <= found <= value, name
            last = found


class Load:
    """Clients that call for as long as they are let, and what became of their requests."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answered = 0
        self.broken = 0
        self.workers: set[str] = set()
        self._is_over = False

    async def call_anew(self) -> None:
        """A connection a request."""
        while not self._is_over:
            await self._on_signal(call(self.port))
            await asyncio.sleep(0.01)

    async def call_on_kept(self) -> None:
        """One connection for as long as the gateway keeps it."""
        while not self._is_over:
            try:
                connected = await Client.connect(self.port)
            except ConnectionResetError:  # it waited to be accepted by a worker that was killed
                self.broken += 1
                continue
            async with connected as client:
                is_kept = True
                while is_kept and not self._is_over:
                    client.send(request())
                    is_kept = await self._on_signal(client.answer())
                    await asyncio.sleep(0.01)

    async def _on_signal(self, calling: Awaitable[object]) -> bool:
        try:
            answer = await calling
        except (ConnectionError, asyncio.IncompleteReadError):
            self.broken += 1
            return False
        assert answer.status == 200  # type: ignore[attr-defined]
        assert answer.is_whole  # type: ignore[attr-defined]
        self.answered += 1
        self.workers.add(worker_of(answer.headers["x-request-id"]))  # type: ignore[attr-defined]
        return answer.headers.get("connection") != "close"  # type: ignore[attr-defined]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(self.call_anew())
                group.create_task(self.call_on_kept())
            try:
                yield
            finally:
                self._is_over = True


async def test_the_sums_and_the_access_log_of_all_workers_are_what_was_sent(
    engine: ScriptedEngine, start_workers: StartProgram
) -> None:
    program = await start_workers()
    engine.choose = lambda seen: stream("a", "b") if seen.json.get("stream") else engine.script
    workers: set[str] = set()

    async def work(at: int) -> None:
        async with await Client.connect(program.port) as client:
            for turn in range(6):
                client.send(request(STREAM if (at + turn) % 2 else None))
                answer = await client.answer()
                assert answer.status == 200
                workers.add(worker_of(answer.headers["x-request-id"]))

    await asyncio.gather(*(work(at) for at in range(40)))
    assert len(workers) == 2  # the kernel spreads 40 connections; all on one is as likely as 40 equal coins
    await until(program, "requests_total", 240)
    found = await metrics(program)
    assert found["request_duration_seconds_count"] == 240
    assert found["ttft_seconds_count"] == 120
    assert found["output_tokens_total"] == 120 * 2 + 120 * 3
    assert found["in_flight"] == 0
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0
    logged = [line for line in program.errors if line.startswith("{")]
    assert sum('"path":"/v1/chat/completions"' in line and line.endswith("}\n") for line in logged) == 240


async def test_a_killed_worker_is_replaced_and_no_counter_goes_backwards(
    engine: ScriptedEngine, start_workers: StartProgram
) -> None:
    program = await start_workers()
    load = Load(program.port)
    scraped: list[float] = []
    async with load.running():
        await eventually(lambda: load.answered > 100 and len(load.workers) == 2)
        victim, other = children(program)
        os.kill(victim, signal.SIGKILL)
        answered = load.answered
        while not lines(program, "worker 3 serves") or load.answered < answered + 100:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                scraped.append((await metrics(program))["requests_total"])
        await eventually(lambda: len(load.workers) == 3)
    assert scraped == sorted(scraped)
    assert lines(program, "ended with status -9")
    assert is_alive(other)
    assert load.broken <= 12  # what was on the victim's connections; nobody is refused
    await asyncio.sleep(0)
    last = (await metrics(program))["requests_total"]
    assert last >= scraped[-1]
    process = program.process
    process.send_signal(signal.SIGTERM)
    assert await program.end() == 0


async def test_reload_refuses_and_loses_nothing(engine: ScriptedEngine, start_workers: StartProgram) -> None:
    program = await start_workers()
    before = children(program)
    load = Load(program.port)
    async with load.running():
        await eventually(lambda: load.answered > 50)
        program.process.send_signal(signal.SIGHUP)
        await eventually(lambda: len(lines(program, "has left")) == 2)
        after = children(program)
    assert load.broken == 0
    assert len(after) == 2
    assert not set(before) & set(after)
    await until(program, "requests_total", load.answered)


async def test_metrics_do_not_wait_for_a_parent_that_is_stopped(start_workers: StartProgram) -> None:
    program = await start_workers()
    program.process.send_signal(signal.SIGSTOP)
    try:
        async with asyncio.timeout(PATIENCE_S):
            stopped = await call(program.port, request(path="/metrics", method="GET"))
        served = await call(program.port)
    finally:
        program.process.send_signal(signal.SIGCONT)
    assert (stopped.status, stopped.code, served.status) == (500, "internal_error", 200)
    assert (await call(program.port, request(path="/metrics", method="GET"))).status == 200

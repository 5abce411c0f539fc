"""Requests that wait for an engine with room: order, bounds, leaving, engines that come and go, the gateway's end."""

import asyncio
import gc
import re
import signal
from contextlib import AsyncExitStack

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy.model_policy import ClassPolicy, Policy, VersionedPolicy
from tests.contract.conftest import StartGateway, StartProgram
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayProgram, GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    CLOSE,
    HANG,
    RESET,
    Script,
    ScriptedEngine,
    Seen,
    completion,
    reply,
)


class Gates:
    """Engines that answer each request when its gate is opened, in the order in which the requests came."""

    def __init__(self, *engines: ScriptedEngine) -> None:
        self._gates: list[asyncio.Event] = []
        for engine in engines:
            engine.choose = self._play

    def _play(self, _: Seen) -> Script:
        self._gates.append(asyncio.Event())
        return [self._gates[-1], reply(completion())]

    @property
    def under_way(self) -> int:
        return sum(not gate.is_set() for gate in self._gates)

    async def until_seen(self, count: int) -> None:
        await eventually(lambda: len(self._gates) >= count)

    async def open(self, first: int, last: int) -> None:
        """Answer these requests, when they have come."""
        for at in range(first, last):
            await self.until_seen(at + 1)
            self._gates[at].set()


def of_class(name: str) -> bytes:
    return request(headers=f"x-traffic-class: {name}\r\n")


async def set_policy(gateway: GatewayThread, **classes: ClassPolicy) -> None:
    policy = VersionedPolicy(1, 1.0, Policy("tiny", classes=classes))
    await gateway.adopt(Snapshot(policies={"tiny": policy}))


def queued(gateway: GatewayThread) -> int:
    cells = gateway.context.metrics.cells.values()
    return sum(cell.queued for cell in cells)


async def test_a_session_whose_home_is_full_counts_as_spilled(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gates = Gates(engine, other_engine)
    gateway = await start_gateway(engine, other_engine, engine_capacity=1)
    of_session = request(headers="x-session-id: s\r\n")
    calls = [asyncio.create_task(call(gateway.port, of_session)) for _ in range(2)]
    await gates.until_seen(2)
    await gates.open(0, 2)
    answers = await asyncio.gather(*calls)
    assert len({answer.headers["x-specpilot-engine"] for answer in answers}) == 2
    counts = gateway.context.fleet.chooser.counts
    assert {rule: count for rule, count in counts.items() if count} == {"session": 1, "session_spilled": 1}


async def test_requests_beyond_the_capacity_wait_and_say_for_how_long(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    gates = Gates(engine)
    gateway = await start_gateway(engine, clock=clock, engine_capacity=2)
    calls = [asyncio.create_task(call(gateway.port)) for _ in range(5)]
    await gates.until_seen(2)
    await eventually(lambda: queued(gateway) == 3)
    for first, last in ((0, 2), (2, 4), (4, 5)):
        await gates.until_seen(last)
        clock.at += 0.3
        await gates.open(first, last)
    answers = await asyncio.gather(*calls)
    assert [answer.status for answer in answers] == [200] * 5
    waits = sorted(float(answer.headers.get("x-specpilot-queue-ms", 0)) for answer in answers)
    assert waits == pytest.approx([0, 0, 300, 300, 600])
    # What was waited for is not the gateway's overhead.
    assert {float(answer.headers["x-specpilot-overhead-ms"]) for answer in answers} == {0.0}
    cell = gateway.context.metrics.cells["tiny", "default"]
    await eventually(lambda: (sum(cell.queue.counts), cell.queued, cell.in_flight) == (3, 0, 0))
    [one] = gateway.context.fleet.engines.values()
    await eventually(lambda: one.outstanding_requests == 0)
    await eventually(lambda: len(gateway.log_lines()) == 5)
    assert len([line for line in gateway.log_lines() if line["queue_ms"]]) == 3


@pytest.mark.usefixtures("empty_heap")
async def test_who_waits_is_chosen_for_by_the_same_session_and_sent_whole(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gates = Gates(engine, other_engine)
    gateway = await start_gateway(engine, other_engine, engine_capacity=1)
    body = {"model": "tiny", "user": "u", "x-marked": [1], "prompt": "x" * 100_000}
    calls = [asyncio.create_task(call(gateway.port, request(body))) for _ in range(3)]
    await eventually(lambda: queued(gateway) == 1)
    # A line can be long and a parsed body many times its bytes.
    marked = [item for item in gc.get_objects() if type(item) is dict and "x-marked" in item and "model" in item]
    assert [item for item in marked if item is not body] == []
    await gates.open(0, 3)
    for answer in await asyncio.gather(*calls):
        assert answer.status == 200
    assert sum(gateway.context.fleet.chooser.counts[rule] for rule in ("session", "session_spilled")) == 3
    for seen in (*engine.seen, *other_engine.seen):
        assert seen.json == body


async def test_what_an_engine_allows_less_waits_by_priority(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gates = Gates(engine)
    gateway = await start_gateway(engine, engine_capacity=8)
    await set_policy(gateway, urgent=ClassPolicy(priority=1))
    [found] = gateway.context.fleet.engines.values()
    found.running_limit = 1  # as its record has it
    async with AsyncExitStack() as stack:
        clients = []
        for name in ("default", "default", "urgent"):
            clients.append(await stack.enter_async_context(await Client.connect(gateway.port)))
            clients[-1].send(of_class(name))
            await eventually(lambda: len(engine.seen) + queued(gateway) == len(clients))
        for at in range(3):
            assert gates.under_way <= 1
            await gates.open(at, at + 1)
        assert {(await client.answer()).status for client in clients} == {200}
    assert [seen.headers["x-traffic-class"] for seen in engine.seen] == ["default", "urgent", "default"]


async def test_classes_share_by_weight_and_priority_goes_first(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, engine_capacity=1)
    await set_policy(gateway, light=ClassPolicy(), heavy=ClassPolicy(weight=3.0), urgent=ClassPolicy(priority=1))
    all_wait = asyncio.Event()
    engine.scripts = [[all_wait, reply(completion())]]
    async with AsyncExitStack() as stack:
        clients = []
        for name in ["default"] + ["light"] * 8 + ["heavy"] * 8 + ["urgent"] * 2:
            clients.append(await stack.enter_async_context(await Client.connect(gateway.port)))
            clients[-1].send(of_class(name))
            await eventually(lambda: len(engine.seen) + queued(gateway) == len(clients))
        all_wait.set()
        assert {(await client.answer()).status for client in clients} == {200}
    order = [seen.headers["x-traffic-class"] for seen in engine.seen]
    assert order[:3] == ["default", "urgent", "urgent"]
    assert order[3:11].count("heavy") == 6
    assert order[3:11].count("light") == 2
    # vLLM's own priority runs the other way, and is an error unless the engine schedules by it.
    assert not any("x-vllm-priority" in seen.headers for seen in engine.seen)


async def test_a_full_line_refuses_and_a_late_one_is_told(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, clock=clock, engine_capacity=1, queue_limit=2, queue_timeout_s=0.6)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(await Client.connect(gateway.port)) for _ in range(3)]
        clients[0].send(request())
        await engine.wait_seen(1)
        clients[1].send(request())
        clients[2].send(request(STREAM))
        await eventually(lambda: queued(gateway) == 2)
        full = await call(gateway.port)
        assert (full.status, full.code) == (429, "queue_full")
        assert full.headers["retry-after"] == "1"
        assert "--queue-limit" in full.json["error"]["message"]
        clock.at += 0.7
        for client in clients[1:]:
            late = await client.answer()
            assert (late.status, late.code) == (503, "queue_timeout")
            assert late.headers["retry-after"] == "1"
            assert float(late.headers["x-specpilot-queue-ms"]) == pytest.approx(700)
            assert "x-specpilot-engine" not in late.headers
    assert len(engine.seen) == 1
    assert gateway.context.metrics.refusals == {"queue_full": 1, "queue_timeout": 2}
    assert queued(gateway) == 0


async def test_a_client_that_leaves_while_it_waits_frees_its_place(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, engine_capacity=1, queue_limit=1)
    async with await Client.connect(gateway.port, request()) as first:
        await engine.wait_seen(1)
        async with await Client.connect(gateway.port, request()):
            await eventually(lambda: queued(gateway) == 1)
        await eventually(lambda: gateway.context.metrics.disconnects == {"queue": 1})
        assert queued(gateway) == 0
        async with await Client.connect(gateway.port) as third:
            third.send(request())  # the limit of one lets it wait
            await eventually(lambda: queued(gateway) == 1)
            engine.script = [reply(completion())]
            first.abort()  # and the place of who goes is its own at once
            assert (await third.answer()).status == 200
    assert len(engine.seen) == 2


@pytest.mark.parametrize("is_reset", [False, True], ids=["closes", "resets"])
async def test_an_engine_that_fails_hands_its_place_on(
    engine: ScriptedEngine, start_gateway: StartGateway, is_reset: bool
) -> None:
    fails = asyncio.Event()
    engine.scripts = [[fails, RESET if is_reset else CLOSE]]
    gateway = await start_gateway(engine, engine_capacity=1)
    calls = [asyncio.create_task(call(gateway.port))]
    await engine.wait_seen(1)
    calls += [asyncio.create_task(call(gateway.port)) for _ in range(3)]
    await eventually(lambda: queued(gateway) == 3)
    fails.set()
    assert [answer.status for answer in await asyncio.gather(*calls)] == [502, 200, 200, 200]


async def test_an_engine_that_dies_while_requests_wait(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, engine_capacity=1, queue_timeout_s=20)
    waiting = [asyncio.create_task(call(gateway.port)) for _ in range(4)]
    await eventually(lambda: queued(gateway) == 3)
    await engine.wait_seen(1)  # a connection that nobody has accepted yet would outlive the engine here
    await engine.stop()
    answers = await asyncio.gather(*waiting)
    assert {answer.status for answer in answers} <= {502, 503}
    assert {answer.code for answer in answers} <= {"bad_engine_response", "engine_unavailable"}
    assert all(answer.headers["retry-after"] == "1" for answer in answers)


async def test_a_second_engine_takes_those_who_wait(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    await other_engine.stop()
    gateway = await start_gateway(engine, other_engine, engine_capacity=1)
    async with await Client.connect(gateway.port, request()):
        await engine.wait_seen(1)
        waiting = [asyncio.create_task(call(gateway.port)) for _ in range(3)]
        await eventually(lambda: queued(gateway) == 3)
        await other_engine.start()  # discovery finds it; nothing departs
        assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 3
    assert len(other_engine.seen) == 3


async def queue_length(program: GatewayProgram) -> int:
    page = (await call(program.port, request(path="/metrics", method="GET"))).body.decode()
    found = re.search(r"^specpilot_gateway_queue_length\{.*\} (\S+)$", page, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


async def until_two_wait(program: GatewayProgram) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await queue_length(program) != 2:
            pass


async def test_requests_that_wait_are_served_while_the_gateway_drains(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    gates = Gates(engine)
    program = await start_program("--engine-capacity", "1")
    calls = [asyncio.create_task(call(program.port)) for _ in range(3)]
    await until_two_wait(program)
    program.process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE_S):
        while not calls[-1].done():  # until the drain begins, one more waits
            if await queue_length(program) == len(calls) - 1:
                calls.append(asyncio.create_task(call(program.port)))
    assert (await calls.pop()).code == "draining"
    await gates.open(0, len(calls))
    assert {answer.status for answer in await asyncio.gather(*calls)} == {200}
    assert await program.end() == 0


async def test_the_drain_time_out_ends_those_who_wait_without_sending_them(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    engine.script = [HANG]
    program = await start_program("--engine-capacity", "1", "--drain-timeout-s", "0.5")
    calls = [asyncio.create_task(call(program.port)) for _ in range(3)]
    await until_two_wait(program)
    program.process.send_signal(signal.SIGTERM)
    assert {(await item).code for item in calls} == {"draining"}
    assert await program.end() == 0
    assert len(engine.seen) == 1

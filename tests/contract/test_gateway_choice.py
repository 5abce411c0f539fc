"""Which engine answers: sessions, prompts, load, and engines that come and go by DNS."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import DONE, HANG, ScriptedEngine, completion, reply, stream

SYSTEM = {"role": "system", "content": "You are a careful assistant. " * 80}


@pytest.fixture
async def engines() -> AsyncIterator[list[ScriptedEngine]]:
    """Three engines on one port, each at an address of its own."""
    started = [await ScriptedEngine(host="127.0.0.1").start()]
    for host in ("127.0.0.2", "127.0.0.3"):
        one = ScriptedEngine(host=host)
        one.port = started[0].port
        started.append(await one.start())
    yield started
    for one in started:
        await one.stop()


def name_of(engine: ScriptedEngine) -> str:
    return f"{engine.host}:{engine.port}"


async def answered_by(gateway: GatewayThread, body: dict[str, Any] | None = None, session: str | None = None) -> str:
    headers = "" if session is None else f"x-session-id: {session}\r\n"
    answer = await call(gateway.port, request({"model": "tiny", **(body or {})}, headers=headers))
    assert answer.status == 200, answer.body
    return answer.headers["x-specpilot-engine"]


def turn(*texts: str) -> dict[str, Any]:
    return {"messages": [SYSTEM, *({"role": "user", "content": text} for text in texts)]}


def rules(gateway: GatewayThread) -> dict[str, int]:
    return {rule: count for rule, count in gateway.context.fleet.chooser.counts.items() if count}


async def test_a_session_has_one_home_in_every_gateway(
    engines: list[ScriptedEngine], start_gateway: StartGateway
) -> None:
    here, there = await start_gateway(*engines), await start_gateway(*engines[::-1])
    homes = {}
    for session in (f"s{at}" for at in range(12)):
        homes[session] = await answered_by(here, session=session)
        assert await answered_by(there, session=session) == homes[session]
        assert await answered_by(there, {"metadata": {"session_id": session}}) == homes[session]
        assert await answered_by(here, {"user": session}) == homes[session]
    assert len(set(homes.values())) > 1
    assert rules(here) == rules(there) == {"session": 24}
    assert any(seen.headers.get("x-session-id") == "s0" for engine in engines for seen in engine.seen)


@pytest.mark.parametrize(
    "header",
    [
        "X-Claude-Code-Session-Id",
        "session-id",
        "session_id",
        "x-session-affinity",
        "x-opencode-session",
        "X-Session-Id",
    ],
)
async def test_an_agent_names_its_session_in_a_header_of_its_own(
    engines: list[ScriptedEngine], start_gateway: StartGateway, header: str
) -> None:
    gateway = await start_gateway(*engines)
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
        for session in (f"s{at}" for at in range(6)):
            home = await answered_by(gateway, session=session)
            for blank in ("", " \t"):
                sent = request({"model": "tiny", "user": "u"}, path=path, headers=f"{header}: {session}{blank}\r\n")
                assert (await call(gateway.port, sent)).headers["x-specpilot-engine"] == home
    assert rules(gateway) == {"session": 54}
    assert sum(seen.headers.get(header.lower()) == "s0" for engine in engines for seen in engine.seen) >= 6


async def test_the_gateways_own_session_header_comes_before_those_of_agents(
    engines: list[ScriptedEngine], start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(*engines)
    for session in (f"s{at}" for at in range(12)):
        home = await answered_by(gateway, session=session)
        lines = [f"x-session-id: {session}\r\n", "session-id: other\r\n", "x-session-affinity: \r\n"]
        for ordered in (lines, lines[::-1]):
            answer = await call(gateway.port, request({"model": "tiny"}, headers="".join(ordered)))
            assert answer.headers["x-specpilot-engine"] == home


async def test_a_session_whose_home_dies_moves_and_the_others_stay(
    engines: list[ScriptedEngine], start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(*engines)
    homes = {session: await answered_by(gateway, session=session) for session in (f"s{at}" for at in range(12))}
    dead = engines[0]
    await dead.stop()
    for session, home in homes.items():
        found = await answered_by(gateway, session=session)
        assert found != name_of(dead)
        assert found == home or home == name_of(dead)
        assert await answered_by(gateway, session=session) == found
    assert gateway.context.metrics.retries <= 2
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 200
    await dead.start()
    outlier_detection = gateway.context.fleet.engines[name_of(dead)].outlier_detection
    await eventually(lambda: not outlier_detection.is_ejected)
    assert {session: await answered_by(gateway, session=session) for session in homes} == homes


async def test_a_busy_home_passes_its_session_on(engines: list[ScriptedEngine], start_gateway: StartGateway) -> None:
    gateway = await start_gateway(*engines)
    home = await answered_by(gateway, session="s")
    [busy] = [engine for engine in engines if name_of(engine) == home]
    busy.script = [HANG]
    clients = [await Client.connect(gateway.port) for _ in range(2)]
    try:
        for client in clients:
            client.send(request({"model": "tiny", "max_tokens": 4096}, headers="x-session-id: s\r\n"))
        await busy.wait_seen(3)
        other = await answered_by(gateway, session="s")
        assert other != home
        assert await answered_by(gateway, session="s") == other
        assert rules(gateway) == {"session": 3, "session_spilled": 2}
    finally:
        for client in clients:
            client.abort()
    busy.script = [reply(completion())]
    await eventually(lambda: not gateway.context.exchanges)
    assert await answered_by(gateway, session="s") == home


async def test_a_conversation_returns_to_where_its_prompt_is_cached(
    engines: list[ScriptedEngine], start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(*engines)
    home = await answered_by(gateway, turn("one"))
    for texts in (("one", "answer", "two"), ("another",), ("one", "answer", "two", "answer", "three")):
        assert await answered_by(gateway, turn(*texts)) == home
    assert rules(gateway) == {"balanced": 1, "prefix": 3}
    page = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    assert 'specpilot_gateway_choices_total{rule="prefix"} 3.0' in page
    assert 'specpilot_gateway_choices_total{rule="session"} 0.0' in page


async def test_two_choices_never_takes_the_busiest(engines: list[ScriptedEngine], start_gateway: StartGateway) -> None:
    gateway = await start_gateway(*engines, balance="two_choices")
    for engine in engines:
        engine.script = [HANG]
    async with await Client.connect(gateway.port, request({"model": "tiny", "max_tokens": 4096})):
        [busy] = await eventually(lambda: [engine for engine in engines if engine.seen])
        for engine in engines:
            engine.script = [reply(completion())]
        assert name_of(busy) not in [await answered_by(gateway) for _ in range(20)]


class Records:
    """The addresses of a name, as a resolver would find them."""

    def __init__(self, *engines: ScriptedEngine) -> None:
        self.addresses: Collection[str] = [engine.host for engine in engines]
        self.failure: OSError | None = None
        self.answers = 0

    def __call__(self, host: str, port: int) -> Collection[str]:
        assert host == "vllm.test"
        self.answers += 1
        if self.failure is not None:
            raise self.failure
        return self.addresses


async def test_engines_join_and_leave_with_the_records_of_their_name(
    engines: list[ScriptedEngine], start_gateway: StartGateway
) -> None:
    first, second, third = engines
    records = Records(first, second)
    name = f"dns+http://vllm.test:{first.port}"
    gateway = await start_gateway(engine=(name,), look_up=records, dns_refresh_s=0.05, affinity="none")
    await eventually(lambda: len(gateway.context.fleet.by_model.get("tiny", ())) == 2)
    assert {await answered_by(gateway) for _ in range(6)} == {name_of(first), name_of(second)}
    assert first.seen[0].headers["host"] == f"vllm.test:{first.port}"

    may_go_on = asyncio.Event()
    head, event, *rest = stream("one", "two")
    for engine in (first, second):
        engine.seen.clear()
        engine.script = [head, event, may_go_on, *rest]
    async with await Client.connect(gateway.port) as client, await Client.connect(gateway.port) as other:
        for each in (client, other):
            each.send(request(STREAM))
        await asyncio.gather(first.wait_seen(1), second.wait_seen(1))
        records.addresses = [second.host, third.host]
        second.script = [reply(completion())]
        await eventually(lambda: set(gateway.context.fleet.engines) == {name_of(second), name_of(third)})
        await eventually(lambda: len(gateway.context.fleet.by_model["tiny"]) == 2)
        assert {await answered_by(gateway) for _ in range(6)} <= {name_of(second), name_of(third)}
        assert len(first.seen) == 1
        may_go_on.set()
        answers = [await client.answer(), await other.answer()]
    assert all(answer.is_whole and answer.body.endswith(DONE) for answer in answers)
    assert {answer.headers["x-specpilot-engine"] for answer in answers} == {name_of(first), name_of(second)}
    await eventually(lambda: not first.open)


async def test_a_resolver_that_fails_changes_nothing(
    engines: list[ScriptedEngine], start_gateway: StartGateway
) -> None:
    records = Records()
    name = f"dns+http://vllm.test:{engines[0].port}"
    gateway = await start_gateway(engine=(name,), look_up=records, dns_refresh_s=0.05)
    assert (await call(gateway.port)).code == "engine_unavailable"
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 503
    records.addresses = [engines[0].host]
    await eventually(lambda: gateway.context.fleet.by_model)
    for failure, addresses in ((OSError("no such host"), [engines[0].host]), (None, [])):
        records.failure, records.addresses = failure, addresses
        before = records.answers
        await eventually(lambda before=before: records.answers >= before + 3)
        assert await answered_by(gateway) == name_of(engines[0])

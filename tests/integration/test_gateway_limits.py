"""One key's limit over several gateways on a real Redis: divided by demand, never multiplied, whatever Redis does."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest

from specpilot.gateway.engines.redis_watch import EXCHANGE_S
from specpilot.gateway.limits.rate_limit import PRIOR
from specpilot.policy import redis_keys
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.store import Store
from tests.support.gateway_client import call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer, threads_that_ask
from tests.support.scripted_engine import ScriptedEngine

ASK = request(headers="authorization: Bearer sk-shared\r\n")
L = 60


@pytest.fixture
async def fleet(server: RedisServer, scripted: ScriptedEngine) -> AsyncIterator["Fleet"]:
    started = Fleet(server, scripted)
    yield started
    server.process.send_signal(signal.SIGCONT)  # so that a thread that waits for it ends
    for gateway in started.gateways:
        gateway.leave()
    for gateway in started.gateways:
        await asyncio.to_thread(gateway.join)


class Fleet:
    """Gateways on one Redis, and a key of `L` requests a minute."""

    def __init__(self, server: RedisServer, engine: ScriptedEngine) -> None:
        self.server = server
        self.engine = engine
        self.gateways: list[GatewayThread] = []

    async def start(self, count: int) -> None:
        self.set_limit(L)
        for _ in range(count):
            gateway = GatewayThread(engine=(self.engine.url,), redis_url=self.server.url)
            self.gateways.append(await gateway.start())
        await self.see(count)

    async def see(self, count: int) -> None:
        """Wait until every gateway knows of `count`."""
        await eventually(lambda: all(abs(share - 1 / count) < 1e-9 for share in self.shares("unused")))

    def set_limit(self, limit: int) -> None:
        store = Store(self.server.url, PATIENCE_S)
        store.put_api_key(ApiKey("shared", sha256_of("sk-shared"), requests_per_minute=limit))
        store.close()

    def shares(self, key_id: str = "shared") -> list[float]:
        return [gateway.context.rates._shares.of(key_id) for gateway in self.gateways]

    async def ask(self, index: int) -> int:
        return (await call(self.gateways[index].port, ASK)).status

    async def flood(self, seconds: float, target: int) -> int:
        """Ask one gateway 40 times a second; return how many were let pass."""
        passed = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            passed += await self.ask(target) == 200
            await asyncio.sleep(0.025)
        return passed

    async def flood_until_its_share_is(self, above: float, target: int) -> None:
        """Ask one gateway until it has so much of the limit."""
        async with asyncio.timeout(PATIENCE_S):
            while self.shares()[target] <= above:
                await self.flood(0.1, target)


async def test_gateways_find_one_another_and_divide_a_burst(fleet: Fleet) -> None:
    await fleet.start(3)
    began = time.monotonic()
    found = await asyncio.gather(*(fleet.ask(index) for index in range(3) for _ in range(L)))
    # The buckets held L together; what flows in meanwhile is L / 60 a second.
    assert 0.9 * L <= found.count(200) <= L + L * (time.monotonic() - began) / 60 + 3
    assert found.count(429) == len(found) - found.count(200)


async def test_the_limit_follows_the_demand(fleet: Fleet) -> None:
    await fleet.start(2)
    for target, above in ((0, 0.95), (1, 0.7)):
        await fleet.flood_until_its_share_is(above, target)
        await eventually(lambda: sum(fleet.shares()) == pytest.approx(1, abs=0.05))


@pytest.mark.parametrize("is_frozen", [False, True], ids=["gone", "frozen"])
async def test_without_redis_the_last_shares_hold_and_nothing_waits(
    fleet: Fleet, is_frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.start(2)
    await fleet.flood_until_its_share_is(0.95, 0)
    await eventually(lambda: sum(fleet.shares()) == pytest.approx(1, abs=0.05))
    if is_frozen:
        fleet.server.process.send_signal(signal.SIGSTOP)
    else:
        fleet.server.stop()
    await asyncio.sleep(1.5)  # what was under way comes to its end
    threads = threads_that_ask(monkeypatch)
    held = fleet.shares()
    began = time.monotonic()
    passed = await fleet.flood(4.0, 1)  # in which a rate shows, as the second gateway's bucket begins empty
    lasted_s = time.monotonic() - began
    assert fleet.shares() == held
    assert sum(held) == pytest.approx(1, abs=0.05)
    # The second gateway has its small share, not the limit.
    assert passed <= held[1] * L * (1 + lasted_s / 60) + max(1.0, PRIOR * L) + 1
    assert threads == {"snapshot"}  # no request waits for Redis


async def test_a_gateway_that_goes_leaves_its_share_to_the_others(fleet: Fleet) -> None:
    await fleet.start(2)
    gone = fleet.gateways.pop()
    gone.leave()
    await asyncio.to_thread(gone.join)
    await eventually(lambda: fleet.shares() == [1.0])


async def test_a_redis_that_comes_back_empty_divides_again(fleet: Fleet) -> None:
    await fleet.start(2)
    fleet.server.stop()
    await asyncio.sleep(1.2)
    fleet.server.start()
    fleet.set_limit(L)
    await eventually(lambda: fleet.shares("unused") == [0.5, 0.5])
    began = time.monotonic()
    found = [await fleet.ask(index) for index in range(2) for _ in range(L)]
    assert found.count(200) <= L + L * (EXCHANGE_S + time.monotonic() - began) / 60 + 3


async def test_a_changed_limit_is_in_force_within_a_second(fleet: Fleet) -> None:
    await fleet.start(1)
    assert await fleet.ask(0) == 200
    fleet.set_limit(1)
    await eventually(
        lambda: fleet.gateways[0].context.snapshot.keys[sha256_of("sk-shared")].requests_per_minute == 1, 1.0
    )
    found = [await fleet.ask(0) for _ in range(3)]
    assert found == [200, 429, 429]


def test_usage_is_exchanged_and_expires(server: RedisServer) -> None:
    store = Store(server.url, PATIENCE_S)
    one, other = GatewayUsage("a", {"k": 0.5}), GatewayUsage("b", {})
    assert store.exchange_usage(one, 5.0) == [one]
    assert store.exchange_usage(other, 0.1) == [one, other]
    time.sleep(0.2)
    assert store.exchange_usage(one, 5.0) == [one]
    assert store._redis.smembers(redis_keys.GATEWAYS) == {b"a"}
    store.close()

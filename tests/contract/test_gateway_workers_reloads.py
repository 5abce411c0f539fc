"""A reload of several workers, and what Redis that is away changes of it and of replacements."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.store import Store
from tests.contract.conftest import StartProgram
from tests.support.gateway_client import call, request
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.gateway_workers import arguments, children, lines
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scripted_engine import ScriptedEngine


@pytest.fixture
def redis(redis: RedisServer) -> RedisServer:
    """With the API key `sk-k`."""
    put_key(redis)
    return redis


def put_key(redis: RedisServer) -> None:
    store = Store(redis.url, PATIENCE_S)
    store.put_api_key(ApiKey("k", sha256_of("sk-k")))
    store.close()


async def statuses(program: GatewayProgram) -> set[int]:
    """What many connections with the key get; that all reach one of two workers happens once in 2^23 times."""
    asked = request(headers="authorization: Bearer sk-k\r\n")
    return {answer.status for answer in await asyncio.gather(*(call(program.port, asked) for _ in range(24)))}


async def test_reload_replaces_a_worker_that_is_still_starting(
    engine: ScriptedEngine, start_workers: StartProgram, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('[{"key_id": "a", "key": "old"}]')
    program = await start_workers("--api-keys-file", str(keys))
    victim, _ = children(program)
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: [pid for pid in children(program) if "3" in arguments(pid)])  # has the third begun
    keys.write_text('[{"key_id": "a", "key": "new"}]')
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: len(lines(program, "has left")) == 2)
    statuses = [
        (await call(program.port, request(headers=f"authorization: Bearer {key}\r\n"))).status
        for key in ("new", "old") * 12
    ]
    assert statuses == [200, 401] * 12


async def test_a_reload_without_redis_keeps_the_workers_that_know_the_keys(
    start_workers: StartProgram, redis: RedisServer
) -> None:
    program = await start_workers("--redis-url", redis.url)
    before = children(program)
    redis.stop()
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "[worker 3]: the old worker serves on until Redis was read"))
    assert await statuses(program) == {200}
    (successor,) = set(children(program)) - set(before)
    os.kill(successor, signal.SIGTERM)  # its patience is tested elsewhere
    await eventually(lambda: lines(program, "the slot's other worker goes on, the reload ends here"))
    assert children(program) == before
    assert await statuses(program) == {200}

    redis.start()
    put_key(redis)
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: len(lines(program, "has left")) == 2)
    assert not set(before) & set(children(program))
    assert await statuses(program) == {200}


async def test_a_reload_goes_on_when_redis_comes_back(start_workers: StartProgram, redis: RedisServer) -> None:
    program = await start_workers("--redis-url", redis.url)
    redis.stop()
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "the old worker serves on"))
    redis.start()
    put_key(redis)
    await eventually(lambda: len(lines(program, "has left")) == 2)
    assert await statuses(program) == {200}


async def test_workers_that_replace_dead_ones_do_not_wait_for_redis(
    start_workers: StartProgram, redis: RedisServer
) -> None:
    program = await start_workers("--redis-url", redis.url)
    victim, other = children(program)
    redis.stop()
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "[worker 3]: the old worker serves on"))
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: lines(program, "worker 3 serves"))
    os.kill(other, signal.SIGKILL)  # its successor is starting
    await eventually(lambda: lines(program, "worker 4 serves"))
    assert await statuses(program) == {503}
    redis.start()
    put_key(redis)
    await eventually(lambda: len(lines(program, "Redis answers again")) == 2)
    assert await statuses(program) == {200}


async def test_a_gateway_without_redis_starts_all_workers_and_stops_while_one_waits(
    start_workers: StartProgram, redis: RedisServer
) -> None:
    redis.stop()
    program = await start_workers("--redis-url", redis.url)
    assert await statuses(program) == {503}
    assert (await call(program.port, request(path="/health", method="GET"))).status == 200
    program.process.send_signal(signal.SIGHUP)
    await eventually(lambda: lines(program, "the old worker serves on"))
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0

"""A server that is full: what goes on, what is refused, and what engines, gateway and controller make of it."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.api_key import GatewayUsage
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.model_policy import Policy
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.controller_engine import HttpEngine
from tests.support.gateway_client import Answer
from tests.support.gateway_server import GatewayProgram, eventually
from tests.support.patience import PATIENCE_S
from tests.support.redis_load import Beating, ask_until
from tests.support.redis_server import NEEDS_SYSTEM
from tests.support.redis_topologies import Node
from tests.support.scripted_engine import ScriptedEngine, completion, reply
from tests.support.stack import call, free_port
from tests.support.store_operations import RECORD

pytestmark = NEEDS_SYSTEM


def test_a_full_server_keeps_engines_gateways_and_leader_and_says_that_it_is_full(tmp_path: Path) -> None:
    node = Node(tmp_path, "--maxmemory-policy", "noeviction")
    store = Store(f"redis://127.0.0.1:{node.port}")
    try:
        node.until_said("PONG", "ping")
        store.put_policy(Policy("m"), None, 1.0)
        store.heartbeat(RECORD, 60.0)
        store.exchange_usage(GatewayUsage("g", {}), 60.0)
        lease = store.acquire_lease("a", 60.0)
        assert lease is not None
        node.ask("config", "set", "maxmemory", "1")
        store.heartbeat(replace(RECORD, heartbeat_at=3.0), 600.0)
        assert [item.gateway_id for item in store.exchange_usage(GatewayUsage("g", {"k": 1.0}), 600.0)] == ["g"]
        assert store.acquire_lease("a", 600.0) == lease
        kept = (redis_keys.engine(RECORD.engine_id), redis_keys.gateway("g"), redis_keys.LEASE)
        assert all(store._redis.ttl(key) > 60 for key in kept)
        assert store.engines() == [RECORD]
        assert [item.policy.model for item in store.policies()] == ["m"]
        refused: list[Callable[[], object]] = [
            lambda: store.put_policy(Policy("m"), None, 2.0),
            lambda: store.heartbeat(replace(RECORD, engine_id="new"), 60.0),
            lambda: store.publish_schedule(Schedule("m", "p", 1, 1.0, Guidance()), lease),
        ]
        for write in refused:
            with pytest.raises(StoreUnavailableError, match=r"Redis is full \(maxmemory\).*raise maxmemory"):
                write()
        store.remove_engine("e1")
        assert store.engines() == []
        node.ask("config", "set", "maxmemory", "0")
        store.heartbeat(RECORD, 60.0)
        assert store.engines() == [RECORD]
    finally:
        node.kill()


async def test_a_server_that_fills_up_under_load_fails_no_request_and_the_controller_says_so_once(
    tmp_path: Path, scripted: ScriptedEngine
) -> None:
    node = Node(tmp_path, "--maxmemory-policy", "noeviction")
    url, log, port = f"redis://127.0.0.1:{node.port}", tmp_path / "controller.log", free_port()
    node.until_said("PONG", "ping")
    store = Store(url, PATIENCE_S)
    scripted.script = [0.02, reply(completion())]  # so that requests are in flight at every moment
    replies: list[Answer] = []
    loads: list[asyncio.Task[None]] = []
    beating = Beating(url, replace(RECORD, url=scripted.url))
    gateway = GatewayProgram(["--redis-url", url, "--redis-poll-s", "0.3"])
    flags = ["--redis-url", url, "--port", str(port), "--interval-s", "0.5", "--trust-this-machine"]
    with log.open("wb") as output:
        controller = subprocess.Popen(  # noqa: ASYNC220 - it takes a millisecond
            [sys.executable, "-P", "-m", "specpilot.controller", *flags], stderr=output
        )
    try:
        await gateway.started()
        async with HttpEngine(store) as steered:
            await eventually(lambda: steered.applied)
            loads += [asyncio.create_task(ask_until(beating.ended, gateway.port, replies)) for _ in range(4)]
            await eventually(lambda: len(replies) > 20)
            node.ask("config", "set", "maxmemory", "1")
            await eventually(lambda: "schedules stay as they are: Redis is full (maxmemory)" in log.read_text())
            before = len(replies)
            await asyncio.sleep(2.0)  # some ticks more
            page = (await asyncio.to_thread(call, f"http://127.0.0.1:{port}/metrics"))[1]
            await eventually(lambda: len(replies) > before + 20)
            node.ask("config", "set", "maxmemory", "0")
            await eventually(lambda: "Redis takes schedules and decisions again" in log.read_text())
    finally:
        await asyncio.to_thread(beating.end)
        await asyncio.gather(*loads)
        controller.terminate()
        gateway.close()
        status = controller.wait(PATIENCE_S)
        store.close()
        node.kill()
    assert {item.status for item in replies} == {200}
    assert "specpilot_controller_store_up 1.0" in page
    assert log.read_text().count("Redis is full") == 1
    assert "last known state" not in log.read_text()
    assert status == 0

"""Redis behind one address fails over, and connections to the old primary stay open: all parts follow.

Without finding out they would never: the old primary goes on answering.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.records import Decision
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.controller_program import running_controller
from tests.support.gateway_client import call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.linked_engine import linked, new_control
from tests.support.patience import PATIENCE_S
from tests.support.redis_behind_address import Pair
from tests.support.redis_server import SERVERS
from tests.support.scripted_engine import ScriptedEngine
from tests.support.stack import until

KEY = ApiKey("k", "ab" * 32)


@pytest.fixture(params=SERVERS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with closing(Pair(SERVERS[request.param])) as found:
        yield found


def causes(*others: str) -> pytest.MarkDecorator:
    """Both servers answer READONLY; one gives the other answers."""
    cases = [*((server, "READONLY") for server in SERVERS), *(("embedded", how) for how in others)]
    return pytest.mark.parametrize(("pair", "how"), cases, indirect=["pair"])


@causes("LOADING", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN", "MISCONF", "NOAUTH")
def test_every_kind_of_write_goes_to_the_new_primary_at_once(pair: Pair, how: str) -> None:
    store = Store(pair.url)
    lease = store.acquire_lease("a", 30.0)
    assert lease is not None
    store.put_api_key(KEY)
    policy = store.put_policy(Policy("m"), 0, 1.0)
    at = [0]

    def write_all() -> None:
        at[0] += 1
        for write in (
            lambda: store.put_api_key(ApiKey(f"k{at[0]}", "cd" * 32)),
            lambda: store.exchange_usage(GatewayUsage("g", {}), 5.0),  # a transaction
            lambda: store.put_policy(Policy("m"), None, 2.0),  # a script
            lambda: store.acquire_lease("a", 30.0),
            lambda: store.append_decision(
                Decision(1.0, "m", "p", Mode.ACT, "adaptive", True, 1, None, {}), is_lasting=True
            ),  # a pipeline
        ):
            try:
                write()
            except StoreUnavailableError:  # the first call finds out, the second reaches the new primary
                write()

    write_all()
    assert policy.version == 1
    pair.fail_over(how)
    write_all()
    found = pair.second.hkeys(redis_keys.API_KEYS)
    assert "k2" in found
    assert {key.key_id for key in store.api_keys()} == {"k", "k1", "k2"}
    store.close()


@causes("LOADING")
def test_idle_connections_and_subscriptions_follow_the_one_that_found_out(pair: Pair, how: str) -> None:
    store = Store(pair.url)
    gate = threading.Barrier(4)
    threads = [threading.Thread(target=lambda: (gate.wait(), store.ping())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # several connections wait in the pool
    heard: list[str] = []
    follows = threading.Event()

    def follow() -> None:
        while len(heard) < 2:
            with suppress(StoreUnavailableError):  # every follower begins again
                for change in store.changes(0.3):
                    follows.set()
                    heard.extend([] if change is None else [change])
                    if len(heard) > 1:
                        return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert follows.wait(PATIENCE_S)
    pair.fail_over(how)
    store.put_api_key(KEY)  # found out here
    before = len(pair.first.client_list())
    for _ in range(8):
        assert [key.key_id for key in store.api_keys()] == ["k"]

    def has_heard() -> bool:
        pair.second.publish(redis_keys.CHANGES, redis_keys.API_KEYS)
        return len(heard) > 1

    until(has_heard, every=0.05)
    assert len(pair.first.client_list()) <= before
    follower.join(PATIENCE_S)
    store.close()


async def test_a_gateway_follows(pair: Pair, scripted: ScriptedEngine) -> None:
    gateway = await GatewayThread(engine=(scripted.url,), redis_url=pair.url).start()
    context = gateway.context
    await eventually(lambda: context.snapshot_age_s is not None)
    await eventually(lambda: pair.first.keys("*gateway*"))  # it has written, so its connections are in use
    pair.fail_over("READONLY")
    Store(f"redis://127.0.0.1:{pair.ports[1]}").put_api_key(KEY)
    await eventually(lambda: context.snapshot.needs_key)
    await eventually(lambda: context.snapshot_age_s < 2.0)
    assert (await call(gateway.port, request())).status == 401
    assert pair.second.keys("*gateway*")
    gateway.leave()
    gateway.join()


def test_a_controller_follows(pair: Pair) -> None:
    with running_controller(redis_url=pair.url) as controller:
        made = [controller.call("/admin/keys", "POST", {})]
        pair.fail_over("READONLY")

        def is_made() -> bool:
            made.append(controller.call("/admin/keys", "POST", {}))
            return made[-1][0] == 201

        until(is_made)
        made = [made[0], made[-1]]
        assert set(pair.second.hkeys(redis_keys.API_KEYS)) == {plain["key_id"] for _, plain, _ in made}


def test_an_engine_follows(pair: Pair) -> None:
    control = new_control()
    with linked(Store(pair.url), control):
        pair.fail_over("READONLY")
        failed_at = time.time()
        leader = Store(f"redis://127.0.0.1:{pair.ports[1]}")
        lease = leader.acquire_lease("controller", 30.0)
        assert lease is not None
        until(lambda: any(engine.heartbeat_at >= failed_at for engine in leader.engines()))
        leader.publish_schedule(Schedule("m", "p", 5, time.time(), Guidance()), lease)
        until(lambda: control.version == 5)

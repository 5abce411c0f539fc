"""Users of Redis with too few rights: a write counts or fails as a whole, the right is named, and readers poll."""

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from specpilot.policy import redis_keys
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.model_policy import Policy
from specpilot.policy.questions import Answer, Question
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.controller_program import running_controller
from tests.support.gateway_client import call, request
from tests.support.gateway_server import eventually, running_gateway
from tests.support.linked_engine import linked
from tests.support.redis_rights import NO_CHANNEL, Rights
from tests.support.redis_server import NEEDS_SYSTEM, SERVERS
from tests.support.scripted_engine import ScriptedEngine
from tests.support.stack import until
from tests.support.store_operations import RECORD, use_everything

pytestmark = NEEDS_SYSTEM
REMEDY = "ACL SETUSER app &{specpilot}:*"


@pytest.fixture(params=[name for name in SERVERS if name != "embedded"])
def rights(request: pytest.FixtureRequest) -> Iterator[Rights]:
    with Rights(SERVERS[request.param]) as found:
        yield found


def test_without_channels_every_write_counts_and_is_told_to_be_unannounced(
    rights: Rights, caplog: pytest.LogCaptureFixture
) -> None:
    rights.set(*NO_CHANNEL)
    store = Store(rights.url)
    with caplog.at_level(logging.WARNING):
        use_everything(store)
    assert "channel" in str(store.unannounced())
    assert REMEDY in str(store.missing_rights())
    assert len([line for line in caplog.messages if "not announced" in line]) == 1
    rights.set("&{specpilot}:*")
    store.put_policy(Policy("n"), None, 1.0)
    assert (store.unannounced(), store.missing_rights()) == (None, None)


def test_a_missing_command_or_key_is_named_and_no_write_is_left_half_way(rights: Rights) -> None:
    rights.set("resetkeys", "~{specpilot}:*", "allchannels", "+@all", "-hdel", "-publish")
    store = Store(rights.url)
    said = str(store.missing_rights())
    for rule in ("ACL SETUSER app ", "+hdel", "+publish", "~specpilot:*"):
        assert rule in said
    assert store.put_policy(Policy("m"), None, 1.0).version == 1
    with pytest.raises(StoreUnavailableError, match=r"its user needs .*&\{specpilot\}:\*"):
        store.delete_policy("m", 1, 2.0)
    assert store.policy("m") is not None
    assert [item.version for item in store.policy_versions("m", 10)] == [1]
    assert not rights.client.exists(redis_keys.DELETED_POLICIES)
    assert store.put_policy(Policy("m", k_max=3), 1, 3.0).version == 2
    rights.set("+hdel", "-hset")
    with pytest.raises(StoreUnavailableError):
        store.put_policy(Policy("m", k_max=4), 2, 3.0)
    with pytest.raises(StoreUnavailableError):
        store.delete_policy("m", 2, 3.0)
    assert store.policy("m") is not None
    assert [item.version for item in store.policy_versions("m", 10)] == [2, 1]


def test_each_command_that_the_store_uses_is_named_when_it_is_missing(rights: Rights) -> None:
    rights.set(*NO_CHANNEL, "allchannels")
    rights.client.config_resetstat()
    use_everything(Store(rights.url))
    counted = {name.removeprefix("cmdstat_") for name in rights.client.info("commandstats")}
    used = {
        name for name in counted if not name.startswith(("hello", "client", "auth", "acl", "config", "command", "ping"))
    }
    assert {"evalsha", "script|load", "multi", "exec", "info", "xadd"} <= used
    for command in sorted(used):
        rights.set("+@all", f"-{command}")
        assert f"+{command}" in str(Store(rights.url).missing_rights()).split(), command


@pytest.mark.parametrize("of_pool", [None, ("m", "p")], ids=["gateways", "engines"])
def test_a_subscription_that_is_refused_polls_and_is_taken_up_again(
    rights: Rights, of_pool: tuple[str, str] | None
) -> None:
    rights.set(*NO_CHANNEL, "-exists")
    store = Store(rights.url)
    changes = store.changes(0.05, of_pool)
    assert [next(changes) for _ in range(5)] == [None] * 5
    rights.set("&{specpilot}:*")
    seen: list[str | None] = []
    lease = rights.admin.acquire_lease("a", 60.0)
    assert lease is not None
    reader = threading.Thread(target=lambda: seen.extend(iter(lambda: next(changes), redis_keys.SCHEDULES)))
    if of_pool is None:
        reader = threading.Thread(target=lambda: seen.extend(iter(lambda: next(changes), redis_keys.POLICIES)))
    reader.start()
    for version in range(1, 400):
        rights.admin.put_policy(Policy("m"), None, 1.0)
        rights.admin.publish_schedule(Schedule("m", "p", version, 1.0, Guidance()), lease)
        reader.join(0.05)
        if not reader.is_alive():
            break
    assert not reader.is_alive()


def test_an_engine_that_may_use_no_channel_says_so_and_finds_a_question_when_it_polls(
    rights: Rights, caplog: pytest.LogCaptureFixture
) -> None:
    rights.set(*NO_CHANNEL)
    with linked(Store(rights.url), answer=lambda question: Answer(question.question_id, "e1")):
        question = Question("q", "explain", ("e1",))
        rights.admin.put_question("m", "p", question)
        until(lambda: rights.admin.answers(question) == {"e1": Answer("q", "e1")})
        assert any(REMEDY in line for line in caplog.messages)


def test_a_controller_names_the_right_at_start_and_says_that_a_key_is_made_but_not_announced(
    rights: Rights, tmp_path: Path
) -> None:
    rights.set(*NO_CHANNEL)
    log = tmp_path / "controller.log"
    with log.open("wb") as file, running_controller(redis_url=rights.url, log=file) as controller:
        assert REMEDY in log.read_text()
        status, made, headers = controller.call("/admin/keys", "POST", {})
        assert status == 201
        assert made["key"].startswith("sk-")
        assert "not announced" in headers["x-specpilot-notice"]
        assert [item["key_id"] for item in controller.call("/admin/keys")[1]["keys"]] == [made["key_id"]]
        for path, method, body in (
            ("/admin/policies/m", "PUT", {"model": "m"}),
            (f"/admin/keys/{made['key_id']}/rotate", "POST", {}),
            (f"/admin/keys/{made['key_id']}", "DELETE", None),
        ):
            status, answer, headers = controller.call(path, method, body)
            assert status < 300, answer
            assert "x-specpilot-notice" in headers
        assert {entry["result"] for entry in controller.call("/admin/audit")[1]["entries"]} == {"done"}
        told = controller.command("key", "create")
        assert (told.returncode, "not announced" in told.stderr) == (0, True)
        rights.set("&{specpilot}:*")
        assert "x-specpilot-notice" not in controller.call("/admin/keys", "POST", {})[2]


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ("resetchannels", "no announcements"),
        ("-@write", "keeping the last shares"),
        ("-sadd", "keeping the last shares"),
        ("-smembers", "keeping the last engines"),
        ("-mget", "keeping the last engines"),
        ("-get", "keeping the last model routes"),
        *((f"-{name}", "") for name in ("srem", "exists", "info", "publish", "subscribe")),
    ],
)
async def test_keys_are_revoked_and_rotated_within_a_poll_whatever_right_is_taken_away(
    rights: Rights, scripted: ScriptedEngine, taken: str, said: str
) -> None:
    rights.set(*NO_CHANNEL, "&{specpilot}:*")
    rights.admin.heartbeat(replace(RECORD, url=scripted.url), 600.0)
    rights.admin.heartbeat(replace(RECORD, engine_id="gone"), 0.001)  # readers remove it, if they may
    revoked, rotated = ApiKey("one", sha256_of("sk-one")), ApiKey("two", sha256_of("sk-two"))
    for key in (revoked, rotated):
        rights.admin.put_api_key(key)
    async with running_gateway("--redis-url", rights.url, "--redis-poll-s", "0.3") as gateway:

        async def status(key: str) -> int:
            return (await call(gateway.port, request(headers=f"authorization: Bearer {key}\r\n"))).status

        assert [await status(key) for key in ("sk-one", "sk-two")] == [200, 200]
        rights.set(taken)
        rights.admin.heartbeat(replace(RECORD, engine_id="gone"), 0.001)
        await eventually(lambda: any(said in line for line in gateway.errors), 20.0)
        rights.admin.delete_api_key("one")
        rights.admin.put_api_key(replace(rotated, sha256=sha256_of("sk-new")))
        async with asyncio.timeout(60):
            while [await status(key) for key in ("sk-one", "sk-two", "sk-new")] != [401, 401, 200]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert not any("Redis answers again" in line or "last snapshot" in line for line in gateway.errors)
        kept = re.findall(r"keeping the last ([a-z ]+):", "".join(gateway.errors))
        assert len(kept) == len(set(kept))
        assert bool(kept) == ("keeping" in said)


@pytest.mark.parametrize(("rules", "named"), [((), REMEDY), (("allchannels", "-@write"), "+set")])
async def test_a_gateway_names_the_right_that_is_missing_at_start(
    rights: Rights, rules: tuple[str, ...], named: str
) -> None:
    rights.set(*NO_CHANNEL, *rules)
    async with running_gateway("--redis-url", rights.url) as gateway:
        assert any(named in line for line in gateway.errors)


def test_a_controller_that_may_not_record_publishes_and_says_once_which_right_it_lacks(
    rights: Rights, tmp_path: Path
) -> None:
    rights.set(*NO_CHANNEL, "allchannels", "-xadd")
    rights.admin.heartbeat(RECORD, 600.0)
    log = tmp_path / "controller.log"
    with log.open("wb") as file, running_controller(redis_url=rights.url, log=file) as controller:
        until(lambda: rights.admin.schedule("tiny", "p") is not None)
        first = rights.admin.schedule("tiny", "p")
        assert controller.call("/admin/policies/tiny", "PUT", {"model": "tiny", "k_max": 2})[0] < 300
        until(lambda: rights.admin.schedule("tiny", "p").guidance != first.guidance)
    said = log.read_text()
    assert said.count("going on without it") == 1
    assert "decision" not in said  # data of the command
    assert "going on with the last known state" not in said
    assert "answers again" not in said


def test_a_controller_that_may_no_longer_lead_says_so_once(rights: Rights, tmp_path: Path) -> None:
    rights.set(*NO_CHANNEL, "allchannels")
    log = tmp_path / "controller.log"
    with log.open("wb") as file, running_controller(redis_url=rights.url, log=file) as controller:
        rights.set("-set", "-get", "-pexpire")
        until(lambda: "this controller cannot lead" in log.read_text())
        until(lambda: "lease_held 0" in controller.call("/metrics", token=None)[1])
    assert log.read_text().count("this controller cannot lead") == 1

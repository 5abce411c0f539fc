"""What the gateway answers itself: health, models, metrics, its configuration, and when it has nothing to offer."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from specpilot.gateway.relay.connection_state import HEAD
from specpilot.gateway.settings import GatewaySettings
from specpilot.gateway.telemetry import metrics
from specpilot.gateway.wire.errors import GatewayError
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.scripted_engine import HANG, ScriptedEngine, completion, reply
from tests.support.stack import free_port

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "gateway" / "running.md").read_text()


async def test_the_text_of_metrics_is_written_off_the_loop(
    engine: ScriptedEngine, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With some models, classes and keys it takes tens of milliseconds, in which no stream would go on."""
    threads: list[threading.Thread] = []

    def generate(registry: CollectorRegistry) -> bytes:
        threads.append(threading.current_thread())
        return generate_latest(registry)

    monkeypatch.setattr(metrics, "generate_latest", generate)
    gateway = await start_gateway(engine)
    assert (await call(gateway.port)).status == 200
    text = (await call(gateway.port, request(path="/metrics", method="GET"))).body
    assert b'requests_total{model="tiny",status="200",traffic_class="default"} 1.0' in text
    assert len(threads) == 1
    assert gateway._thread not in threads


async def test_health_ready_and_the_models_of_all_engines(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.models, other_engine.models = ["shared", "a"], ["b", "shared"]
    gateway = await start_gateway(engine, other_engine)
    for path, found in (("/health", "ok"), ("/ready", "ready"), ("/ping", "ready")):
        assert (await call(gateway.port, request(path=path, method="GET"))).json == {"status": found}
    models = (await call(gateway.port, request(path="/v1/models", method="GET"))).json["data"]
    assert [card["id"] for card in models] == ["a", "b", "shared"]
    none = await call(gateway.port, request(path="/v1/models/none", method="GET"))
    assert (none.status, none.code) == (404, "model_not_found")
    assert (await call(gateway.port, request({"model": "b"}))).status == 200
    assert len(other_engine.seen) == 1


async def test_before_any_engine_is_known(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine=("http://127.0.0.1:1",))
    for body in (None, {"messages": []}):  # that names no model is no fault of the client now
        answer = await call(gateway.port, request(body))
        assert (answer.status, answer.code) == (503, "engine_unavailable")
        assert answer.headers["retry-after"] == "1"
    for path in ("/ready", "/ping"):
        ready = await call(gateway.port, request(path=path, method="GET"))
        assert (ready.status, ready.json) == (503, {"status": "no engine"})
    assert (await call(gateway.port, request(path="/health", method="GET"))).status == 200


async def idle_for(gateway: GatewayThread, clock: Clock, seconds: float) -> None:
    """Let so much time pass, and the gateway look at each of its connections then: it does at every tenth sweep."""
    clock.at += seconds
    swept = gateway.context._sweeps
    await eventually(lambda: gateway.context._sweeps >= swept + 12)


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    may_answer = asyncio.Event()
    engine.script = [may_answer, reply(completion())]
    gateway = await start_gateway(engine, clock=clock, keep_alive_s=5.0)
    async with await Client.connect(gateway.port, request()) as client:
        await engine.wait_seen(1)
        await idle_for(gateway, clock, 6.0)
        may_answer.set()
        assert (await client.answer()).status == 200
        clock.at += 6.0
        assert await client.is_closed()


@pytest.mark.parametrize("is_refused", [False, True], ids=["a blank line", "the rest of a refused request"])
async def test_bytes_that_begin_no_request_do_not_keep_an_idle_connection(
    engine: ScriptedEngine, start_gateway: StartGateway, is_refused: bool
) -> None:
    gateway = await start_gateway(engine, keep_alive_s=0.3)
    whole = request(method="PUT" if is_refused else "POST")
    async with await Client.connect(gateway.port, whole[:-10] if is_refused else whole) as client:
        assert (await client.answer()).status == (405 if is_refused else 200)
        client.send(whole[-10:-1] if is_refused else b"\r\n")
        assert await client.is_closed()
    await eventually(lambda: not gateway.context.connections)


async def test_a_connection_on_which_a_request_is_coming_or_under_way_is_not_idle(
    engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    second, third = asyncio.Event(), asyncio.Event()
    engine.scripts = [[reply(completion())], [second, reply(completion())], [third, reply(completion())]]
    gateway = await start_gateway(engine, clock=clock, keep_alive_s=5.0)
    async with await Client.connect(gateway.port, request()[:30]) as client:
        await eventually(lambda: any(one._state == HEAD for one in [*gateway.context.connections]))
        await idle_for(gateway, clock, 6.0)
        client.send(request()[30:])
        assert (await client.answer()).status == 200
        client.send(request() + request()[:30])  # the answer to the first comes within the head of the second
        await engine.wait_seen(2)
        second.set()
        assert (await client.answer()).status == 200
        await idle_for(gateway, clock, 6.0)
        client.send(request()[30:])
        await engine.wait_seen(3)
        await idle_for(gateway, clock, 6.0)
        third.set()
        assert (await client.answer()).status == 200


async def test_admin_config_needs_its_token_and_shows_no_secret(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    redis_url = "redis://me:hush@127.0.0.1:1/0?password=hush"
    gateway = await start_gateway(engine, admin_token="open-sesame", engine_api_key="hush", redis_url=redis_url)
    path = "/admin/config"
    for headers in ("", "authorization: Bearer wrong\r\n", "authorization: Basic open-sesame\r\n"):
        answer = await call(gateway.port, request(path=path, method="GET", headers=headers))
        assert (answer.status, answer.code) == (401, "invalid_api_key")
    answer = await call(gateway.port, request(path=path, method="GET", headers="authorization: Bearer open-sesame\r\n"))
    assert answer.status == 200
    assert answer.json["engines"][0]["models"] == ["tiny"]
    assert answer.json["settings"]["max_body_bytes"] == 16 * 1024 * 1024
    assert answer.json["settings"]["redis_url"] == "redis://***@127.0.0.1:1/0?***"
    assert set(answer.json["settings"]) == set(GatewaySettings.model_fields)
    documented = PAGE.split("\n`GET /admin/config`, with")[1].split("\n## ")[0]
    assert set(answer.json) == set(re.findall(r"^\| `(\w+)` \|", documented, re.MULTILINE))
    assert b"sesame" not in answer.body
    assert b"hush" not in answer.body
    closed = await start_gateway(engine)
    answer = await call(closed.port, request(path=path, method="GET", headers="authorization: Bearer None\r\n"))
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert "start the gateway with --admin-token" in answer.json["error"]["message"]


async def test_in_flight_is_seen_while_it_lasts(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.script = [HANG]
    async with await Client.connect(gateway.port, request()):
        await engine.wait_seen(1)
        text = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    assert 'specpilot_gateway_in_flight{model="tiny",traffic_class="default"} 1.0' in text


def test_every_error_has_its_own_code() -> None:
    errors = GatewayError.__subclasses__()
    codes = [error.code for error in errors]
    assert len(codes) == len(set(codes)) > 15
    assert all(400 <= error.status <= 599 for error in errors)


@pytest.mark.parametrize("shows", ["nothing", "engines", "operators"])
async def test_only_who_may_know_them_sees_engines_and_keys_by_name(
    engine: ScriptedEngine, start_gateway: StartGateway, shows: str
) -> None:
    port = free_port()
    apart = {"admin_port": port, "admin_token": "t"} if shows == "operators" else {}
    keys = [{"key_id": "tenant", "key": "sk-1"}]
    gateway = await start_gateway(engine, keys=keys, show_engine=shows == "engines", **apart)
    answer = await call(gateway.port, request(headers="authorization: Bearer sk-1\r\n"))
    assert (answer.status, str(engine.port) in str(answer.headers)) == (200, shows == "engines")
    page = request(path="/metrics", method="GET")
    text = (await call(port if apart else gateway.port, page)).body.decode()
    assert "specpilot_gateway_requests_total{" in text
    is_shown = shows != "nothing"
    assert (f"127.0.0.1:{engine.port}" in text) == is_shown
    assert ("tenant" in text) == is_shown
    if apart:
        assert (await call(gateway.port, page)).status == 404
        config = request(path="/admin/config", method="GET", headers="authorization: Bearer t\r\n")
        assert (await call(gateway.port, config)).status == 404
        shown = await call(port, config)
        assert (shown.status, str(engine.port) in shown.body.decode()) == (200, True)
        assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 200


@pytest.mark.parametrize("name", ["my model", "größe-7b", "模型 7b", "org/name:v1+x%20y", 'a "quoted" one', "🙂"])
async def test_a_model_of_any_printable_name_is_served(
    engine: ScriptedEngine, start_gateway: StartGateway, name: str
) -> None:
    engine.models = [name]
    gateway = await start_gateway(engine)
    assert (await call(gateway.port, request(path="/ready", method="GET"))).status == 200
    assert (await call(gateway.port, request({"model": name, "messages": []}))).status == 200
    assert engine.seen[0].json["model"] == name
    listed = await call(gateway.port, request(path="/v1/models", method="GET"))
    assert [card["id"] for card in listed.json["data"]] == [name]
    one = await call(gateway.port, request(path=f"/v1/models/{quote(name, safe='')}", method="GET"))
    assert one.json["id"] == name
    metrics = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    [family] = [item for item in text_string_to_metric_families(metrics) if item.name == "specpilot_gateway_requests"]
    assert {sample.labels["model"] for sample in family.samples if sample.value} == {name}


@pytest.mark.parametrize("name", ["", " x", "x ", "a\nb", "a\x00b", "x" * 257, 7, None])
async def test_a_model_whose_name_cannot_be_used_is_named_in_the_log(
    engine: ScriptedEngine, start_gateway: StartGateway, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine.models = ["tiny", name]
    gateway = await start_gateway(engine)
    listed = await call(gateway.port, request(path="/v1/models", method="GET"))
    assert [card["id"] for card in listed.json["data"]] == ["tiny"]
    [line] = [record.getMessage() for record in caplog.records if "cannot ask for by name" in record.getMessage()]
    assert repr(name)[:200] in line
    assert "--served-model-name" in line

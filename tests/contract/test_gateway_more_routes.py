"""Stored responses and the other routes that are relayed with a difference."""

import json
from typing import Any

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Answer, Client, call, request
from tests.support.gateway_server import eventually
from tests.support.scripted_engine import HANG, Script, ScriptedEngine, Seen, reply

RESPONSES = "/v1/responses"
USAGE = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}


class Stored:
    """An engine's store of responses: what it made it can return, as vLLM does."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.made: list[str] = []
        engine.choose = self.answer

    def answer(self, seen: Seen) -> Script:
        said: dict[str, Any] = {"object": "response", "model": "tiny", "status": "completed", "usage": USAGE}
        if seen.line.startswith(b"POST /v1/responses "):
            previous = seen.json.get("previous_response_id")
            if previous is None or previous in self.made:
                self.made.append(seen.json.get("request_id", f"resp_own{len(self.made)}"))
                return [reply(json.dumps({**said, "id": self.made[-1]}).encode())]
        else:
            previous = seen.path.partition("?")[0].split("/")[3]
            if previous in self.made:
                return [reply(json.dumps({**said, "id": previous}).encode())]
        return [reply(b'{"error":{"message":"not found","type":"invalid_request_error"}}', "404 Not Found")]


def ask(**fields: Any) -> bytes:
    return request({"model": "tiny", "input": "hi", **fields}, path=RESPONSES)


async def test_what_refers_to_a_response_goes_to_the_engine_that_made_it(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    stores = [Stored(engine), Stored(other_engine)]
    gateways = [await start_gateway(engine, other_engine) for _ in range(2)]  # neither knows of the other
    made = [(await call(gateways[0].port, ask(input=f"{at}"))).json["id"] for at in range(6)]
    assert all(store.made for store in stores)
    for gateway in gateways:
        for identifier in made:
            answer = await call(gateway.port, ask(previous_response_id=identifier))
            assert answer.status == 200, answer.body
            for asked in (
                request(b"", path=f"{RESPONSES}/{identifier}?include%5B%5D=output&stream=false", method="GET"),
                request(b"", path=f"{RESPONSES}/{identifier}/cancel"),
            ):
                answer = await call(gateway.port, asked)
                assert (answer.status, answer.json["id"]) == (200, identifier)
    asked_for = {seen.line for seen in (*engine.seen, *other_engine.seen) if RESPONSES + "/" in seen.path}
    assert f"GET {RESPONSES}/{made[0]}?include%5B%5D=output&stream=false HTTP/1.1".encode() in asked_for
    assert f"POST {RESPONSES}/{made[0]}/cancel HTTP/1.1".encode() in asked_for


async def test_a_response_that_cannot_be_found(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    for each in (engine, other_engine):
        Stored(each)
    gateway = await start_gateway(engine, other_engine)
    for identifier in ("resp_1", "resp_" + "0" * 32):
        answer = await call(gateway.port, request(b"", path=f"{RESPONSES}/{identifier}", method="GET"))
        assert (answer.status, answer.code) == (404, "response_not_found")
    answer = await call(gateway.port, ask(previous_response_id="resp_1"))
    assert answer.status == 404  # the engine's own words
    wrong = await call(gateway.port, request(b"", path=f"{RESPONSES}/resp_1", method="DELETE"))
    assert (wrong.status, wrong.code, wrong.headers["allow"]) == (405, "method_not_allowed", "GET")
    for path in (f"{RESPONSES}/a/b", f"{RESPONSES}/a/input_items", f"{RESPONSES}/%2e%2e", f"{RESPONSES}/a?x=%0a"):
        answer = await call(gateway.port, request(b"", path=path, method="GET"))
        assert (answer.status, answer.code) == (404, "route_not_found")
    assert len(engine.seen) + len(other_engine.seen) == 1


async def test_a_draining_or_failing_engine_is_still_the_only_one_with_its_responses(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    stores = [Stored(engine), Stored(other_engine)]
    gateway = await start_gateway(engine, other_engine)
    while not stores[0].made:
        await call(gateway.port, ask())
    identifier = stores[0].made[0]
    maker = next(item for item in gateway.context.fleet.engines.values() if str(engine.port) in item.url)
    maker.is_draining = True
    assert (await call(gateway.port, ask(previous_response_id=identifier))).status == 200
    maker.is_draining = False
    engine.scripts = [[reply(b"{}", "503 Service Unavailable")]]
    before = len(other_engine.seen)
    assert (await call(gateway.port, ask(previous_response_id=identifier))).status == 503
    assert len(other_engine.seen) == before


async def test_a_clients_own_identifier_and_an_engine_alone(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    Stored(engine)
    gateway = await start_gateway(engine)
    assert (await call(gateway.port, ask(request_id="mine"))).json["id"] == "mine"
    assert (await call(gateway.port, request(b"", path=f"{RESPONSES}/mine", method="GET"))).status == 200
    plain = await start_gateway(engine, name_responses=False)
    await call(plain.port, ask())
    assert "request_id" not in engine.seen[-1].json


async def test_stored_responses_need_the_key_count_as_requests_and_cost_no_tokens(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    Stored(engine)
    keys = [{"key_id": "k", "key": "sk-k", "tokens_per_minute": 1000, "requests_per_minute": 9}]
    gateway = await start_gateway(engine, keys=keys, engine_capacity=1, queue_limit=0)
    key = "authorization: Bearer sk-k\r\n"
    made = (await call(gateway.port, request({"model": "tiny", "input": "hi"}, path=RESPONSES, headers=key))).json["id"]
    path = f"{RESPONSES}/{made}"
    stranger = await call(gateway.port, request(b"", path=path, method="GET"))
    assert (stranger.status, stranger.code) == (401, "invalid_api_key")
    answer = await call(gateway.port, request(b"", path=path, method="GET", headers=key))
    assert answer.status == 200
    left = int(answer.headers["x-ratelimit-remaining-tokens"])
    again = await call(gateway.port, request(b"", path=path, method="GET", headers=key))
    assert int(again.headers["x-ratelimit-remaining-tokens"]) >= left
    assert int(again.headers["x-ratelimit-remaining-requests"]) == 6
    metrics = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    assert 'output_tokens_total{model="tiny",source="usage",traffic_class="default"} 4.0' in metrics
    assert 'requests_total{model="tiny",status="200",traffic_class="default"} 3.0' in metrics
    lines = await eventually(lambda: found if len(found := gateway.log_lines()) >= 4 else None)
    assert lines[-1]["path"] == "/v1/responses/{id}"
    assert lines[-1]["output_tokens"] is None


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_response_is_that_of_the_key_it_was_made_for(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, is_alone: bool
) -> None:
    engines = (engine,) if is_alone else (engine, other_engine)
    for each in engines:
        Stored(each)
    keys = [{"key_id": name, "key": f"sk-{name}"} for name in ("mine", "theirs")]
    gateways = [await start_gateway(*engines, keys=keys) for _ in range(2)]

    async def answer(at: int, key: str, body: dict[str, Any] | bytes, path: str = RESPONSES, **more: str) -> Answer:
        headers = f"authorization: Bearer sk-{key}\r\n"
        return await call(gateways[at].port, request(body, path=path, headers=headers, **more))

    made = (await answer(0, "mine", {"model": "tiny", "input": "hi"})).json["id"]
    before = sum(len(each.seen) for each in engines)
    on = {"model": "tiny", "input": "go on", "previous_response_id": made}
    get = {"method": "GET"}
    asked: list[tuple[dict[str, Any] | bytes, str, dict[str, str]]] = [
        (on, RESPONSES, {}),
        (b"", f"{RESPONSES}/{made}", get),
        (b"", f"{RESPONSES}/{made}?stream=true", get),
        (b"", f"{RESPONSES}/{made}/cancel", {}),
    ]
    for body, path, more in asked:
        refused = await answer(1, "theirs", body, path, **more)
        assert (refused.status, refused.code) == (404, "response_not_found")
    replaced = await answer(1, "theirs", {"model": "tiny", "input": "mine now", "request_id": made})
    assert (replaced.status, replaced.json["error"]["param"]) == (400, "request_id")
    assert sum(len(each.seen) for each in engines) == before
    for at in (0, 1):
        assert (await answer(at, "mine", on)).status == 200
        assert (await answer(at, "mine", b"", f"{RESPONSES}/{made}", method="GET")).json["id"] == made
    open_gateway = await start_gateway(*engines)
    nobodys = (await call(open_gateway.port, ask())).json["id"]
    assert (await answer(0, "theirs", b"", f"{RESPONSES}/{nobodys}", method="GET")).status == 200


async def test_a_cancellation_waits_for_no_room(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    store = Stored(engine)
    store.made.append("resp_1")
    gateway = await start_gateway(engine, engine_capacity=1, queue_limit=0)
    async with await Client.connect(gateway.port) as busy:
        engine.scripts = [[HANG]]
        busy.send(request())
        await engine.wait_seen(1)
        assert (await call(gateway.port)).status == 429
        assert (await call(gateway.port, request(b"", path=f"{RESPONSES}/resp_1/cancel"))).status == 200


# Anthropic's shape of errors, and routes without a difference


def anthropic_error(answer: Answer) -> tuple[str, str]:
    found = answer.json
    assert found["type"] == "error"
    return found["error"]["type"], found["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_errors_of_anthropics_routes_have_its_shape(
    engine: ScriptedEngine, start_gateway: StartGateway, path: str
) -> None:
    gateway = await start_gateway(engine, require_api_key=False)
    kind, said = anthropic_error(await call(gateway.port, request({"model": "huge"}, path=path)))
    assert kind == "not_found_error"
    assert "huge" in said
    assert anthropic_error(await call(gateway.port, request(b"{", path=path)))[0] == "invalid_request_error"
    for body, status, wanted in (
        (b'{"error":{"message":"too long","type":"BadRequestError","code":400}}', "400 Bad Request", "too long"),
        (b'{"detail":"Not Found"}', "404 Not Found", "Not Found"),
        (b"busy", "429 Too Many Requests", "busy"),
    ):
        engine.script = [reply(body, status)]
        assert anthropic_error(await call(gateway.port, request({"model": "tiny"}, path=path)))[1] == wanted
    own = b'{"type":"error","error":{"type":"x","message":"y"}}'
    engine.script = [reply(own, "400 Bad Request")]
    assert (await call(gateway.port, request({"model": "tiny"}, path=path))).body == own

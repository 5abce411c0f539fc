"""What a client may send, and the one clear error for everything else."""

import asyncio

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, call, request
from tests.support.gateway_server import GatewayThread
from tests.support.scripted_engine import ScriptedEngine

BAD_BODIES = [
    (b"{", 400, "invalid_json", None),
    (b"", 400, "invalid_json", None),
    (b"[]", 400, "invalid_json", None),
    (b"null", 400, "invalid_json", None),
    (b'"tiny"', 400, "invalid_json", None),
    (b"\xff\xfe", 400, "invalid_json", None),
    (b'{"model":"tiny"} x', 400, "invalid_json", None),
    (b"[" * 60_000, 400, "invalid_json", None),
    (b"[" * 100_000, 413, "body_too_complex", None),
    (b'{"model":7}', 400, "invalid_field", "model"),
    (b'{"model":false}', 400, "invalid_field", "model"),
    (b'{"model":["tiny"]}', 400, "invalid_field", "model"),
    (b'{"model":"tiny","stream":"maybe"}', 400, "invalid_field", "stream"),
    (b'{"model":"tiny","stream":2}', 400, "invalid_field", "stream"),
    (b'{"model":"huge"}', 404, "model_not_found", "model"),
]


async def test_a_bad_body_is_named(engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests) -> None:
    for body, status, code, param in BAD_BODIES:
        with subtests.test(body=body[:40]):
            async with await Client.connect(gateway.port, request(body)) as client:
                answer = await client.answer()
                assert (answer.status, answer.code, answer.json["error"]["param"]) == (status, code, param)
                assert answer.headers["x-request-id"]
                client.send(request())
                assert (await client.answer()).status == 200  # the connection is still good
    assert len(engine.seen) == len(BAD_BODIES)


async def test_header_values_beyond_ascii_reach_the_engine_as_they_came(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    odd = b"x-odd: \xe9\xff\t!\r\nx-traffic-class: \xe9\r\nauthorization: Bearer \xff\r\nx-request-id: \xff\r\n"
    answer = await call(gateway.port, request().replace(b"\r\n", b"\r\n" + odd, 1))
    assert answer.status == 200
    assert answer.headers["x-specpilot-class"] == "default"
    assert engine.seen[0].headers["x-odd"] == "\xe9\xff\t!"


async def test_a_target_in_absolute_form_is_its_path(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    answer = await call(gateway.port, request(path="http://gateway:80/v1/chat/completions?x=1"))
    assert answer.status == 200
    assert engine.seen[0].path == "/v1/chat/completions"
    for path in (
        "http://gateway/speculation", "http://x//speculation", "http://gateway", "http://x?/v1/chat/completions",
        "http://x#/v1/chat/completions", "http://x:99999/", "http://[::1]", "?x", "*",
    ):  # fmt: skip
        assert (await call(gateway.port, request(path=path))).status in (400, 404), path
    assert (await call(gateway.port, request(path="http://gateway/health", method="GET"))).status == 200
    assert len(engine.seen) == 1


async def test_a_request_split_at_every_byte_is_understood(gateway: GatewayThread) -> None:
    async with await Client.connect(gateway.port) as client:
        for byte in request():
            client.send(bytes([byte]))
            await asyncio.sleep(0.001)
        assert (await client.answer()).status == 200


async def test_100_continue(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    whole = request(headers="expect: 100-continue\r\n")
    head, _, body = whole.partition(b"\r\n\r\n")
    async with await Client.connect(gateway.port, head + b"\r\n\r\n") as client:
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.answer()).status == 200
    assert "expect" not in engine.seen[0].headers


async def test_100_continue_is_not_sent_for_what_will_be_refused(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, max_body_bytes=1024)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n"
    assert (await call(gateway.port, head)).status == 413


async def test_a_page_does_not_wait_for_a_body_that_may_never_come(gateway: GatewayThread) -> None:
    whole = request(b"{}", path="/health", method="GET", headers="expect: 100-continue\r\n")
    answer = await call(gateway.port, whole.removesuffix(b"{}"))
    assert (answer.status, answer.headers["connection"]) == (200, "close")


async def test_a_wrong_method_is_named(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests
) -> None:
    for method in ("GET", "PUT", "DELETE", "PATCH", "OPTIONS"):
        with subtests.test(method=method):
            answer = await call(gateway.port, request(method=method))
            assert (answer.status, answer.code) == (405, "method_not_allowed")
            assert answer.headers["allow"] == "POST"
            answer = await call(gateway.port, request(method=method if method != "GET" else "POST", path="/v1/models"))
            assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert engine.seen == []


async def test_a_bad_request_id_is_replaced(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    for sent in ("", "x-request-id: \r\n", f"x-request-id: {'a' * 300}\r\n", "x-request-id: a b\r\n"):
        answer = await call(gateway.port, request(headers=sent))
        assert answer.headers["x-request-id"].startswith("req-")
    assert len({seen.headers["x-request-id"] for seen in engine.seen}) == 4

"""White space around a header's value is no part of it (RFC 9110, 5.5). All routes read credentials alike."""

from itertools import permutations

import pytest

from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.policy.model_policy import ClassPolicy, Policy, VersionedPolicy
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, call, request
from tests.support.gateway_server import GatewayThread
from tests.support.scripted_engine import ScriptedEngine

BLANKS = ["", " ", "\t", " \t "]


@pytest.fixture
async def locked(engine: ScriptedEngine, start_gateway: StartGateway) -> GatewayThread:
    return await start_gateway(
        engine, keys=[{"key_id": "k", "key": "sk-1"}], admin_token="sk-1", allowed_origins=("https://app.example",)
    )


GOOD = [
    ["authorization: Bearer sk-1"],
    ["authorization: bearer  sk-1"],
    ["x-api-key: sk-1"],
    ["api-key: sk-1"],
    ["authorization: Bearer ", "x-api-key: sk-1"],
    ["authorization: Bearer", "api-key: sk-1"],
    ["authorization: Basic c2stMg==", "x-api-key: sk-1"],
    ["authorization: ", "x-api-key: sk-1"],
    ["x-api-key: ", "api-key: sk-1"],
    ["authorization: Bearer sk-1", "x-api-key: sk-2"],
]
BAD = [
    [],
    ["authorization: Bearer "],
    ["x-api-key: "],
    ["authorization: Basic sk-1"],
    ["authorization: sk-1"],
    ["authorization: Bearer sk-2", "x-api-key: sk-1"],
]


async def statuses(port: int, lines: list[str]) -> set[int]:
    headers = "".join(f"{line}\r\n" for line in lines)
    sent = [request(headers=headers)]
    sent += [
        request(b"", path=path, method=method, headers=headers)
        for path in ("/v1/models", "/v1/models/tiny", "/admin/config")
        for method in ("GET", "HEAD")
    ]
    found = set()
    for data in sent:
        async with await Client.connect(port, data) as client:
            found.add((await client.answer(is_head=data.startswith(b"HEAD"))).status)
    return found


@pytest.mark.parametrize("blank", ["", " \t"])
async def test_every_route_reads_credentials_alike_in_any_order(
    locked: GatewayThread, subtests: pytest.Subtests, blank: str
) -> None:
    for status, cases in ((200, GOOD), (401, BAD)):
        for lines in cases:
            for ordered in permutations(lines):
                with subtests.test(lines=ordered):
                    assert await statuses(locked.port, [line + blank for line in ordered]) == {status}


async def test_a_request_that_waits_behind_another_is_read_alike(engine: ScriptedEngine, locked: GatewayThread) -> None:
    async with await Client.connect(locked.port) as client:
        client.send(request(headers="authorization: Bearer \r\nx-api-key: sk-1 \r\n") * 2)
        assert [(await client.answer()).status for _ in range(2)] == [200, 200]
    assert len(engine.seen) == 2


@pytest.mark.parametrize("blank", BLANKS)
async def test_blanks_behind_every_header_that_is_read(
    engine: ScriptedEngine, locked: GatewayThread, blank: str
) -> None:
    policy = VersionedPolicy(1, 1.0, Policy("tiny", classes={"code": ClassPolicy()}))
    await locked.adopt(Snapshot(policies={"tiny": policy}))
    lines = {
        "x-request-id": "r-1",
        "x-traffic-class": "code",
        "x-specpilot-k-max": "2",
        "x-session-id": "s",
        "origin": "https://app.example",
        "content-encoding": "identity",
        "connection": "close",
        "expect": "100-continue",
    }
    answer = await call(locked.port, request(headers="".join(f"{name}: {lines[name]}{blank}\r\n" for name in lines)))
    assert answer.status == 200
    assert answer.headers["x-request-id"] == engine.seen[0].headers["x-request-id"] == "r-1"
    assert answer.headers["x-specpilot-class"] == "code"
    assert answer.headers["x-specpilot-k-max"] == "2"
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert answer.headers["connection"] == "close"
    asked = f"origin: https://app.example{blank}\r\naccess-control-request-method: POST{blank}\r\n"
    preflight = request(b"", method="OPTIONS", headers=asked)
    for path in (b"/v1/chat/completions", b"/v1/models"):
        answer = await call(locked.port, preflight.replace(b"/v1/chat/completions", path))
        assert answer.headers["access-control-allow-origin"] == "https://app.example"

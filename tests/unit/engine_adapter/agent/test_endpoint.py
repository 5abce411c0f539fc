"""The control route's guard: which calls may read and write the schedule of an engine."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from specpilot.engine_adapter.agent.core_methods import APPLY_METHOD, DRAIN_METHOD, STATE_METHOD
from specpilot.engine_adapter.agent.endpoint import PATH, SpeculationEndpoint


class Core:
    """Stands for vLLM's engine core client: records the calls and answers like the adapter's methods, by rank."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.core_engines = [bytes([rank]) for rank in range(len(answers))]
        self.calls: list[tuple[str, ...]] = []

    async def _call_utility_async(self, *call: str, engine: bytes) -> str:
        self.calls.append(call)
        return json.dumps(self.answers[engine[0]])


async def send(
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    *,
    token: str | None,
    host: str,
    trusts: bool = True,
    proxies: str | None = None,
    ranks: Sequence[Any] = (),
    **request: Any,
) -> tuple[Response, Core]:
    """Call the route from `host`; the server trusts what the `proxies` say, as with `FORWARDED_ALLOW_IPS`."""
    monkeypatch.setenv("SPECPILOT_ENGINE_TRUST_THIS_MACHINE", str(int(trusts)))
    monkeypatch.delenv("SPECPILOT_ENGINE_CONTROL_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("SPECPILOT_ENGINE_CONTROL_TOKEN", token)
    core = Core(*ranks or ({"version": 1},))
    plugin, app = SpeculationEndpoint(), FastAPI()
    plugin.attach_router(app)
    await plugin.init_state(SimpleNamespace(engine_core=core), None, None)  # type: ignore[arg-type]
    served: Any = ProxyHeadersMiddleware(app, trusted_hosts=proxies) if proxies else app
    transport = ASGITransport(served, client=(host, 1))
    async with AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        return await client.request(method, PATH, **request), core


@pytest.mark.parametrize(
    ("token", "host", "header", "status"),
    [
        ("secret", "10.0.0.7", "Bearer secret", 200),
        ("secret", "127.0.0.1", "Bearer secret", 200),
        ("secret", "127.0.0.1", "bearer  secret\t ", 200),
        ("secret", "127.0.0.1", "Bearer wrong", 401),
        ("secret", "127.0.0.1", "Bearer ", 401),
        ("secret", "127.0.0.1", "Basic secret", 401),
        ("secret", "127.0.0.1", "secret", 401),
        ("secret", "127.0.0.1", None, 401),
        (None, "127.0.0.1", None, 200),
        (None, "::1", None, 200),
        (None, "::ffff:127.0.0.1", None, 200),
        (None, "10.0.0.7", None, 403),
        (None, "::ffff:10.0.0.7", None, 403),
        (None, "", None, 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_which_calls_are_served(
    monkeypatch: pytest.MonkeyPatch, method: str, token: str | None, host: str, header: str | None, status: int
) -> None:
    headers = {} if header is None else {"Authorization": header}
    reply, core = await send(monkeypatch, method, token=token, host=host, headers=headers, content=b"{}")
    assert reply.status_code == status
    expected = [(STATE_METHOD,)] if method == "GET" else [(APPLY_METHOD, "{}")]
    assert core.calls == (expected if status == 200 else [])
    if status != 200:
        assert "secret" not in reply.text
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.7"])
async def test_without_a_token_every_call_is_rejected_unless_this_machine_is_trusted(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    reply, core = await send(monkeypatch, "PUT", token=None, host=host, trusts=False, content=b"{}")
    assert (reply.status_code, reply.json()["error"]["code"], core.calls) == (403, "control_token_needed", [])
    assert "SPECPILOT_ENGINE_CONTROL_TOKEN" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("host", "proxies", "headers"),
    [
        ("127.0.0.1", None, {"X-Forwarded-For": "203.0.113.5"}),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-For": "203.0.113.5"}),
        ("127.0.0.1", "127.0.0.1", {"X-Forwarded-For": "unknown"}),
        ("10.0.0.7", "*", {"X-Forwarded-For": "127.0.0.1"}),
        ("127.0.0.1", None, {"Via": "1.1 proxy"}),
        ("127.0.0.1", None, {"Host": "engine.example"}),
        ("127.0.0.6", None, {"Host": "10.0.0.4:8000"}),
        ("127.0.0.1", None, {"Origin": "http://evil.example"}),
    ],
)
async def test_neither_a_proxy_nor_a_page_opens_a_machine_that_is_trusted(
    monkeypatch: pytest.MonkeyPatch, host: str, proxies: str | None, headers: dict[str, str]
) -> None:
    reply, core = await send(monkeypatch, "PUT", token=None, host=host, proxies=proxies, headers=headers, content=b"{}")
    assert (reply.status_code, reply.json()["error"]["code"], core.calls) == (403, "control_token_needed", [])


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_every_data_parallel_rank_is_asked_and_answers(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    states = [{"engine_id": f"e-dp{rank}"} for rank in range(3)]
    reply, core = await send(monkeypatch, method, token=None, host="127.0.0.1", ranks=states, content=b"{}")
    assert (reply.status_code, reply.json()) == (200, {"ranks": states})
    assert core.calls == 3 * ([(STATE_METHOD,)] if method == "GET" else [(APPLY_METHOD, "{}")])


@pytest.mark.parametrize("others", [(), ({"version": 2},)])
@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (
            {"error": {"status": 409, "code": "schedule_not_newer", "message": "version: is 1"}},
            409,
            "schedule_not_newer",
        ),
        ({"error": {"status": 422, "code": "k_above_k_max", "message": "k: is 9"}}, 422, "k_above_k_max"),
        (None, 501, "adapter_missing"),
        (False, 501, "adapter_missing"),
    ],
)
async def test_a_schedule_that_one_rank_refuses_is_answered_with_that_refusal(
    monkeypatch: pytest.MonkeyPatch, others: tuple[Any, ...], refusal: Any, status: int, code: str
) -> None:
    ranks = [*others, refusal]
    reply, _ = await send(monkeypatch, "PUT", token=None, host="127.0.0.1", ranks=ranks, content=b"{}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("answers", "expected"), [((False, True), True), ((False, False), False), ((None, None), None), ((True,), True)]
)
async def test_a_server_drains_all_its_ranks_and_runs_while_one_has_requests(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[bool | None, ...], expected: bool | None
) -> None:
    monkeypatch.delenv("SPECPILOT_ENGINE_CONTROL_TOKEN", raising=False)
    core, plugin = Core(*answers), SpeculationEndpoint()
    await plugin.init_state(SimpleNamespace(engine_core=core), None, None)  # type: ignore[arg-type]
    assert await plugin._begin_drain() is expected
    assert core.calls == [(DRAIN_METHOD,)] * len(answers)

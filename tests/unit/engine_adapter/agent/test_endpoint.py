"""The control route's guard: who may read and write the schedule of an engine."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient, Response

from specpilot.engine_adapter.agent.core_methods import APPLY_METHOD, STATE_METHOD
from specpilot.engine_adapter.agent.endpoint import PATH, SpeculationEndpoint


class Core:
    """Stands for vLLM's engine core client: records the calls and answers like the adapter's methods."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[str, ...]] = []

    async def call_utility_async(self, *call: str) -> str:
        self.calls.append(call)
        return json.dumps(self.answer)


async def send(
    monkeypatch: pytest.MonkeyPatch, method: str, *, token: str | None, host: str, answer: Any = None, **request: Any
) -> tuple[Response, Core]:
    monkeypatch.delenv("SPECPILOT_ENGINE_CONTROL_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("SPECPILOT_ENGINE_CONTROL_TOKEN", token)
    core = Core({"version": 1} if answer is None else answer)
    plugin, app = SpeculationEndpoint(), FastAPI()
    plugin.attach_router(app)
    await plugin.init_state(SimpleNamespace(engine_core=core), None, None)  # type: ignore[arg-type]
    transport = ASGITransport(app, client=(host, 1))
    async with AsyncClient(transport=transport, base_url="http://engine") as client:
        return await client.request(method, PATH, **request), core


@pytest.mark.parametrize(
    ("token", "host", "header", "status"),
    [
        ("secret", "10.0.0.7", "Bearer secret", 200),
        ("secret", "127.0.0.1", "Bearer secret", 200),
        ("secret", "127.0.0.1", "Bearer wrong", 401),
        ("secret", "127.0.0.1", "secret", 401),
        ("secret", "127.0.0.1", None, 401),
        (None, "127.0.0.1", None, 200),
        (None, "::1", None, 200),
        (None, "10.0.0.7", None, 403),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_who_is_let_in(
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


async def test_a_refusal_of_the_engine_keeps_its_status_and_words(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = {"error": {"status": 409, "code": "schedule_not_newer", "message": "version: is 1"}}
    reply, _ = await send(monkeypatch, "PUT", token=None, host="127.0.0.1", answer=refusal, content=b"{}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "schedule_not_newer")


async def test_an_engine_without_the_adapters_scheduler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reply, _ = await send(monkeypatch, "GET", token=None, host="127.0.0.1", answer=False)
    assert reply.status_code == 501

"""A gateway's headers: their meaning, the callers that may send them, and that they reach every task of the request."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from specpilot.engine_adapter.agent.endpoint import SpeculationEndpoint
from specpilot.engine_adapter.agent.gateway_headers import read_arguments, stated_arguments

CODE = (b"x-traffic-class", b"code")


@pytest.mark.parametrize(
    ("headers", "arguments"),
    [
        ([], {}),
        ([CODE], {"traffic_class": "code"}),
        ([(b"x-traffic-class", b"\t code ")], {"traffic_class": "code"}),
        ([(b"x-traffic-class", b"No Class")], {}),
        ([(b"x-traffic-class", b'x"},"a":{"')], {}),
        ([(b"x-traffic-class", b"\xe9")], {}),
        ([(b"x-traffic-class", b"mine"), CODE], {"traffic_class": "code"}),
        ([CODE, (b"x-specpilot-k-max", b"2")], {"traffic_class": "code", "k_max": 2}),
        ([(b"x-specpilot-k-max", b" 0 ")], {"k_max": 0}),
        *(([(b"x-specpilot-k-max", value)], {}) for value in (b"", b"-1", b"1.0", b"\xb2", b"9" * 5)),
    ],
)
def test_what_headers_state(headers: list[tuple[bytes, bytes]], arguments: dict[str, Any]) -> None:
    assert read_arguments(headers, None) == arguments


@pytest.mark.parametrize(
    ("authorization", "is_gateways"),
    [
        (b"Bearer sk-gateway", True),
        (b"bearer  sk-gateway\t", True),
        (b"Bearer sk-client", False),
        (b"Basic sk-gateway", False),
        (b"sk-gateway", False),
        (None, False),
    ],
)
def test_with_a_gateways_key_no_other_caller_states_a_class(authorization: bytes | None, is_gateways: bool) -> None:
    headers = [CODE, (b"x-specpilot-k-max", b"2")]
    if authorization is not None:
        headers.append((b"authorization", authorization))
    expected = {"traffic_class": "code" if is_gateways else "default", "k_max": 2}
    assert read_arguments(headers, "sk-gateway") == expected


async def read(request: Request) -> Response:
    """Answer with what is stated here, in a task, and where a stream's body is made."""

    async def found() -> dict[str, Any]:
        return {**stated_arguments()}

    async def body() -> AsyncIterator[bytes]:
        yield json.dumps(await found()).encode()

    if "stream" in request.query_params:
        return StreamingResponse(body())
    return JSONResponse(await asyncio.create_task(found()))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """vLLM's application as it is made: its routes, the plugin, then vLLM's own middlewares around both."""
    monkeypatch.setenv("SPECPILOT_ENGINE_GATEWAY_KEY", "sk-gateway")
    app = FastAPI()
    app.add_route("/v1/chat/completions", read, methods=["POST"])
    SpeculationEndpoint().attach_router(app)

    @app.middleware("http")
    async def other(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    return app


@pytest.mark.parametrize("query", ["", "?stream=1"])
async def test_each_request_has_its_own_wherever_vllm_reads_it(engine: FastAPI, query: str) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(engine), base_url="http://engine") as client:
        url = "/v1/chat/completions" + query
        given = {"authorization": "Bearer sk-gateway", "x-traffic-class": "code"}
        assert (await client.post(url, headers=given)).json() == {"traffic_class": "code"}
        assert (await client.post(url, headers=given | {"x-traffic-class": ""})).json() == {}
        assert (await client.post(url, headers={"x-traffic-class": "code"})).json() == {"traffic_class": "default"}
    assert stated_arguments() == {}

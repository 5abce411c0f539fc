"""The class header, in a real Starlette application as vLLM adds it: what arrives, and that nothing else changes."""

import json
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from specpilot.engine_adapter.agent.class_header import PATHS, ClassHeaderMiddleware, marked
from specpilot.engine_adapter.agent.route_path import route_path
from specpilot.gateway.wire.routes import MARKED

CHAT = "/v1/chat/completions"


async def echo(request: Request) -> JSONResponse:
    body = await request.body()
    return JSONResponse({"body": body.decode(), "length": request.headers.get("content-length")})


APP = Starlette(routes=[Route(path, echo, methods=["POST"]) for path in (*PATHS, "/v1/embeddings")])
APP.add_middleware(ClassHeaderMiddleware)


async def post(path: str, body: Any, **headers: str) -> dict[str, Any]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APP), base_url="http://engine") as client:
        found: dict[str, Any] = (await client.post(path, content=body, headers=headers)).json()
        return found


async def test_the_header_becomes_the_field_and_the_length_fits() -> None:
    found = await post(CHAT, b'{"model": "m", "x": 1e400}', **{"X-Traffic-Class": "code"})
    assert found["body"] == '{"vllm_xargs":{"traffic_class":"code"},"model": "m", "x": 1e400}'
    assert found["length"] == str(len(found["body"]))


@pytest.mark.parametrize("prefix", ["", "/x"])
async def test_a_prefix_of_the_path_that_a_proxy_leaves_on_it_changes_nothing(prefix: str) -> None:
    app = FastAPI(root_path="/x")
    app.add_route(CHAT, echo, methods=["POST"])
    app.add_middleware(ClassHeaderMiddleware)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
        found = await client.post(prefix + CHAT, content=b"{}", headers={"X-Traffic-Class": "code"})
    assert json.loads(found.json()["body"]) == {"vllm_xargs": {"traffic_class": "code"}}


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [("", "/a", "/a"), ("/x", "/x/a", "/a"), ("/x", "/a", "/a"), ("/x", "/xa", "/xa"), ("/x", "/x", "/x")],
)
def test_the_path_within_the_application(root: str, path: str, expected: str) -> None:
    assert route_path({"path": path, "root_path": root}) == expected


async def pieces() -> Any:
    yield b'{"model"'
    yield b': "m"}'


async def test_a_body_in_pieces_is_put_together() -> None:
    found = await post(CHAT, pieces(), **{"X-Traffic-Class": "code"})
    assert json.loads(found["body"]) == {"model": "m", "vllm_xargs": {"traffic_class": "code"}}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        (CHAT, {}),
        (CHAT, {"X-Traffic-Class": "No Class"}),
        (CHAT, {"X-Traffic-Class": 'x"},"a":{"'}),
        ("/v1/embeddings", {"X-Traffic-Class": "code"}),
    ],
)
async def test_everything_else_passes_as_it_is(path: str, headers: dict[str, str]) -> None:
    found = await post(path, b'{"model":"m"}', **headers)
    assert found == {"body": '{"model":"m"}', "length": "13"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"vllm_xargs": {"traffic_class": "mine", "top": 1}, "model": "m"}',
        b'{"model": "m", "vllm_xargs": {"top": 1}}',
        b'{"model": "m", "vllm\\u005fxargs": {"traffic_class": "mine", "top": 1}}',
    ],
)
def test_a_clients_own_class_is_replaced_and_its_other_arguments_stay(body: bytes) -> None:
    assert json.loads(marked(body, "code")) == {"model": "m", "vllm_xargs": {"traffic_class": "code", "top": 1}}


@pytest.mark.parametrize("body", [b"", b"[1]", b"null", b'{"vllm_xargs": {', b'"{"'])
def test_what_is_no_object_is_left_to_vllm(body: bytes) -> None:
    assert marked(body, "code") == body


def test_an_empty_object_stays_one() -> None:
    assert json.loads(marked(b" { } ", "code")) == {"vllm_xargs": {"traffic_class": "code"}}


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.dictionaries(st.text(), st.text())))
def test_any_object_keeps_its_fields(document: dict[str, Any]) -> None:
    found = json.loads(marked(json.dumps(document).encode(), "code"))
    assert found.pop("vllm_xargs")["traffic_class"] == "code"
    document.pop("vllm_xargs", None)
    assert found == document


def test_the_routes_are_those_that_the_gateway_marks() -> None:
    assert PATHS == MARKED

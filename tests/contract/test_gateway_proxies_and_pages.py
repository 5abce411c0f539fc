"""What proxies and browsers in front need: headers of streams, preflights, spellings of paths, HEAD."""

import asyncio
import shutil
import subprocess
import time
from email.utils import parsedate_to_datetime
from itertools import product
from pathlib import Path

import pytest

from specpilot.gateway.wire.routes import PROXIED, STORED
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import PATH, STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    chunk,
    completion,
    event,
    reply,
    stream,
)
from tests.support.stack import free_port
from tests.support.stream_events import OPEN_HEAD

ITS_OWN = SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncache-control: max-age=9\r\nX-Accel-Buffering: yes\r\n\r\n")
STREAMS: dict[str, Script] = {
    "chunked": stream("a"),
    "open": [OPEN_HEAD, event("a"), DONE, CLOSE],
    "of another mind": [ITS_OWN, *stream("a")[1:]],
    "kept alive": [SSE_HEAD, chunk(b": ka\n\n"), 0.02, *stream("a")[1:]],
}


async def test_a_stream_asks_proxies_not_to_gather_it(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests
) -> None:
    for kind, version in product(STREAMS, (b"HTTP/1.1", b"HTTP/1.0")):
        with subtests.test(kind=kind, version=version):
            engine.script = STREAMS[kind]
            answer = await call(gateway.port, request(STREAM).replace(b"HTTP/1.1", version))
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["cache-control"] == "no-cache, no-transform"


NGINX = """
daemon off;
error_log stderr;
pid {folder}/pid;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u;
  scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{gateway}; proxy_http_version 1.1; proxy_read_timeout 2s; }}
  }}
}}
"""


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
async def test_nginx_with_its_defaults_delivers_events_at_once_and_does_not_give_up_on_a_prefill(
    engine: ScriptedEngine, gateway: GatewayThread, tmp_path: Path
) -> None:
    port = free_port()
    (tmp_path / "nginx.conf").write_text(NGINX.format(folder=tmp_path, port=port, gateway=gateway.port))
    command = ["nginx", "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"]
    server = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    client = await Client.connect(port)
                    break
                except OSError:
                    await asyncio.sleep(0.05)
        gates = [asyncio.Event() for _ in range(8)]
        engine.script = [SSE_HEAD, *(step for gate in gates for step in (gate, chunk(event("abcdefgh")))), HANG]
        async with client:
            client.send(request(STREAM))
            await engine.wait_seen(1)
            for gate in gates:  # each event is there before the next one is sent
                gate.set()
                assert await client.reader.readuntil(event("abcdefgh"))
        engine.script = [SSE_HEAD, *[0.5, chunk(b": keep-alive\n\n")] * 6, *stream("late")[1:]]
        async with await Client.connect(port, request(STREAM)) as client:
            answer = await client.answer()
            assert (answer.status, answer.body.endswith(DONE)) == (200, True)
    finally:
        server.terminate()
        await server.wait()


PAGE = "https://app.example"
PREFLIGHT = (
    f"origin: {PAGE}\r\naccess-control-request-method: POST\r\n"
    "access-control-request-headers: authorization, content-type, x-stainless-lang\r\n"
)
ROUTES = [*sorted(PROXIED - STORED), "/v1/models", "/v1/models/tiny", "/health", "/ready", "/v1/responses/resp_1"]


async def test_a_preflight_of_an_allowed_page_is_answered(
    engine: ScriptedEngine, start_gateway: StartGateway, subtests: pytest.Subtests
) -> None:
    gateway = await start_gateway(engine, allowed_origins=(PAGE, "http://localhost:3000"))
    for path in ROUTES:
        async with await Client.connect(gateway.port) as client:
            for _ in range(2):
                with subtests.test(path=path):
                    client.send(request(b"", path=path, method="OPTIONS", headers=PREFLIGHT))
                    answer = await client.answer()
                    assert answer.status in (200, 204)
                    assert answer.headers["access-control-allow-origin"] == PAGE
                    assert answer.headers["access-control-allow-credentials"] == "true"
                    assert "POST" in answer.headers["access-control-allow-methods"]
                    allowed = answer.headers["access-control-allow-headers"].lower()
                    assert all(name in allowed for name in ("authorization", "content-type", "x-stainless-lang"))
                    assert "origin" in answer.headers["vary"].lower()
    assert engine.seen == []


async def test_what_no_page_sends_is_no_preflight(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    """And a cache must not give its answer to a page."""
    gateway = await start_gateway(engine, allowed_origins=(PAGE,))
    asking = "access-control-request-method: POST\r\n"
    answer = await call(gateway.port, request(b"", path="/v1/models", method="OPTIONS", headers=asking))
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert (await call(gateway.port, request(path="/v1/models", method="GET"))).headers["vary"] == "origin"


async def test_an_allowed_page_may_reach_a_private_network_and_any_page_may_not(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    asking = f"{PREFLIGHT}access-control-request-private-network: true\r\n"
    for allowed in (PAGE, "*"):
        gateway = await start_gateway(engine, allowed_origins=(allowed,))
        answer = await call(gateway.port, request(b"", method="OPTIONS", headers=asking))
        is_allowed = answer.headers.get("access-control-allow-private-network") == "true"
        assert is_allowed == (allowed == PAGE)
        assert (answer.status == 200) == is_allowed


OF_ENGINE = "access-control-allow-origin: *\r\naccess-control-expose-headers: x\r\n"


async def answers_to_a_page(engine: ScriptedEngine, gateway: GatewayThread, origin: str) -> list[dict[str, str]]:
    engine.script = [reply(completion(), extra=OF_ENGINE)]
    header = f"origin: {origin}\r\n"
    found = [await call(gateway.port, request(headers=header))]
    engine.script = [SSE_HEAD.replace(b"\r\n\r\n", b"\r\n" + OF_ENGINE.encode() + b"\r\n"), *stream("a")[1:]]
    found.append(await call(gateway.port, request(STREAM, headers=header)))
    engine.script = [reply(b"no", "400 Bad Request", extra=OF_ENGINE)]
    found.append(await call(gateway.port, request(headers=header)))
    found.append(await call(gateway.port, request(b"{", headers=header)))
    pages = [request(b"", path=path, method="GET", headers=header) for path in ("/v1/models", "/health", "/nowhere")]
    found += [await call(gateway.port, page) for page in pages]
    assert all("origin" not in seen.headers for seen in engine.seen)
    return [answer.headers for answer in found]


async def test_every_answer_to_an_allowed_page_names_its_origin_once(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, allowed_origins=(PAGE,))
    for headers in await answers_to_a_page(engine, gateway, PAGE):
        assert headers["access-control-allow-origin"] == PAGE
        assert headers["access-control-allow-credentials"] == "true"
        assert "x-request-id" in headers["access-control-expose-headers"]
        assert "origin" in headers["vary"].lower()


async def test_any_page_may_ask_without_credentials(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, allowed_origins=("*",))
    for headers in await answers_to_a_page(engine, gateway, "https://elsewhere.example"):
        assert headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in headers


@pytest.mark.parametrize("allowed", [(), (PAGE,)])
async def test_no_other_page_may_read_an_answer(
    engine: ScriptedEngine, start_gateway: StartGateway, allowed: tuple[str, ...]
) -> None:
    gateway = await start_gateway(engine, allowed_origins=allowed)
    for origin in ("https://evil.example", "https://app.example.evil", "http://app.example", "null"):
        for headers in await answers_to_a_page(engine, gateway, origin):
            assert not any(name.startswith("access-control-allow-origin") for name in headers)
        answer = await call(gateway.port, request(b"", method="OPTIONS", headers=PREFLIGHT.replace(PAGE, origin)))
        assert answer.status in (400, 405)
        assert "access-control-allow-origin" not in answer.headers


async def test_slashes_too_many_are_taken_for_one(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests
) -> None:
    for path in sorted(PROXIED - STORED):
        spelt = [form.format(path) for form in ("{}/", "/{}", "{}//", "//{}//")]
        for target in (path.replace("/", "//"), *spelt, *(target + "?x=1" for target in (path, *spelt))):
            with subtests.test(target=target):
                assert (await call(gateway.port, request(path=target))).status == 200
                assert engine.seen[-1].path == path
                assert engine.seen[-1].headers["x-traffic-class"] == "default"


async def test_slashes_too_many_on_pages(gateway: GatewayThread) -> None:
    for path, kind in (("/v1/models", "list"), ("/v1/models/tiny", "model")):
        for target in (path + "/", path.replace("/v1/", "//v1//"), path.replace("/v1/", "/v1//")):
            answer = await call(gateway.port, request(b"", path=target, method="GET"))
            assert (answer.status, answer.json["object"]) == (200, kind), target
    for path in ("/health/", "//ready", "/metrics/"):
        assert (await call(gateway.port, request(b"", path=path, method="GET"))).status == 200
    for path in ("/collective_rpc/", "//speculation", "/v1/nothing/"):
        assert (await call(gateway.port, request(path=path))).status == 404
    assert (await call(gateway.port, request(b"", path="/v1/chat/completions/", method="GET"))).status == 405


async def test_a_stored_response_by_a_path_with_slashes_too_many(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    for target in ("/v1/responses/resp_1/", "//v1/responses//resp_1?stream=false"):
        assert (await call(gateway.port, request(b"", path=target, method="GET"))).status == 200
    assert [seen.path for seen in engine.seen] == ["/v1/responses/resp_1", "/v1/responses/resp_1?stream=false"]


async def test_head_is_get_without_a_body(gateway: GatewayThread, subtests: pytest.Subtests) -> None:
    for path in ("/health", "/ready", "/ping", "/v1/models", "/v1/models/tiny", "/metrics"):
        with subtests.test(path=path):
            async with await Client.connect(gateway.port) as client:
                client.send(request(b"", path=path, method="HEAD") + request(b"", path=path, method="GET"))
                head = await client.answer(is_head=True)
                got = await client.answer()
                assert (head.status, got.status) == (200, 200)
                assert head.headers["content-type"] == got.headers["content-type"]
                assert abs(parsedate_to_datetime(got.headers["date"]).timestamp() - time.time()) < PATIENCE_S
                assert got.body


async def test_head_of_what_is_not_ready_or_not_there(start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine=("http://127.0.0.1:9",))
    async with await Client.connect(gateway.port) as client:
        for path, status in (("/ready", 503), ("/v1/models/none", 404), ("/nowhere", 404), (PATH, 405)):
            client.send(request(b"", path=path, method="HEAD"))
            assert (await client.answer(is_head=True)).status == status
        client.send(request(path="/health", method="GET"))
        assert (await client.answer()).json == {"status": "ok"}  # none of them had a body

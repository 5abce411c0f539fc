"""Engines, or proxies before them, that compress although they were asked not to."""

import asyncio
import gzip
import zlib
from collections.abc import Callable

import orjson
import pytest
from backports import zstd

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread
from tests.support.scripted_engine import (
    CLOSE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    Step,
    chunk,
    completion,
    event,
    reply,
    usage_event,
)
from tests.support.stream_events import OPEN_HEAD

OWN = b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}'
CODINGS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP ": gzip.compress,
    "deflate": zlib.compress,
    "zstd": zstd.compress,
    "deflate, gzip": lambda data: gzip.compress(zlib.compress(data)),
    "identity": bytes,
}


def coded(body: bytes, coding: str, status: str = "400 Bad Request", kind: str = "application/json") -> list[Step]:
    return [reply(body, status, kind, f"content-encoding: {coding}\r\n")]


@pytest.mark.parametrize("coding", CODINGS)
async def test_a_compressed_error_is_read(engine: ScriptedEngine, gateway: GatewayThread, coding: str) -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        for body, message in ((OWN, "no"), (b'{"detail":"Not Found"}', "Not Found"), ("Größe".encode(), "Größe")):
            engine.script = coded(CODINGS[coding](body), coding)
            answer = await call(gateway.port, request(path=path))
            assert answer.status == 400
            assert answer.headers.get("content-encoding", "identity") == "identity"
            assert answer.json["error"]["message"] == message
    engine.script = coded(CODINGS[coding](OWN), coding)
    assert (await call(gateway.port)).body == OWN


BOMB = gzip.compress(b"x" * 100_000_000)


@pytest.mark.parametrize(
    ("body", "coding"),
    [
        (b"\x0b\x02\x80brotli", "br"),
        (b"\x1f\x8bbroken", "gzip"),
        (gzip.compress(OWN, mtime=0)[:-9], "gzip"),
        (OWN, "gzip"),
        (BOMB, "gzip"),
        (b"a", "gzip, gzip, gzip"),
    ],
    ids=["no brotli", "broken", "cut", "plain", "bomb", "thrice"],
)
async def test_a_body_that_cannot_be_decoded_passes_with_its_header(
    engine: ScriptedEngine, gateway: GatewayThread, body: bytes, coding: str
) -> None:
    engine.script = coded(body, coding)
    answer = await call(gateway.port)
    assert (answer.status, answer.headers["content-encoding"], answer.body) == (400, coding, body)


async def test_a_compressed_answer_passes_with_its_header(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    body = gzip.compress(completion())
    engine.script = coded(body, "gzip", "200 OK")
    answer = await call(gateway.port)
    assert (answer.status, answer.headers["content-encoding"], answer.body) == (200, "gzip", body)


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("is_chunked", [True, False])
async def test_a_compressed_stream_passes_as_it_comes(
    engine: ScriptedEngine, gateway: GatewayThread, asks: bool, is_chunked: bool
) -> None:
    """Its events cannot be read, so nothing is held back, added or removed."""
    compress = zlib.compressobj(wbits=31)
    first = compress.compress(event("a") + b"\n\ndata: [DONE]" * 9) + compress.flush(zlib.Z_SYNC_FLUSH)
    last = compress.compress(event("b") + usage_event(7)) + compress.flush()
    go = asyncio.Event()
    head = (SSE_HEAD if is_chunked else OPEN_HEAD).replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    parts = [chunk(first), chunk(last), LAST_CHUNK] if is_chunked else [first, last, CLOSE]
    engine.script = [head, parts[0], go, *parts[1:]]
    async with await Client.connect(gateway.port) as client:
        client.send(request(ASKING if asks else STREAM))
        async with asyncio.timeout(10):
            begin = await client.reader.readuntil(b"\r\n\r\n")
            assert b"content-encoding: gzip" in begin
            assert await client.reader.readexactly(len(chunk(first))) == chunk(first)
            go.set()
            assert await client.reader.readuntil(LAST_CHUNK) == chunk(last) + LAST_CHUNK
    assert gateway.context.metrics.upstream_errors == {}


@pytest.mark.parametrize(("coding", "message"), [("gzip", "no"), ("br", "the engine answered 400 without a reason")])
async def test_a_compressed_error_behind_a_keep_alive_is_an_event(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, coding: str, message: str
) -> None:
    gateway = await start_gateway(engine, other_engine)
    answers: list[list[Step]] = [[OPEN_HEAD, b": alive\n\n", 0.05, CLOSE], coded(gzip.compress(OWN), coding)]
    engine.choose = other_engine.choose = lambda _: answers.pop(0)
    text = (await call(gateway.port, request(STREAM))).body
    assert text.startswith(b": alive\n\n")
    assert orjson.loads(text.split(b"data: ")[1])["error"]["message"] == message


async def test_an_engine_behind_a_proxy_that_compresses_is_found(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    """Its list of models is compressed, although it was asked for as it is."""
    engine.model_coding = "gzip"
    gateway = await start_gateway(engine)
    assert (await call(gateway.port)).status == 200
    engine.model_coding = "br"
    broken = await start_gateway(engine)
    assert (await call(broken.port)).status == 503

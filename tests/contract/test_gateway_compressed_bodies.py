"""Bodies with a `Content-Encoding`: of clients, decoded within the limits; of engines that compress unasked."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from itertools import product

import orjson
import pytest
from backports import zstd

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import ASKING, PATH, STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread, LoopWatch, eventually
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

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "grüße 🙂"}]}
LARGE = {**BODY, "messages": [{"role": "user", "content": "abcdefghij" * 30_000}]}


def raw_deflate(data: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(data) + made.flush()


CODED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "GZip": ("GZip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "gzip in members": ("gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    "gzip and padding": ("gzip", lambda data: gzip.compress(data) + b"\0" * 512),
    "gzip in members with padding": (
        "gzip",
        lambda data: gzip.compress(data[:9]) + b"\0" * 3 + gzip.compress(data[9:]),
    ),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "zstd": ("zstd", zstd.compress),
    "zstd in frames": ("zstd", lambda data: zstd.compress(data[:9]) + zstd.compress(data[9:])),
    "zstd behind a skippable frame": ("zstd", lambda data: b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + zstd.compress(data)),
    "two": ("gzip, zstd", lambda data: zstd.compress(gzip.compress(data))),
    "identity": ("identity", bytes),
    "identity and gzip": ("identity, gzip", gzip.compress),
}


async def test_a_coded_body_reaches_the_engine_decoded(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests
) -> None:
    for coding, body in product(CODED, (BODY, LARGE)):
        with subtests.test(coding=coding, is_large=body is LARGE):
            engine.seen.clear()
            name, code = CODED[coding]
            data = request(code(json.dumps(body).encode()), headers=f"Content-Encoding: {name}\r\n")
            async with await Client.connect(gateway.port) as client:
                for _ in range(2):  # the connection serves on
                    client.send(data)
                    answer = await client.answer()
                    assert answer.status == 200, answer.body
            for seen in engine.seen:
                assert seen.json == body
                assert "content-encoding" not in seen.headers
            await eventually(lambda: gateway.context.body_bytes == 0)


async def test_a_coded_body_in_chunks_of_a_byte(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    data = zstd.compress(json.dumps(BODY).encode())
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n"
    head += b"content-encoding: zstd\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"".join(b"1\r\n%c\r\n" % octet for octet in data) + b"0\r\n\r\n"
    assert (await call(gateway.port, head + body)).status == 200
    assert engine.seen[0].json["messages"] == BODY["messages"]


async def test_another_coding_is_refused_by_its_name_before_the_body_comes(gateway: GatewayThread) -> None:
    for coding in ("br", "compress", "aes128gcm", "gzip, br", "gzip, gzip, gzip"):
        head = f"POST {PATH} HTTP/1.1\r\nhost: g\r\ncontent-encoding: {coding}\r\ncontent-length: 9\r\n\r\n"
        answer = await call(gateway.port, head.encode())
        assert (answer.status, answer.code) == (415, "unsupported_coding"), coding
        assert coding.rsplit(", ", maxsplit=1)[-1] in answer.json["error"]["message"]
        assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"


async def test_a_setting_refuses_all_of_them(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, decode_bodies=False)
    answer = await call(gateway.port, request(gzip.compress(b"{}"), headers="content-encoding: gzip\r\n"))
    assert (answer.status, answer.code) == (415, "unsupported_coding")
    assert "gzip" in answer.json["error"]["message"]
    assert "--decode-bodies" in answer.json["error"]["message"]
    assert (await call(gateway.port, request(headers="content-encoding: identity\r\n"))).status == 200


WRONG: dict[str, tuple[str, bytes]] = {
    "not gzip": ("gzip", b'{"model":"tiny"}'),
    "not zstd": ("zstd", b'{"model":"tiny"}'),
    "not deflate": ("deflate", b"\xff\xff\xff\xff"),
    "cut gzip": ("gzip", gzip.compress(json.dumps(BODY).encode())[:-4]),
    "cut zstd": ("zstd", zstd.compress(json.dumps(BODY).encode())[:-4]),
    "cut deflate": ("deflate", b"x"),
    "behind gzip": ("gzip", gzip.compress(b"{}") + b"more"),
    "behind deflate": ("deflate", zlib.compress(b"{}") + b"more"),
    "behind zstd": ("zstd", zstd.compress(b"{}") + b"more"),
    "empty": ("gzip", b""),
    "members": ("gzip", gzip.compress(b"") * 5000),
    "frames": ("zstd", zstd.compress(b"") * 5000),
    "window": ("zstd", zstd.compress(b"{}" * 20_000_000, options={zstd.CompressionParameter.window_log: 27})),
}


async def test_what_is_not_in_its_coding_is_refused(gateway: GatewayThread, subtests: pytest.Subtests) -> None:
    for wrong, (coding, body) in WRONG.items():
        with subtests.test(wrong=wrong):
            answer = await call(gateway.port, request(body, headers=f"content-encoding: {coding}\r\n"))
            assert (answer.status, answer.code) == (400, "invalid_coding")
            assert coding in answer.json["error"]["message"]
            await eventually(lambda: gateway.context.body_bytes == 0)


HUGE = b'{"model":"tiny","x":"' + b"x" * (1 << 27) + b'"}'
BOMBS: dict[str, tuple[str, bytes, str]] = {
    "gzip": ("gzip", gzip.compress(HUGE, 1), "body_too_large"),
    "zstd": ("zstd", zstd.compress(HUGE), "body_too_large"),
    "twice": ("gzip, gzip", gzip.compress(gzip.compress(HUGE, 1)), "body_too_large"),
    "empty members within": ("gzip, gzip", gzip.compress(gzip.compress(b"") * 700_000), "invalid_coding"),
    "lists": ("zstd", zstd.compress(b"[" * (1 << 27)), "body_too_complex"),
}


LONGEST_HOLD_S = 0.5
"""More than ten times what decoding up to the limit takes as a whole; it is done in turns, between others' requests."""


@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_bomb_is_refused_by_what_it_decodes_to_and_holds_nobody_up(gateway: GatewayThread, bomb: str) -> None:
    coding, body, code = BOMBS[bomb]
    refused = asyncio.create_task(call(gateway.port, request(body, headers=f"content-encoding: {coding}\r\n")))
    with LoopWatch(gateway) as watch:
        async with await Client.connect(gateway.port) as client:
            while not refused.done():
                client.send(request())
                assert (await client.answer()).status == 200
    answer = await refused
    assert (answer.status, answer.code) == (400 if code == "invalid_coding" else 413, code)
    assert watch.longest_s < LONGEST_HOLD_S
    if code == "body_too_large":  # the others are found out in a millisecond
        assert len({size for size in watch.body_bytes if size > len(body)}) > 2
    await eventually(lambda: gateway.context.body_bytes == 0)


async def test_a_client_that_leaves_while_its_body_is_decoded_is_forgotten(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, max_body_bytes=200_000_000)
    body = b'{"model":"tiny","x":"' + b"y" * 100_000_000 + b'"}'
    client = await Client.connect(gateway.port)
    client.send(request(gzip.compress(body, 1), headers="content-encoding: gzip\r\n"))
    await eventually(lambda: gateway.context.body_bytes > 1_000_000)
    client.abort()
    await eventually(lambda: gateway.context.body_bytes == 0)
    await eventually(lambda: not gateway.context.tasks or len(gateway.context.exchanges) == 0)
    assert engine.seen == []


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
    async with await Client.connect(gateway.port, request(ASKING if asks else STREAM)) as client:
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

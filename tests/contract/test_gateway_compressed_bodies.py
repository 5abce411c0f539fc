"""Bodies with a `Content-Encoding`: decoded within the limits, or refused by the coding's name."""

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from itertools import product

import pytest
from backports import zstd

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import PATH, Client, call, request
from tests.support.gateway_server import GatewayThread, LoopWatch, eventually
from tests.support.scripted_engine import ScriptedEngine

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

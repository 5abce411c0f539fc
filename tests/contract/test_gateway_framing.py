"""Where a client's message ends: lengths, chunks, trailers and heads, and messages that could be read in two ways."""

import gc
import sys

import pytest

from tests.support.gateway_client import Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.scripted_engine import ScriptedEngine

AMBIGUOUS = [
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: -3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: +3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\ncontent-length: 3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\n",
    "POST {path} HTTP/1.1\nhost: x\n\n",
    "POST {path} HTTP/1.1\r\na\0b: c\r\n\r\n",
    "POST {path} HTTP/3.9\r\nhost: x\r\n\r\n",
    "hello\r\n\r\n",
    "POST {path} HTTP/2.0\r\nhost: x\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 3, 3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0_3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0x3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: " + "0" * 5000 + "3\r\n\r\nabc",
    "POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length : 3\r\n\r\nabc",
    "POST {path} HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.0\r\nhost: x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "\r\nPOST {path} HTTP/1.0\r\nhost: x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/2.0\r\nhost: x HTTP/1.1\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1 \r\na\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1;x\ny\r\na\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n z\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\na: b\0c\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\na: b\x01c\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\na: b\rc\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\na: b\nc: d\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\n\xe9: b\r\n\r\n",
    "POST {path} HTTP/1.1\r\nhost: x\r\n: b\r\n\r\n",
    "GET nonsense HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET /\xe9 HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET /ping\n\r\n",
    "GET /abc\r\n\r\n",
    "OPTIONS *\n\r\n",
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health"])
async def test_a_message_that_could_be_read_in_two_ways_is_refused(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests, path: str
) -> None:
    for head in AMBIGUOUS:
        with subtests.test(head=head[:200]):
            async with await Client.connect(gateway.port) as client:
                client.send(head.replace("{path}", path).encode("latin-1") + request())
                answer = await client.answer()
                if path != "/health" or answer.status != 405:  # else the app has answered the head before a bad body
                    assert (answer.status, answer.code) == (400, "bad_request")
                assert await client.is_closed()
            assert engine.seen == []


async def test_chunked_bodies_are_taken_and_forwarded_with_a_length(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"model":"tiny","prompt":"x"}'
    parts = b"".join(b"1;e=1\r\n%c\r\n" % byte for byte in body)
    assert (await call(gateway.port, head + parts + b"0\r\nx-t: 1\r\n\r\n")).status == 200
    assert engine.seen[0].body == body
    assert engine.seen[0].headers["content-length"] == str(len(body))
    assert "transfer-encoding" not in engine.seen[0].headers


async def test_a_body_in_tiny_chunks_takes_hardly_more_memory_than_in_one_piece(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"model":"tiny","prompt":"' + b"xyz" * 66_666 + b'"}'
    async with await Client.connect(gateway.port) as client:
        client.send(head + b"".join(b"2\r\n%s\r\n" % body[at : at + 2] for at in range(0, len(body), 2)))
        [exchange] = await eventually(lambda: [*gateway.context.exchanges])
        await eventually(lambda: exchange._body._size == len(body))
        held = [item for item in gc.get_referents(exchange._body) if isinstance(item, (bytes, bytearray, list))]
        held += [part for item in held if isinstance(item, list) for part in item]
        assert len(body) <= sum(map(sys.getsizeof, held)) < 1.2 * len(body)
        client.send(b"0\r\n\r\n")
        assert (await client.answer()).status == 200
    assert engine.seen[0].body == body


async def test_a_length_with_leading_zeros_is_that_length(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    async with await Client.connect(gateway.port) as client:
        client.send(request().replace(b"content-length: ", b"content-length: 000") * 2)
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200
    assert {seen.headers["content-length"] for seen in engine.seen} == {str(len(engine.seen[0].body))}


async def test_trailers_without_end_are_refused(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for endless in (b"0\r\n" + b"x: y\r\n" * 40_000, b"0\r\nx: " + b"y" * 300_000, b"1;" + b"y" * 300_000):
        answer = await call(gateway.port, head + b"2\r\n{}\r\n" + endless)
        assert (answer.status, answer.code) == (431, "head_too_large")
    assert engine.seen == []


async def test_what_follows_a_large_body_is_not_taken_for_a_large_head(gateway: GatewayThread) -> None:
    large = request({"model": "tiny", "prompt": "x" * 200_000})
    async with await Client.connect(gateway.port, large + request()[:30]) as client:
        assert (await client.answer()).status == 200
        client.send(request()[30:])
        assert (await client.answer()).status == 200


async def test_huge_heads_are_refused(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    for headers in (f"x-big: {'y' * 200_000}\r\n", "x: y\r\n" * 40_000):
        answer = await call(gateway.port, request(headers=headers))
        assert (answer.status, answer.code) == (431, "head_too_large")
    endless = await call(gateway.port, b"POST /v1/chat/completions HTTP/1.1\r\nx: " + b"y" * 300_000)
    assert endless.status == 431
    answer = await call(gateway.port, request(headers=f"x-big: {'y' * 30_000}\r\n"))
    assert answer.status == 200
    assert len(engine.seen[0].headers["x-big"]) == 30_000

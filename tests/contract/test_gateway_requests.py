"""What a client may send, and the one clear error for everything else."""

import asyncio
import gc
import http.client
import sys
import threading
import time

import pytest

from tests.contract.conftest import StartGateway
from tests.support.gateway_client import Client, call, request
from tests.support.gateway_server import eventually
from tests.support.scripted_engine import HANG, ScriptedEngine, completion, reply


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_json", None),
        (b"", 400, "invalid_json", None),
        (b"[]", 400, "invalid_json", None),
        (b"null", 400, "invalid_json", None),
        (b'"tiny"', 400, "invalid_json", None),
        (b"\xff\xfe", 400, "invalid_json", None),
        (b'{"model":"tiny"} x', 400, "invalid_json", None),
        (b"[" * 60_000, 400, "invalid_json", None),
        (b"[" * 100_000, 413, "body_too_complex", None),
        (b"{}", 400, "invalid_field", "model"),
        (b'{"model":null}', 400, "invalid_field", "model"),
        (b'{"model":7}', 400, "invalid_field", "model"),
        (b'{"model":""}', 400, "invalid_field", "model"),
        (b'{"model":["tiny"]}', 400, "invalid_field", "model"),
        (b'{"model":"tiny","stream":"yes"}', 400, "invalid_field", "stream"),
        (b'{"model":"tiny","stream":1}', 400, "invalid_field", "stream"),
        (b'{"model":"huge"}', 404, "model_not_found", "model"),
    ],
)
async def test_a_bad_body_is_named(
    engine: ScriptedEngine, start_gateway: StartGateway, body: bytes, status: int, code: str, param: str | None
) -> None:
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request(body))
        answer = await client.answer()
        assert (answer.status, answer.code, answer.json["error"]["param"]) == (status, code, param)
        assert answer.headers["x-request-id"]
        client.send(request())
        assert (await client.answer()).status == 200  # the connection is still good
    assert len(engine.seen) == 1


@pytest.mark.parametrize(
    "head",
    [
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
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/health"])
async def test_a_message_that_could_be_read_in_two_ways_is_refused(
    engine: ScriptedEngine, start_gateway: StartGateway, head: str, path: str
) -> None:
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(head.replace("{path}", path).encode("latin-1") + request())
        answer = await client.answer()
        if path == "/health" and answer.status == 405:
            answer = await client.answer()  # the app had answered before the bad body came
        assert (answer.status, answer.code) == (400, "bad_request")
        assert await client.is_closed()
    assert engine.seen == []


async def test_a_bad_second_request_does_not_spoil_the_first(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [0.05, reply(completion())]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request() + b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n")
        assert (await client.answer()).body == completion()
        assert (await client.answer()).code == "bad_request"
        assert await client.is_closed()


@pytest.mark.parametrize(
    ("rest", "status", "code"),
    [
        (b"zz\r\n", 400, "bad_request"),
        (b"2\r\n{}\r\n0\r\nx: y\r\n z\r\n\r\n", 400, "bad_request"),
        (b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 40_000, 431, "head_too_large"),
    ],
)
async def test_what_goes_wrong_within_a_request_that_waits_is_its_own_answer_in_order(
    engine: ScriptedEngine, start_gateway: StartGateway, rest: bytes, status: int, code: str
) -> None:
    engine.script = [0.1, reply(completion())]
    gateway = await start_gateway(engine)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-request-id: %s\r\ntransfer-encoding: chunked\r\n\r\n"
    async with await Client.connect(gateway.port) as client:
        client.send(request() * 2 + head % b"mine" + rest)
        for _ in range(2):
            assert (await client.answer()).body == completion()
        answer = await client.answer()
        assert (answer.status, answer.code) == (status, code)
        assert answer.headers["x-request-id"] == "mine"
        assert await client.is_closed()
    assert len(engine.seen) == 2
    lines = await eventually(lambda: found if len(found := gateway.log_lines()) == 3 else None)
    assert [line["status"] for line in lines] == [200, 200, status]


async def test_a_body_too_large_to_wait_behind_another_request_is_told_what_would_help(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [0.1, reply(completion())]
    gateway = await start_gateway(engine)
    large = request({"model": "tiny", "prompt": "x" * 1_200_000})
    async with await Client.connect(gateway.port) as client:
        client.send(request() + large)
        assert (await client.answer()).status == 200
        answer = await client.answer()
        assert (answer.status, answer.code) == (413, "body_too_large")
        said = answer.json["error"]["message"]
        assert "1048576" in said
        assert "another connection" in said
        assert "--max-body-bytes" not in said
        client.send(large)  # alone it may be as large as any
        assert (await client.answer()).status == 200
        small = await start_gateway(engine, max_body_bytes=2048)
    async with await Client.connect(small.port) as client:
        client.send(request() + large)
        assert (await client.answer()).status == 200
        assert "2048 bytes (--max-body-bytes)" in (await client.answer()).json["error"]["message"]


async def test_a_large_body_for_the_app_behind_a_request_hides_no_client_that_leaves(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine, admin_token="t")
    async with await Client.connect(gateway.port) as client:
        client.send(request() + request(b"x" * 1_000_000, path="/admin/config"))
        await engine.wait_seen(1)
        await client.writer.drain()
    async with asyncio.timeout(1):
        await engine.seen[0].closed.wait()
    assert gateway.context.metrics.disconnects == {"wait": 1}


async def test_a_large_body_for_the_app_is_read_over_and_the_next_request_answered(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [0.05, reply(completion())]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request() + request(b"x" * 1_000_000, path="/health", method="GET") + request())
        assert (await client.answer()).body == completion()
        assert (await client.answer()).json == {"status": "ok"}
        assert (await client.answer()).body == completion()


async def test_a_body_that_comes_late_behind_requests_for_the_app_is_read(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine)
    health, whole = request(b"", path="/health", method="GET"), request()
    async with await Client.connect(gateway.port) as client:
        client.send(health * 3 + whole[:-10])
        for _ in range(3):
            assert (await client.answer()).json == {"status": "ok"}
        await asyncio.sleep(0.05)
        client.send(whole[-10:])
        assert (await client.answer(timeout_s=3)).body == completion()


async def test_chunked_bodies_are_taken_and_forwarded_with_a_length(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine)
    head = b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"model":"tiny","prompt":"x"}'
    parts = b"".join(b"1;e=1\r\n%c\r\n" % byte for byte in body)
    async with await Client.connect(gateway.port) as client:
        client.send(head + parts + b"0\r\nx-t: 1\r\n\r\n")
        assert (await client.answer()).status == 200
    assert engine.seen[0].body == body
    assert engine.seen[0].headers["content-length"] == str(len(body))
    assert "transfer-encoding" not in engine.seen[0].headers


async def test_a_body_in_tiny_chunks_takes_hardly_more_memory_than_in_one_piece(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine)
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


async def test_a_length_with_leading_zeros_is_that_length(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request().replace(b"content-length: ", b"content-length: 000") * 2)
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200
    assert {seen.headers["content-length"] for seen in engine.seen} == {str(len(engine.seen[0].body))}


async def test_header_values_beyond_ascii_reach_the_engine_as_they_came(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine)
    odd = b"x-odd: \xe9\xff\t!\r\nx-traffic-class: \xe9\r\nauthorization: Bearer \xff\r\nx-request-id: \xff\r\n"
    answer = await call(gateway.port, request().replace(b"\r\n", b"\r\n" + odd, 1))
    assert answer.status == 200
    assert answer.headers["x-specpilot-class"] == "default"
    assert engine.seen[0].headers["x-odd"] == "\xe9\xff\t!"


async def test_trailers_without_end_are_refused(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for endless in (b"0\r\n" + b"x: y\r\n" * 40_000, b"0\r\nx: " + b"y" * 300_000, b"1;" + b"y" * 300_000):
        answer = await call(gateway.port, head + b"2\r\n{}\r\n" + endless)
        assert (answer.status, answer.code) == (431, "head_too_large")
    assert engine.seen == []


async def test_what_follows_a_large_body_is_not_taken_for_a_large_head(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine)
    large = request({"model": "tiny", "prompt": "x" * 200_000})
    async with await Client.connect(gateway.port) as client:
        client.send((large + request()[:30]) * 1)
        assert (await client.answer()).status == 200
        client.send(request()[30:])
        assert (await client.answer()).status == 200


async def test_a_client_that_closes_its_sending_half_has_left(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script = [HANG]
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request())
        await engine.wait_seen(1)
        client.writer.write_eof()
        async with asyncio.timeout(1):
            await engine.seen[0].closed.wait()
    assert gateway.context.metrics.disconnects == {"wait": 1}


async def test_a_target_in_absolute_form_is_its_path(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    answer = await call(gateway.port, request(path="http://gateway:80/v1/chat/completions?x=1"))
    assert answer.status == 200
    assert engine.seen[0].path == "/v1/chat/completions"
    for path in (
        "http://gateway/speculation", "http://x//speculation", "http://gateway", "http://x?/v1/chat/completions",
        "http://x#/v1/chat/completions", "http://x:99999/", "http://[::1]", "?x", "*",
    ):  # fmt: skip
        assert (await call(gateway.port, request(path=path))).status in (400, 404), path
    assert (await call(gateway.port, request(path="http://gateway/health", method="GET"))).status == 200
    assert len(engine.seen) == 1


async def test_a_request_split_at_every_byte_is_understood(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        for byte in request():
            client.send(bytes([byte]))
            await asyncio.sleep(0.001)
        assert (await client.answer()).status == 200


async def test_100_continue(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    whole = request(headers="expect: 100-continue\r\n")
    head, _, body = whole.partition(b"\r\n\r\n")
    async with await Client.connect(gateway.port) as client:
        client.send(head + b"\r\n\r\n")
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body)
        assert (await client.answer()).status == 200
    assert "expect" not in engine.seen[0].headers


async def test_100_continue_is_not_sent_for_what_will_be_refused(
    engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, max_body_bytes=1024)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n"
    async with await Client.connect(gateway.port) as client:
        client.send(head)
        assert (await client.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_a_wrong_method_is_named(engine: ScriptedEngine, start_gateway: StartGateway, method: str) -> None:
    gateway = await start_gateway(engine)
    answer = await call(gateway.port, request(method=method))
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    answer = await call(gateway.port, request(method=method if method != "GET" else "POST", path="/v1/models"))
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert engine.seen == []


async def test_head_has_no_body(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    async with await Client.connect(gateway.port) as client:
        client.send(request(method="HEAD", path="/nowhere"))
        assert (await client.answer(is_head=True)).status == 404
        client.send(request(method="HEAD"))
        assert (await client.answer(is_head=True)).status == 405
        client.send(request(path="/health", method="GET"))
        assert (await client.answer()).json == {"status": "ok"}


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_20_mb_are_refused_and_the_client_can_read_why(
    engine: ScriptedEngine, start_gateway: StartGateway, is_chunked: bool
) -> None:
    gateway = await start_gateway(engine)
    body = b'{"model":"tiny","messages":"' + b"x" * 20_000_000 + b'"}'
    sent = request(body)
    if is_chunked:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        sent = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    answer = await call(gateway.port, sent)
    assert (answer.status, answer.code) == (413, "body_too_large")
    assert engine.seen == []


async def test_16_mb_pass_and_stall_nobody(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    body = b'{"model":"tiny","messages":"' + b"x" * 16_000_000 + b'","vllm_xargs":{"a":"b"}}'
    waits: list[float] = []
    is_over = threading.Event()

    def others() -> None:  # on a thread: this loop is busy with 16 MB itself
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port)
        while not is_over.is_set():
            began = time.monotonic()
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
            waits.append(time.monotonic() - began)
        connection.close()

    task = asyncio.create_task(asyncio.to_thread(others))
    answer = await call(gateway.port, request(body))
    is_over.set()
    await task
    assert answer.status == 200
    assert engine.seen[0].body == body.replace(b'{"a":', b'{"traffic_class":"default","a":')
    assert max(waits) < 1.0


async def test_huge_heads_are_refused(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    for headers in (f"x-big: {'y' * 200_000}\r\n", "x: y\r\n" * 40_000):
        answer = await call(gateway.port, request(headers=headers))
        assert (answer.status, answer.code) == (431, "head_too_large")
    async with await Client.connect(gateway.port) as client:  # one that never ends
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nx: " + b"y" * 300_000)
        assert (await client.answer()).status == 431
    answer = await call(gateway.port, request(headers=f"x-big: {'y' * 30_000}\r\n"))
    assert answer.status == 200
    assert len(engine.seen[0].headers["x-big"]) == 30_000


async def test_a_bad_request_id_is_replaced(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine)
    for sent in ("", "x-request-id: \r\n", f"x-request-id: {'a' * 300}\r\n", "x-request-id: a b\r\n"):
        answer = await call(gateway.port, request(headers=sent))
        assert answer.headers["x-request-id"].startswith("req-")
    assert len({seen.headers["x-request-id"] for seen in engine.seen}) == 4

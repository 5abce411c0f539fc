"""What goes through: bytes in equal bytes out, whatever the shape of the stream."""

import asyncio
import hashlib

import pytest

from specpilot.gateway.wire.framing import ChunkedFramer
from tests.contract.conftest import StartGateway, StartProgram
from tests.support.gateway_client import ASKING, STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.random_streams import random_stream
from tests.support.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    Seen,
    chunk,
    completion,
    event,
    reply,
    stream,
    usage_event,
)


async def test_a_json_reply_passes_and_is_counted(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    extra = "x-engine-says: hi\r\ncache-control: max-age=9\r\nx-ratelimit-remaining-requests: 7\r\n"
    engine.script = [reply(completion(output_tokens=7, acceptance_length=2.5), extra=extra)]
    answer = await call(gateway.port)
    assert answer.status == 200
    assert answer.body == completion(output_tokens=7, acceptance_length=2.5)
    assert (answer.headers["x-engine-says"], answer.headers["cache-control"]) == ("hi", "max-age=9")
    assert not {"x-accel-buffering", "x-ratelimit-remaining-requests"} & set(answer.headers)
    assert answer.headers["x-specpilot-class"] == "default"
    assert answer.headers["x-specpilot-engine"] == f"127.0.0.1:{engine.port}"
    assert answer.headers["x-specpilot-policy-version"] == "0"
    assert float(answer.headers["x-specpilot-overhead-ms"]) < 1000
    cell = gateway.context.metrics.cells["tiny", "default"]
    assert (cell.tokens_by_usage, cell.tokens_by_events, cell.requests) == (7, 0, {200: 1})
    assert cell.acceptance_length.total == 2.5
    assert cell.in_flight == 0


async def test_the_engine_gets_the_clients_own_bytes_and_the_class_in_a_header(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    body = (
        b'{ "model":"tiny",\n"odd"  : [1.50, 1e3, "\\u00e9\xc3\xa9"], "priority": 0, "cache_salt":"s","messages":[] ,'
        b'"vllm_xargs":{"traffic_class":"mine"}, "vllm_xargs":{"k_max":1}}'
    )
    await call(gateway.port, request(body))
    assert engine.seen[0].body == body
    assert engine.seen[0].headers["x-traffic-class"] == "default"


async def test_headers_of_the_hop_and_secrets_stay_behind(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    sent = (
        "Authorization: Bearer secret\r\nx-api-key: secret\r\ncookie: secret\r\nConnection: keep-alive, x-hop\r\n"
        "x-hop: secret\r\nTE: trailers\r\naccept-encoding: gzip\r\nx-traffic-class: secret\r\nx-vllm-priority: -9\r\n"
        "X-data-parallel-rank: 3\r\n"
        "traceparent: 00-1-2-3\r\nX-Request-Id: mine-1\r\nuser-agent: test\r\n"
    )
    answer = await call(gateway.port, request(headers=sent))
    seen = engine.seen[0]
    assert set(seen.headers) == {
        "host", "content-type", "content-length", "traceparent", "x-request-id", "user-agent", "x-traffic-class",
    }  # fmt: skip
    assert seen.headers["host"] == f"127.0.0.1:{engine.port}"
    assert seen.headers["x-request-id"] == answer.headers["x-request-id"] == "mine-1"
    assert seen.headers["x-traffic-class"] == "default"
    assert "secret" not in str(seen.headers)


async def test_the_engine_gets_its_own_key_when_one_is_set(engine: ScriptedEngine, start_gateway: StartGateway) -> None:
    gateway = await start_gateway(engine, engine_api_key="for-the-engine")
    await call(gateway.port, request(headers="authorization: Bearer mine\r\n"))
    assert engine.seen[0].headers["authorization"] == "Bearer for-the-engine"


NOT_RELAYED = [
    "/speculation", "/sleep", "/wake_up", "/collective_rpc", "/reset_prefix_cache", "/load_lora_adapter",
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/server_info", "/start_profile", "/v1/chat/completions/x",
    "/v1/chat/completions/../../speculation", "//speculation", "/v1/%63hat/completions", "/metrics/x",
    "/v1/chat%2Fcompletions", "/%761/chat/completions", "/v1/./chat/completions", "/nope",
]  # fmt: skip


async def test_no_other_route_reaches_the_engine(
    engine: ScriptedEngine, gateway: GatewayThread, subtests: pytest.Subtests
) -> None:
    for path in NOT_RELAYED:
        with subtests.test(path=path):
            answer = await call(gateway.port, request(path=path))
            assert (answer.status, answer.code) == (404, "route_not_found")
            assert answer.json["error"]["message"].startswith(f"there is no {path.replace('//', '/')} here")
            assert engine.seen == []


FRAMES = [event("Hé"), event("llo 🙂"), b": ping\n\n", event("", finish="stop"), usage_event(9, 3.25), DONE]


async def test_a_stream_split_at_every_byte_arrives_as_it_was(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    whole = SSE_HEAD + b"".join(chunk(frame) for frame in FRAMES) + LAST_CHUNK
    engine.script = [step for byte in whole for step in (bytes([byte]), 0.001)]
    answer = await call(gateway.port, request(ASKING))
    assert answer.body == b"".join(FRAMES)
    cell = gateway.context.metrics.cells["tiny", "default"]
    assert cell.tokens_by_usage == 9
    assert cell.acceptance_length.total == 3.25
    assert sum(cell.itl.counts) == 3  # between the four events with data


async def test_chunk_extensions_and_trailers_end_here(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    extended = chunk(event("a")).replace(b"\r\n", b";x=y\r\n", 1)
    engine.scripts = [[SSE_HEAD + extended + b"0\r\nx-trailer: 1\r\n\r\n"], [reply(completion())]]
    async with await Client.connect(gateway.port, request(ASKING)) as client:
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        assert await client.reader.readuntil(LAST_CHUNK) == chunk(event("a")) + LAST_CHUNK
        client.send(request())
        assert (await client.answer()).status == 200


async def test_an_empty_answer_passes(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    engine.script = [b"HTTP/1.1 204 No Content\r\n\r\n"]
    async with await Client.connect(gateway.port, request()) as client:
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 204 No Content\r\n")
        assert b"content-length" not in head
        client.send(request())
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")


async def test_connections_are_kept_on_both_sides(engine: ScriptedEngine, gateway: GatewayThread) -> None:
    before = engine.connections
    async with await Client.connect(gateway.port) as client:
        for _ in range(5):
            client.send(request())
            assert (await client.answer()).status == 200
        client.send(request(path="/health", method="GET"))
        assert (await client.answer()).json == {"status": "ok"}
        client.send(request())
        assert (await client.answer()).status == 200
    assert engine.connections <= before + 1


async def test_a_slow_reader_holds_the_engine_back_and_gets_everything(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    part = event("x" * 60_000)
    engine.script = [SSE_HEAD, *[chunk(part)] * 400, LAST_CHUNK]  # 24 MB
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**16)
    writer.write(request(ASKING))
    await reader.readuntil(b"\r\n\r\n")
    [connection] = gateway.context.connections
    await eventually(lambda: connection.is_stalled)
    await asyncio.sleep(0.1)  # in which what the engine sends on would be held, too
    assert connection.transport.get_write_buffer_size() < 1_000_000
    body = bytearray()
    while not body.endswith(LAST_CHUNK):
        body += await reader.read(2**20)
    writer.close()
    framer = ChunkedFramer()
    assert framer.feed(bytes(body)) == len(body)
    assert framer.payload == part * 400


async def test_an_upgrade_is_not_taken_but_the_request_is(gateway: GatewayThread) -> None:
    async with await Client.connect(gateway.port) as client:
        headers = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        client.send(request(headers=headers))
        assert (await client.answer()).body == completion()
        client.send(request())
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("connection", ["upgrade, close", "upgrade"])
async def test_an_upgrade_changes_nothing_else(engine: ScriptedEngine, gateway: GatewayThread, connection: str) -> None:
    engine.script = stream("a")
    sent = request(STREAM, headers=f"Connection: {connection}\r\nUpgrade: h2c\r\n")
    async with await Client.connect(gateway.port) as client:
        client.send(sent if "close" in connection else sent.replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await client.answer()
        assert answer.body.endswith(DONE)
        assert answer.headers["connection"] == "close"
        assert ("transfer-encoding" in answer.headers) == ("close" in connection)
        assert await client.is_closed()


STREAMS = 10_000
CONNECTIONS = 24


async def test_ten_thousand_random_streams_are_equal_by_hash(
    engine: ScriptedEngine, start_program: StartProgram
) -> None:
    program = await start_program("--no-access-log")
    sent: dict[int, bytes] = {}
    unlike: list[int] = []
    numbers = iter(range(STREAMS))

    def play(seen: Seen) -> Script:
        number = seen.json["seed"]
        found = random_stream(number)
        sent[number] = hashlib.sha256(found.payload).digest()
        return found.steps

    async def ask() -> None:
        client = await Client.connect(program.port)
        for number in numbers:
            is_modern = number % 20 > 0
            call = request({**ASKING, "seed": number})
            client.send(call if is_modern else call.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
            answer = await client.answer()
            if not (answer.status == 200 and answer.is_whole) or hashlib.sha256(answer.body).digest() != sent[number]:
                unlike.append(number)
            if answer.headers.get("connection") == "close":
                client.close()
                client = await Client.connect(program.port)
        client.close()

    engine.choose = play
    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    assert unlike == []
    assert len(engine.seen) == STREAMS

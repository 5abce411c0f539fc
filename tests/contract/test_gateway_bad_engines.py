"""Engines that fail without saying so in the status: they draw no traffic, and clients see none of it."""

import asyncio

import pytest

from specpilot.gateway.engines import probe
from specpilot.gateway.routing.outlier_detection import FAILURES_ALLOWED
from specpilot.policy.records import EngineRecord
from tests.contract.conftest import StartGateway
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.hand_clock import Clock
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    HANG,
    LAST_CHUNK,
    SSE_HEAD,
    Script,
    ScriptedEngine,
    chunk,
    event,
    reply,
    stream,
)
from tests.support.stream_events import CREATED, ENGINE_ERROR, MESSAGE_START, OPEN_HEAD, PING
from tests.support.tcp_server import serving

IN_PROGRESS = b'event: response.in_progress\ndata: {"type":"response.in_progress","response":{"id":"r"}}\n\n'
NAMED_ERROR = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"x"}}\n\n'
REFUSED = b'{"error":{"message":"bad key","type":"auth","param":null,"code":401}}'


def detection(gateway: GatewayThread, engine: ScriptedEngine) -> object:
    return gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection


def failing(*frames: bytes) -> Script:
    return [SSE_HEAD, *map(chunk, frames), LAST_CHUNK]


@pytest.mark.parametrize(
    "script",
    [
        failing(ENGINE_ERROR, DONE),
        failing(NAMED_ERROR),
        failing(ENGINE_ERROR[:20], ENGINE_ERROR[20:], DONE),
        [reply(REFUSED, "401 Unauthorized")],
        [reply(REFUSED, "403 Forbidden")],
        [reply(b'{"error":{"message":"dead","type":"x","param":null,"code":500}}')],
        [reply(b"{}", "500 Internal Server Error")],
        [reply(b"{}", "500 Internal Server Error", extra="connection: close\r\n"), CLOSE],
        [OPEN_HEAD, 0.02, CLOSE],
        [OPEN_HEAD, event("a")[:20], 0.02, CLOSE],
        [OPEN_HEAD, CREATED, CLOSE],
    ],
    ids=[
        *("error event", "named", "in two parts", "401", "403", "200 with an error", "500", "500 and closes"),
        *("ends before an event", "ends within an event", "ends behind what opens a stream"),
    ],
)
async def test_an_error_in_place_of_an_answer_is_tried_elsewhere_and_ejects(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, script: Script
) -> None:
    engine.script, other_engine.script = script, stream("ok")
    gateway = await start_gateway(engine, other_engine)
    for _ in range(2 * FAILURES_ALLOWED + 2):
        answer = await call(gateway.port, request(STREAM))
        assert (answer.status, answer.body) == (200, b"".join([event("ok"), event("", finish="stop"), DONE]))
    assert len(engine.seen) == gateway.context.metrics.retries == FAILURES_ALLOWED
    assert detection(gateway, engine).is_ejected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("path", "frames"),
    [
        ("/v1/chat/completions", (ENGINE_ERROR, DONE)),
        ("/v1/chat/completions", (event("a"), ENGINE_ERROR, DONE)),
        ("/v1/responses", (CREATED, IN_PROGRESS, NAMED_ERROR)),
    ],
    ids=["alone", "behind content", "behind what opens a stream"],
)
async def test_an_error_event_passes_as_it_came_where_there_is_no_other_engine(
    engine: ScriptedEngine, gateway: GatewayThread, path: str, frames: tuple[bytes, ...]
) -> None:
    engine.script = failing(*frames)
    assert (await call(gateway.port, request(STREAM, path=path))).body == b"".join(frames)
    assert gateway.context.metrics.upstream_errors == {"error_event": 1}


async def test_the_engines_refusal_of_credentials_is_never_the_clients(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    engine.script = [reply(REFUSED, "401 Unauthorized", extra="www-authenticate: Bearer\r\n")]
    answer = await call(gateway.port)
    assert (answer.status, answer.code) == (502, "bad_engine_response")
    assert "--engine-api-key" in answer.json["error"]["message"]
    assert "www-authenticate" not in answer.headers


async def test_errors_after_the_first_token_eject_as_many_in_a_row_do(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway
) -> None:
    engine.script, other_engine.script = failing(event("a"), ENGINE_ERROR), stream("ok")
    gateway = await start_gateway(engine, other_engine)
    for at in range(3 * FAILURES_ALLOWED):
        await call(gateway.port, request({**STREAM, "max_tokens": at + 1}))
    assert len(engine.seen) == FAILURES_ALLOWED
    assert detection(gateway, engine).is_ejected  # type: ignore[attr-defined]


async def test_an_engine_that_answers_no_probe_is_ejected_and_who_waits_on_it_is_served_elsewhere(
    engine: ScriptedEngine, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("PROBE_S", 0.05), ("PROBE_UNKNOWN_S", 0.05), ("PROBE_CHECK_S", 0.02)):
        monkeypatch.setattr(probe, name, seconds)
    monkeypatch.setattr(probe.Probe.__init__, "__defaults__", (1.0,))
    hung = _HungEngine()
    async with serving(hung.connection) as port:
        gateway = await start_gateway(engine=(f"http://127.0.0.1:{port}",))
        await eventually(lambda: gateway.context.fleet.by_model)
        first = next(iter(gateway.context.fleet.engines.values()))
        calls = [asyncio.create_task(call(gateway.port, request(STREAM))) for _ in range(3)]
        await eventually(lambda: first.outstanding_requests == 3)
        engine.script = stream("ok")
        hung.is_hung = True
        await gateway.on_loop(gateway.context.fleet.resolve, "dns+http://more:1", (engine.url,))
        for answer in await asyncio.gather(*calls):
            assert (answer.status, answer.body.endswith(DONE)) == (200, True)
        assert first.outlier_detection.is_ejected


async def test_an_engine_whose_model_stands_still_is_ejected_though_its_server_answers(
    engine: ScriptedEngine, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("PROBE_S", 0.05), ("PROBE_UNKNOWN_S", 0.05), ("PROBE_CHECK_S", 0.02)):
        monkeypatch.setattr(probe, name, seconds)
    gateway = await start_gateway(engine)
    await eventually(lambda: gateway.context.fleet.by_model)
    found = next(iter(gateway.context.fleet.engines.values()))
    found.is_stalled = True  # as its record has it
    await eventually(lambda: found.outlier_detection.is_ejected)
    found.is_stalled = False
    found.outlier_detection.ejected_until = 0.0
    await eventually(lambda: not found.outlier_detection.is_ejected)


class _HungEngine:
    """Says what it serves until it hangs, and never answers anything else."""

    def __init__(self) -> None:
        self.is_hung = False

    def connection(self) -> asyncio.Protocol:
        hung = self

        class Connection(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                self.transport = transport

            def data_received(self, data: bytes) -> None:
                if data.startswith(b"GET") and not hung.is_hung:
                    self.transport.write(reply(b'{"data":[{"id":"tiny"}]}'))

        return Connection()


async def test_a_dead_engine_is_ejected_before_a_request_finds_out(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROBE_S", 0.05)
    gateway = await start_gateway(engine, other_engine)
    await engine.stop()
    await eventually(lambda: detection(gateway, engine).is_ejected)  # type: ignore[attr-defined]
    assert (await call(gateway.port)).status == 200
    assert gateway.context.metrics.retries == 0


@pytest.mark.parametrize("host", ["a" * 70, "x..y"])
async def test_a_host_name_that_dns_cannot_hold_is_an_unreachable_engine(
    engine: ScriptedEngine, start_gateway: StartGateway, host: str
) -> None:
    gateway = await start_gateway(engine)
    fleet, url = gateway.context.fleet, f"http://{host}:8000"
    record = EngineRecord("odd", url, "odd", "default", 7, 3, 8, "eagle3", "0.32.0", "0.1.0", 1.0, 2.0)
    await gateway.on_loop(fleet.apply, [record])
    [bad] = fleet.by_model["odd"]
    answer = await call(gateway.port, request({**STREAM, "model": "odd"}))
    assert (answer.status, answer.code) == (503, "engine_unavailable")
    await eventually(lambda: bad.outstanding_requests == 0)
    assert (await call(gateway.port)).status == 200


async def test_a_stream_that_begins_late_does_not_bring_an_ejected_engine_back(
    engine: ScriptedEngine, gateway: GatewayThread
) -> None:
    gate = asyncio.Event()
    engine.scripts = [[SSE_HEAD, gate, chunk(event("late")), HANG]]
    engine.script = failing(event("a"), ENGINE_ERROR)
    found = gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"].outlier_detection
    async with await Client.connect(gateway.port, request(STREAM)) as late:
        await engine.wait_seen(1)
        bodies = ({**STREAM, "max_tokens": at + 1} for at in range(FAILURES_ALLOWED))
        await asyncio.gather(*(call(gateway.port, request(body)) for body in bodies))
        await eventually(lambda: found.is_ejected)
        await gateway.on_loop(setattr, found, "ejected_until", found.ejected_until + 60.0)
        gate.set()
        await late.reader.readuntil(b"late")
        assert found.is_ejected
        assert found.stream_failures == FAILURES_ALLOWED


COMMENT = b": ping\n\n"
OPENINGS = {
    "/v1/responses": [CREATED, IN_PROGRESS],
    "/v1/messages": [MESSAGE_START, PING],
    "/v1/chat/completions": [COMMENT, b"\n\n", COMMENT],
}
DELTA = b'event: response.output_text.delta\ndata: {"delta":"a"}\n\n'
ENDS: dict[str, Script] = {
    "error": [chunk(NAMED_ERROR), LAST_CHUNK],
    "failed": [chunk(b'event: response.failed\ndata: {"response":{"error":{"code":"server_error"}}}\n\n'), LAST_CHUNK],
    "broken off": [0.02, CLOSE],
    "ended": [LAST_CHUNK],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("path", OPENINGS)
async def test_what_opens_a_stream_is_no_answer_yet(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, path: str, end: str
) -> None:
    engine.script = [SSE_HEAD, *map(chunk, OPENINGS[path]), *ENDS[end]]
    other_engine.script = [SSE_HEAD, *map(chunk, OPENINGS[path]), chunk(DELTA), LAST_CHUNK]
    gateway = await start_gateway(engine, other_engine, pass_keep_alives=False)
    for _ in range(2 * FAILURES_ALLOWED + 2):
        answer = await call(gateway.port, request(STREAM, path=path))
        assert (answer.status, answer.body) == (200, b"".join(OPENINGS[path]) + DELTA)
    assert len(engine.seen) == FAILURES_ALLOWED
    assert detection(gateway, engine).is_ejected  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", OPENINGS)
async def test_what_opens_a_stream_goes_out_with_its_first_content_and_that_at_once(
    engine: ScriptedEngine, start_gateway: StartGateway, path: str
) -> None:
    opened = asyncio.Event()
    engine.script = [SSE_HEAD, *map(chunk, OPENINGS[path]), opened, chunk(DELTA), HANG]
    gateway = await start_gateway(engine, pass_keep_alives=False)
    async with await Client.connect(gateway.port, request(STREAM, path=path)) as client:
        await engine.wait_seen(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.reader.readexactly(1), 0.1)
        [exchange] = gateway.context.exchanges
        assert exchange.phase == "wait"
        opened.set()
        assert b"x-request-id" in await asyncio.wait_for(client.reader.readuntil(DELTA), PATIENCE_S)
        assert exchange.phase == "response"
    cell = gateway.context.metrics.cells["tiny", "default"]
    assert sum(cell.itl.counts) == 0  # between what opens a stream and its first content no token is made


async def test_an_engine_that_only_opens_its_streams_is_left_after_the_time_for_a_first_byte(
    engine: ScriptedEngine, other_engine: ScriptedEngine, start_gateway: StartGateway, clock: Clock
) -> None:
    engine.script, other_engine.script = [SSE_HEAD, chunk(COMMENT), HANG], stream("ok")
    gateway = await start_gateway(engine, other_engine, clock=clock, stream_first_byte_timeout_s=0.3)
    one = gateway.context.fleet.engines[f"127.0.0.1:{engine.port}"]
    for _ in range(4):
        clock.at += 1.0
        answered = asyncio.create_task(call(gateway.port, request(STREAM)))
        await eventually(lambda answered=answered: answered.done() or one.heard_at == clock.at)
        clock.at += 0.4
        answer = await answered
        assert (answer.status, answer.body.removeprefix(COMMENT)[:6]) == (200, b"data: ")
    assert engine.seen
    assert detection(gateway, engine).failures == len(engine.seen)  # type: ignore[attr-defined]

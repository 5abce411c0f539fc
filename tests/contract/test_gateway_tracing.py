"""Spans, from a real gateway over real OTLP to a collector that decodes them."""

import asyncio
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.contract.conftest import StartGateway, StartProgram
from tests.support.gateway_client import STREAM, Client, call, request
from tests.support.gateway_server import GatewayThread, eventually
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    ScriptedEngine,
    chunk,
    completion,
    event,
    reply,
    usage_event,
)
from tests.support.stack import free_port

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONTEXT = f"traceparent: 00-{TRACE}-{PARENT}-01\r\ntracestate: vendor=1\r\n"
SERVER_KIND = 2


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with closing(OtlpReceiver()) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield receiver


async def span_of(collector: OtlpReceiver, at: int = 0) -> ReceivedSpan:
    await eventually(lambda: len(collector.spans) > at)
    return collector.spans[at]


@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
async def test_white_space_around_the_collectors_address_goes(
    engine: ScriptedEngine, collector: OtlpReceiver, start_gateway: StartGateway, variable: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv(variable, f" {collector.url}{'/v1/traces' * ('TRACES' in variable)}\n")
    gateway = await start_gateway(engine)
    await call(gateway.port)
    assert (await span_of(collector)).name == "POST /v1/chat/completions"
    assert f"{variable}: white space around the value was removed" in caplog.messages


async def counted(gateway: GatewayThread) -> dict[str, int]:
    text = (await call(gateway.port, request(path="/metrics", method="GET"))).body.decode()
    found = re.findall(r'spans_total\{outcome="([a-z]+)"\} ([0-9.]+)', text)
    return {outcome: int(float(count)) for outcome, count in found}


async def test_a_stream_is_one_span_below_the_clients(
    engine: ScriptedEngine, collector: OtlpReceiver, gateway: GatewayThread
) -> None:
    goes_on = asyncio.Event()
    frames = [chunk(event("a")), goes_on, chunk(event("b")), chunk(usage_event(7, 2.5)), chunk(DONE), LAST_CHUNK]
    engine.script = [SSE_HEAD, 0.1, *frames]
    headers = CONTEXT + "x-request-id: mine\r\nx-traffic-class: none-such\r\n"
    [one] = gateway.context.fleet.engines.values()
    began = time.monotonic()
    answered = asyncio.create_task(call(gateway.port, request({**STREAM, "max_tokens": 9}, headers=headers)))
    await eventually(lambda: one.content_at)  # the first token has come
    await asyncio.sleep(0.2)
    goes_on.set()
    answer = await answered
    lasted_s = time.monotonic() - began
    assert answer.status == 200
    span = await span_of(collector)
    assert (span.name, span.kind) == ("POST /v1/chat/completions", SERVER_KIND)
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT)
    assert not span.is_error
    assert 0.3 <= span.duration_s <= lasted_s + 0.01  # by two clocks
    assert 0.1 <= span.events["gen_ai.first_token"] <= span.duration_s - 0.2
    ttft_s = span.attributes["gen_ai.response.time_to_first_chunk"]
    assert 0.1 <= ttft_s <= span.duration_s - 0.2
    assert {name: value for name, value in span.attributes.items() if "time_to" not in name} == {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 7,
        "specpilot.acceptance_length": 2.5,
        "specpilot.engine": answer.headers["x-specpilot-engine"],
        "specpilot.engines_tried": 1,
        "specpilot.phase": "response",
        "specpilot.request_id": "mine",
        "specpilot.traffic_class": "default",
    }
    assert span.resource["service.name"] == "specpilot-gateway"
    # The engine gets this span's context and the client's state.
    assert engine.seen[0].headers["traceparent"] == f"00-{TRACE}-{span.span_id}-01"
    assert engine.seen[0].headers["tracestate"] == "vendor=1"
    assert (await eventually(gateway.log_lines))[0]["trace_id"] == TRACE


async def test_without_configuration_the_clients_context_passes_untouched(
    engine: ScriptedEngine, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    gateway = await start_gateway(engine)
    assert (await call(gateway.port, request(headers=CONTEXT))).status == 200
    assert engine.seen[0].headers["traceparent"] == f"00-{TRACE}-{PARENT}-01"
    assert engine.seen[0].headers["tracestate"] == "vendor=1"
    assert gateway.context.recorder.tracing is None
    assert await counted(gateway) == {}


async def until_counted(gateway: GatewayThread, expected: dict[str, int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await counted(gateway) != expected:
            pass


@pytest.mark.parametrize(
    "headers",
    [
        "",
        "traceparent: garbage\r\ntracestate: vendor=1\r\n",
        f"traceparent: 00-{TRACE}-{'0' * 16}-01\r\n",
        f"traceparent: 00-{TRACE}-{PARENT}-01\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n",
    ],
)
async def test_a_context_that_is_not_valid_begins_a_trace(
    engine: ScriptedEngine, collector: OtlpReceiver, gateway: GatewayThread, headers: str
) -> None:
    assert (await call(gateway.port, request(headers=headers + "x-traced: yes\r\n"))).status == 200
    span = await span_of(collector)
    assert span.parent_id == ""
    assert span.trace_id != TRACE
    # Sampled, and in newer SDKs marked as a random trace id too.
    assert re.fullmatch(f"00-{span.trace_id}-{span.span_id}-0[13]", engine.seen[0].headers["traceparent"])
    assert "tracestate" not in engine.seen[0].headers
    assert engine.seen[0].headers["x-traced"] == "yes"


async def test_what_the_client_does_not_sample_is_not_exported_but_passed_on(
    engine: ScriptedEngine, collector: OtlpReceiver, gateway: GatewayThread
) -> None:
    assert (await call(gateway.port, request(headers=CONTEXT.replace("-01\r", "-00\r")))).status == 200
    assert (await call(gateway.port, request(headers=CONTEXT))).status == 200
    await span_of(collector)
    assert len(collector.spans) == 1
    sent = engine.seen[0].headers["traceparent"]
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", sent)
    assert PARENT not in sent


async def test_the_sampler_and_the_name_are_the_sdks(
    engine: ScriptedEngine, collector: OtlpReceiver, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=blue")
    gateway = await start_gateway(engine)
    assert (await call(gateway.port, request())).status == 200
    assert (await call(gateway.port, request(headers=CONTEXT))).status == 200
    span = await span_of(collector)
    assert span.trace_id == TRACE
    assert len(collector.spans) == 1
    assert span.resource["service.name"] == "edge"
    assert collector.headers["x-tenant"] == "blue"


async def test_failures_and_retries_show(
    engine: ScriptedEngine, other_engine: ScriptedEngine, collector: OtlpReceiver, start_gateway: StartGateway
) -> None:
    gateway = await start_gateway(engine, other_engine)
    broken = [SSE_HEAD, chunk(event("a")), 0.05, CLOSE]
    for scripted in (engine, other_engine):
        scripted.choose = lambda seen: broken if seen.json.get("stream") else [reply(completion())]
    await call(gateway.port, request(STREAM))
    await call(gateway.port, request({"model": "none"}))
    await call(gateway.port, request(b"{"))
    for scripted in (engine, other_engine):
        scripted.choose = None
        scripted.scripts = [[reply(b"busy", "503 Service Unavailable")]]
    assert (await call(gateway.port, request())).status == 503  # the other one is as busy
    for scripted in (engine, other_engine):
        scripted.scripts = []
    await eventually(lambda: len(collector.spans) == 4)
    found = [
        (
            span.attributes["http.response.status_code"],
            span.attributes.get("error.type"),
            span.is_error,
            span.attributes["specpilot.engines_tried"],
        )
        for span in collector.spans
    ]
    assert found == [
        (200, "stream_broken", True, 1),
        (404, "model_not_found", False, 0),
        (400, "invalid_json", False, 0),
        (503, "503", True, 2),
    ]
    await eventually(lambda: len(gateway.log_lines()) == 4)
    assert [line["error"] for line in gateway.log_lines()] == ["stream_broken", "model_not_found", "invalid_json", None]


async def test_a_client_that_leaves_has_a_span_and_a_line_too(
    engine: ScriptedEngine, collector: OtlpReceiver, gateway: GatewayThread
) -> None:
    engine.script = [SSE_HEAD, chunk(event("a")), 60.0]
    async with await Client.connect(gateway.port, request(STREAM)) as client:
        await client.reader.readuntil(b"data: ")
    span = await span_of(collector)
    assert span.attributes["http.response.status_code"] == 499
    assert not span.is_error
    [line] = await eventually(gateway.log_lines)
    assert (line["status"], line["error"], line["phase"]) == (499, None, "response")


async def test_a_collector_that_does_not_answer_costs_spans_not_requests(
    engine: ScriptedEngine, collector: OtlpReceiver, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "5")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")  # who waited for it would not come back
    collector.go_deaf()
    gateway = await start_gateway(engine)
    assert (await call(gateway.port)).status == 200
    await eventually(lambda: collector.calls == 1)  # one batch is on its way for ever
    for _ in range(40):
        assert (await call(gateway.port)).status == 200
    assert await counted(gateway) == {"exported": 0, "failed": 0, "dropped": 30}


async def test_a_collector_that_is_gone_or_refuses_is_counted(
    engine: ScriptedEngine, collector: OtlpReceiver, start_gateway: StartGateway
) -> None:
    collector.status = 400
    gateway = await start_gateway(engine)
    for _ in range(5):
        assert (await call(gateway.port)).status == 200
    await until_counted(gateway, {"exported": 0, "failed": 5, "dropped": 0})
    collector.status = 200
    assert (await call(gateway.port)).status == 200
    await until_counted(gateway, {"exported": 1, "failed": 5, "dropped": 0})


async def test_the_program_ends_in_time_without_a_collector(
    start_program: StartProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")  # for so long it would try again
    program = await start_program()
    assert (await call(program.port)).status == 200
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0


async def test_the_last_spans_of_every_worker_are_exported_at_the_end(
    start_workers: StartProgram, collector: OtlpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    program = await start_workers()
    await asyncio.gather(*(call(program.port) for _ in range(20)))
    assert collector.spans == []
    program.process.send_signal(signal.SIGTERM)
    assert await program.end() == 0
    assert len(collector.spans) == 20


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_BSP_SCHEDULE_DELAY": "0"}, "do not work"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "True "}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, ""),
    ],
)
async def test_what_cannot_be_had_is_said_what_is_switched_off_is_not_and_the_gateway_serves(
    engine: ScriptedEngine,
    start_gateway: StartGateway,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variables: dict[str, str],
    said: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    gateway = await start_gateway(engine)
    assert gateway.context.recorder.tracing is None
    assert said in caplog.text
    assert (await call(gateway.port)).status == 200


async def test_a_missing_package_is_said_and_the_gateway_serves(
    engine: ScriptedEngine,
    start_gateway: StartGateway,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://x")
    monkeypatch.setitem(sys.modules, "specpilot.gateway.telemetry.otel", None)
    gateway = await start_gateway(engine)
    assert gateway.context.recorder.tracing is None
    assert "pip install 'specpilot[otel]'" in caplog.text

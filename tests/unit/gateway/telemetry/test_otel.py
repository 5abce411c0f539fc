"""Spans by the SDK: the end of an exporter whose collector is gone."""

import socket
import threading

import pytest

from specpilot.gateway.telemetry.otel import OtelTracing
from specpilot.gateway.wire.heads import read_request_head
from tests.support.patience import PATIENCE_S


async def test_after_the_end_no_thread_waits_for_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")  # for so long it would try again
    before = set(threading.enumerate())
    tracing = OtelTracing({}, "http")
    span = tracing.start_span(b"GET", "/v1/models", read_request_head([(b"host", b"x")]))
    assert span is not None
    span.end()
    await tracing.close()
    for thread in set(threading.enumerate()) - before:
        if not thread.name.startswith("asyncio_"):
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread.name

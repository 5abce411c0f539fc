"""Spans by the SDK: the end of an exporter whose collector is gone."""

import socket
import threading
import time

import pytest

from specpilot.gateway.telemetry.otel import OtelTracing
from specpilot.gateway.wire.heads import read_request_head


async def test_after_the_end_no_thread_waits_for_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    before = set(threading.enumerate())
    tracing = OtelTracing({}, "http")
    span = tracing.start_span(b"GET", "/v1/models", read_request_head([(b"host", b"x")]))
    assert span is not None
    span.end()
    await tracing.close()
    until = time.monotonic() + 2.0
    while (left := set(threading.enumerate()) - before) and time.monotonic() < until:
        time.sleep(0.05)  # noqa: ASYNC251 - nothing else runs in this loop
    assert [thread.name for thread in left if not thread.name.startswith("asyncio_")] == []

"""A collector: takes OTLP over HTTP, decodes it and keeps the spans."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.support.http_server import Asked, HttpServer


@dataclass(frozen=True)
class ReceivedSpan:
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    is_error: bool
    duration_s: float
    attributes: Mapping[str, Any]
    events: Mapping[str, float]
    """Each event's seconds after the start."""
    resource: Mapping[str, Any]


class OtlpReceiver(HttpServer):
    """`status` is what it answers; from `go_deaf` on it does not answer at all."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.status = 200
        self.calls = 0
        self.headers: dict[str, str] = {}
        self._hears = threading.Event()
        self._hears.set()
        super().__init__(self._answer)

    def go_deaf(self) -> None:
        self._hears.clear()

    def _answer(self, asked: Asked) -> tuple[int, bytes]:
        self.calls += 1
        self._hears.wait()
        self.headers = asked.headers
        if self.status == 200:
            assert asked.path == "/v1/traces"
            for group in ExportTraceServiceRequest.FromString(asked.body).resource_spans:
                resource = _plain(group.resource.attributes)
                self.spans += [_received(span, resource) for scope in group.scope_spans for span in scope.spans]
        return self.status, b""

    def close(self) -> None:
        self._hears.set()
        super().close()


def _received(span: trace_pb2.Span, resource: Mapping[str, Any]) -> ReceivedSpan:
    start = span.start_time_unix_nano
    return ReceivedSpan(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.kind,
        span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        (span.end_time_unix_nano - start) / 1e9,
        _plain(span.attributes),
        {event.name: (event.time_unix_nano - start) / 1e9 for event in span.events},
        resource,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    return {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in attributes}

"""A collector: takes OTLP over HTTP, decodes it and keeps the spans."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1 import trace_pb2


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


class OtlpReceiver:
    """Listens on a free port. `status` is what it answers; while `is_deaf` it does not answer at all."""

    def __init__(self) -> None:
        self.spans: list[ReceivedSpan] = []
        self.status = 200
        self.calls = 0
        self.headers: dict[str, str] = {}
        self._hears = threading.Event()
        self._hears.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.calls += 1
                receiver._hears.wait()
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.headers = {name.lower(): value for name, value in self.headers.items()}
                if receiver.status == 200:
                    receiver._take(self.path, body)
                self.send_response(receiver.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def go_deaf(self) -> None:
        self._hears.clear()

    def _take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = _plain(group.resource.attributes)
            self.spans += [_received(span, resource) for scope in group.scope_spans for span in scope.spans]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._hears.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


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

"""Traces by the OpenTelemetry SDK: one server span for each relayed request, exported by OTLP over HTTP.

The SDK reads all configuration from the standard `OTEL_*` variables. A span begins when its request is the next to be
answered on its connection, and ends with the response. Its parent is the client's `traceparent`; the `traceparent` for
engines names the span itself, sampled or not. Attributes follow the semantic conventions for HTTP servers and for
GenAI; `specpilot.*` attributes are for facts without a convention.

A thread exports spans in batches from a bounded queue. A span that finds the queue full is dropped and counted, so with
a slow or absent collector spans are lost, but no requests. An exception of the SDK is logged once and ignored.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.wire.heads import RequestHead
from specpilot.gateway.wire.usage import Usage
from specpilot.policy.clean_text import fault_of, removed, stripped
from specpilot.policy.http_client import is_on_this_machine

QUEUE_SPANS: Final = 2048
"""Spans that may wait for the collector, the SDK's own default. With a larger number fewer spans are lost, and more
memory is used."""

CLOSE_S: Final = 3.0
"""Seconds for the export of the last spans at the end."""

FIRST_TOKEN = "gen_ai.first_token"  # noqa: S105 - an event's name
_SERVER_ERROR = 500
_CLIENT_ERROR = 400
_PARENT, _STATE = b"traceparent", b"tracestate"
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}

_log = logging.getLogger(__name__)


class _Exporter(OTLPSpanExporter):
    """Counts the spans that are taken from the queue, and the results. Runs in the processor's thread."""

    dequeued = 0
    exported = 0
    failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch and count the result."""
        self.dequeued += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = super().export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self.exported += len(spans)
            else:
                self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """End a pause before the next attempt; harmless when called again, as the processor does."""
        if not self._shutdown:
            super().shutdown()  # type: ignore[no-untyped-call]  # of the package


class _Processor(BatchSpanProcessor):
    """The SDK's processor, with the bound enforced and counted here, because the SDK does not count its drops."""

    def __init__(self, exporter: _Exporter, limit_spans: int) -> None:
        super().__init__(exporter, max_queue_size=limit_spans)
        self._counted = exporter
        self._limit_spans = limit_spans
        self._queued = 0
        self.dropped = 0

    @property
    def unexported(self) -> int:
        """The number of queued spans without a result."""
        return self._queued - self._counted.exported - self._counted.failed

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span that has ended, unless the queue is full."""
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        if self._queued - self._counted.dequeued >= self._limit_spans:
            self.dropped += 1
            return
        self._queued += 1
        super().on_end(span)


def _check_headers(environment: Mapping[str, str]) -> None:
    """Raise `ValueError` for headers that cannot be sent: the SDK and its HTTP client would log their values."""
    for variable in ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"):
        headers = [item for item in environment.get(variable, "").split(",") if item.strip()]
        for number, item in enumerate(headers, 1):
            _, mark, value = item.partition("=")
            clean = stripped(unquote(value))  # as the SDK sends it
            fault = fault_of(clean, is_secret=True) if mark else "is not NAME=VALUE"
            if fault is not None:
                raise ValueError(f"{variable}: header {number} {fault}")
            if clean != unquote(value):
                _log.warning("%s", removed(f"{variable}: header {number}"))


def _endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the collector's address without white space around it; `None`, if there is none: the SDK's default."""
    for variable, path in (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ""), ("OTEL_EXPORTER_OTLP_ENDPOINT", "/v1/traces")):
        stated = environment.get(variable, "")
        address = stripped(stated)
        if address != stated:
            _log.warning("%s", removed(variable))
        if address:
            return address.removesuffix("/") + path if path else address
    return None


class OtelTracing:
    """`gateway.telemetry.tracing.Tracing` by the SDK. `environment` is the one that the SDK reads."""

    def __init__(self, environment: Mapping[str, str], scheme: str) -> None:
        self._scheme = scheme
        named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        _check_headers(environment)
        size = environment.get("OTEL_BSP_MAX_QUEUE_SIZE", "")
        endpoint = _endpoint(environment)
        session = requests.Session()
        session.trust_env = not is_on_this_machine(endpoint or "http://localhost:4318")  # otherwise its proxies
        self._exporter = _Exporter(endpoint=endpoint, session=session)
        self._processor = _Processor(self._exporter, int(size) if size.isdecimal() and int(size) else QUEUE_SPANS)
        resource = Resource.create(None if named else {SERVICE_NAME: "specpilot-gateway"})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("specpilot.gateway")
        self._propagator = TraceContextTextMapPropagator()
        self._has_failed = False

    @property
    def counts(self) -> Mapping[str, int]:
        """Spans so far by outcome."""
        exporter = self._exporter
        return {"exported": exporter.exported, "failed": exporter.failed, "dropped": self._processor.dropped}

    def start_span(self, method: bytes, path: str, request: RequestHead) -> Span | None:
        """Return the span of a request that begins now; `None` when the SDK fails."""
        try:
            name = method.decode()
            rest, carrier = _without_context(request.forwarded)
            span = self._tracer.start_span(
                f"{name} {path}",
                self._propagator.extract(carrier),
                SpanKind.SERVER,
                {"http.request.method": name, "url.path": path, "url.scheme": self._scheme, "http.route": path},
            )
            request.forwarded = rest + _context_lines(span)
        except Exception:  # noqa: BLE001 - see the module
            self._fail()
            return None
        return span

    def end_span(self, span: Span, outcome: Outcome) -> None:
        """Describe the span by `outcome` and end it."""
        try:
            if span.is_recording():
                _describe(span, outcome, time.time_ns())
            span.end()
        except Exception:  # noqa: BLE001 - see the module
            self._fail()

    def trace_id(self, span: Span) -> str:
        """Return the name of the span's trace, 32 hexadecimal digits."""
        return f"{span.get_span_context().trace_id:032x}"

    async def close(self) -> None:
        """Export the remaining spans, for at most `CLOSE_S`: an absent collector must not delay the end."""
        thread = threading.Thread(target=self._provider.shutdown, name="tracing-end", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, CLOSE_S)
        unexported = self._processor.unexported
        if thread.is_alive():
            self._exporter.shutdown()  # ends its pause before the next attempt, which may last half a minute
        if unexported:
            _log.warning("%d spans could not be exported before the end", unexported)

    def _fail(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.exception("a request could not be traced; further faults are not logged")


def _without_context(forwarded: bytes) -> tuple[bytes, dict[str, list[str]]]:
    """Return the header lines `forwarded` without those of the trace context, and the latter by name."""
    carrier: dict[str, list[str]] = {}
    if b"trace" not in forwarded:
        return forwarded, carrier
    lines: list[bytes] = []
    for line in forwarded.splitlines(keepends=True):
        name, _, value = line.partition(b": ")
        if name in (_PARENT, _STATE):
            carrier.setdefault(name.decode(), []).append(value.strip().decode("latin-1"))
        else:
            lines.append(line)
    if len(carrier.get("traceparent", ())) != 1:
        carrier.clear()  # none, or several contradicting ones
    return b"".join(lines), carrier


def _context_lines(span: Span) -> bytes:
    context = span.get_span_context()
    lines = b"traceparent: 00-%032x-%016x-%02x\r\n" % (context.trace_id, context.span_id, context.trace_flags)
    if context.trace_state:
        lines += b"tracestate: " + context.trace_state.to_header().encode("latin-1") + b"\r\n"
    return lines


def _describe(span: Span, outcome: Outcome, now_ns: int) -> None:
    is_read = outcome.model is not None
    usage = outcome.usage or Usage()
    has_failed = outcome.error is not None or outcome.status >= _SERVER_ERROR
    attributes: dict[str, Any] = {
        "http.response.status_code": outcome.status,
        "specpilot.request_id": outcome.request_id.decode(),
        "specpilot.engine": outcome.engine_id,
        "specpilot.engines_tried": outcome.engines_tried,
        "specpilot.phase": outcome.phase,
        "specpilot.key_id": outcome.key_id,
        "specpilot.traffic_class": outcome.traffic_class,
        "gen_ai.operation.name": _OPERATIONS.get(outcome.path) if is_read else None,
        "gen_ai.request.model": outcome.model,
        "gen_ai.request.stream": outcome.is_stream if is_read else None,
        "gen_ai.request.max_tokens": outcome.max_tokens,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "specpilot.acceptance_length": usage.acceptance_length,
        "gen_ai.response.time_to_first_chunk": outcome.ttft_s,
        "error.type": (outcome.error or str(outcome.status)) if has_failed else None,
    }
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})
    if outcome.ttft_s is not None and outcome.first_byte_at is not None:
        span.add_event(FIRST_TOKEN, timestamp=now_ns - round((outcome.ended_at - outcome.first_byte_at) * 1e9))
    if has_failed and not _CLIENT_ERROR <= outcome.status < _SERVER_ERROR:
        span.set_status(Status(StatusCode.ERROR))

"""Records a request that has ended: counts, a line in the access log, a span. No body, no secret."""

from typing import Final

import orjson

from specpilot.gateway.telemetry.access_log import AccessLog
from specpilot.gateway.telemetry.cell import Cell
from specpilot.gateway.telemetry.metrics import GatewayMetrics
from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.telemetry.tracing import Span, Tracing
from specpilot.gateway.wire.errors import GatewayError
from specpilot.gateway.wire.heads import RequestHead, milliseconds, thousandths
from specpilot.policy.clock import Clock
from specpilot.policy.names import OTHER

COMMON: Final = (
    "method", "path", "model", "requested_model", "traffic_class", "key_id", "client", "engine", "engines_tried",
    "status", "error", "phase",
)  # fmt: skip
"""The members of a line that many requests share."""

_WRITTEN_MAX: Final = 1024
_NULL: Final = b"null"
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")


class Recorder:
    """Records requests. Without `tracing` there are no spans."""

    def __init__(self, metrics: GatewayMetrics, log: AccessLog, tracing: Tracing | None, clock: Clock) -> None:
        self.metrics = metrics
        self.log = log
        self.tracing = tracing
        self._clock = clock
        self._written: dict[tuple[object, ...], bytes] = {}  # parts of lines that many requests share

    def start_span(self, method: bytes, path: str, request: RequestHead) -> Span | None:
        """Return the span of a request that begins now; `None` without tracing."""
        return None if self.tracing is None else self.tracing.start_span(method, path, request)

    def record(self, outcome: Outcome, cell: Cell | None, span: Span | None) -> None:
        """Count `outcome` in `cell` (in `other` without one), log it, and end its `span`."""
        cell = cell or self.metrics.cell(OTHER, OTHER)
        duration_s, ttft_s, usage = outcome.duration_s, outcome.ttft_s, outcome.usage
        cell.count(outcome.status, duration_s)
        if outcome.overhead_s is not None:
            cell.overhead.observe(outcome.overhead_s)
        if ttft_s is not None:
            cell.ttft.observe(ttft_s)
        if usage is not None:
            cell.learn(usage, outcome.events)
        if outcome.key_id is not None:
            self.metrics.count_key(outcome.key_id, outcome.status, usage, outcome.events)
        trace = None
        if span is not None and self.tracing is not None:
            trace = self.tracing.trace_id(span)
            self.tracing.end_span(span, outcome)
        if not self.log.is_on:
            return
        self.log.add(self._line(outcome, trace))

    def _line(self, outcome: Outcome, trace: str | None) -> bytes:
        """Return the line of the access log.

        The part that many requests share is written once; writing all of it each time took a tenth of a request's time.
        """
        common = (
            outcome.method,
            outcome.path,
            outcome.model,
            outcome.requested_model,
            outcome.traffic_class,
            outcome.key_id,
            outcome.client_host,
            outcome.engine_id,
            outcome.engines_tried,
            outcome.status,
            outcome.error,
            outcome.phase,
        )
        written = self._written.get(common)
        if written is None:
            members = dict(zip(COMMON, common, strict=True)) | {"method": outcome.method.decode()}
            written = orjson.dumps(members)[1:-1]
            if len(self._written) >= _WRITTEN_MAX:
                self._written.clear()
            self._written[common] = written
        usage, ttft_s, length = outcome.usage, outcome.ttft_s, None
        if usage is not None:
            length = usage.acceptance_length
        return (
            b'{"at":%s,"request_id":%s,"queue_ms":%s,"duration_ms":%s,"ttft_ms":%s,"input_tokens":%s,"output_tokens":%s,'
            b'"acceptance_length":%s,"trace_id":%s,%s}'
        ) % (
            thousandths(int(self._clock.now() * 1e3 + 0.5)),
            _quoted(outcome.request_id),
            milliseconds(outcome.waited_s),
            milliseconds(outcome.duration_s),
            _NULL if ttft_s is None else milliseconds(ttft_s),
            _NULL if usage is None else _number(usage.input_tokens),
            _NULL if usage is None else _number(usage.output_tokens),
            _NULL if length is None else orjson.dumps(length),
            _NULL if trace is None else _quoted(trace.encode()),
            written,
        )

    def record_unread(
        self, request_id: bytes, error: GatewayError, began_at: float | None, client_host: str | None
    ) -> None:
        """Count and log a request that could not be read, and so has neither method nor path."""
        now = self._clock.monotonic()
        outcome = Outcome(
            request_id=request_id,
            method=b"",
            path="",
            status=error.status,
            phase="request",
            received_at=now if began_at is None else began_at,
            ended_at=now,
            error=error.code,
        )
        outcome.client_host = client_host
        self.record(outcome, None, None)


def _quoted(text: bytes) -> bytes:
    """Return visible ASCII as JSON: a client may have put a quote or a backslash into its request's identifier."""
    if _QUOTE in text or _BACKSLASH in text:
        return orjson.dumps(text.decode())
    return b'"%s"' % text


def _number(count: int | None) -> bytes:
    return _NULL if count is None else b"%d" % count

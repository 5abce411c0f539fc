"""What remains of a request when it is over: counts, and a line in the access log. No body, no secret."""

from dataclasses import dataclass

from gateway.delivery import Delivery
from gateway.errors import GatewayError
from gateway.intake import Intake
from gateway.plane import Plane
from gateway.tracing import Span
from policy.types import OTHER, ApiKey


@dataclass(slots=True)
class Outcome:
    """How one request went. Times are monotonic seconds; `sent_at` is 0 when it never reached an engine.

    `error` says what went wrong where the status does not: the code of the gateway's own error, sent instead of a
    response or at the end of one; `error_event` for an engine's within a stream; `stalled` for a client cut off.
    """

    request_id: bytes
    method: bytes
    path: str
    status: int
    phase: str
    received_at: float
    sent_at: float
    ended_at: float
    engines_tried: int
    engine_id: str | None
    key: ApiKey | None
    intake: Intake | None
    delivery: Delivery | None
    error: str | None
    span: Span | None


def record_unread(plane: Plane, request_id: bytes, error: GatewayError, began_at: float | None) -> None:
    """Count and log a request that could not be read, and so has neither method nor path."""
    now = plane.monotonic()
    outcome = Outcome(
        request_id=request_id,
        method=b"",
        path="",
        status=error.status,
        phase="request",
        received_at=now if began_at is None else began_at,
        sent_at=0.0,
        ended_at=now,
        engines_tried=0,
        engine_id=None,
        key=None,
        intake=None,
        delivery=None,
        error=error.code,
        span=None,
    )
    record(plane, outcome)


def record(plane: Plane, outcome: Outcome) -> None:
    """Count `outcome`, log it, and end its span."""
    intake, delivery = outcome.intake, outcome.delivery
    cell = plane.metrics.cell(OTHER, OTHER) if intake is None else intake.cell
    duration_s = outcome.ended_at - outcome.received_at
    cell.count(outcome.status, duration_s)
    if outcome.sent_at:
        cell.overhead.observe(max(0.0, outcome.sent_at - outcome.received_at))
    ttft_s = None
    if delivery is not None:
        if delivery.is_stream and delivery.first_at is not None:
            ttft_s = delivery.first_at - outcome.received_at
            cell.ttft.observe(ttft_s)
        cell.learn(delivery.usage, delivery.events)
    trace = None
    if outcome.span is not None and plane.tracing is not None:
        trace = plane.tracing.trace_id(outcome.span)
        plane.tracing.end(outcome.span, outcome)
    if plane.log.is_on:
        usage = None if delivery is None else delivery.usage
        plane.note(
            {
                "request_id": outcome.request_id.decode(),
                "method": outcome.method.decode(),
                "path": outcome.path,
                "model": None if intake is None else intake.facts.model,
                "traffic_class": None if intake is None else intake.traffic_class,
                "key_id": None if outcome.key is None else outcome.key.key_id,
                "engine": outcome.engine_id,
                "engines_tried": outcome.engines_tried,
                "status": outcome.status,
                "error": outcome.error,
                "phase": outcome.phase,
                "duration_ms": round(duration_s * 1000, 2),
                "ttft_ms": None if ttft_s is None else round(ttft_s * 1000, 2),
                "input_tokens": None if usage is None else usage.input_tokens,
                "output_tokens": None if usage is None else usage.output_tokens,
                "acceptance_length": None if usage is None else usage.acceptance_length,
                "trace_id": trace,
            }
        )

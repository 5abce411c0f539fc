"""What remains of a request when it is over: counts, and a line in the access log. No body, no secret."""

from dataclasses import dataclass

from gateway.delivery import Delivery
from gateway.intake import Intake
from gateway.plane import Plane
from policy.types import OTHER, ApiKey


@dataclass(slots=True)
class Outcome:
    """How one request went. Times are monotonic seconds; `sent_at` is 0 when it never reached an engine."""

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


def record(plane: Plane, outcome: Outcome) -> None:
    """Count `outcome` and log it."""
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
                "phase": outcome.phase,
                "duration_ms": round(duration_s * 1000, 2),
                "ttft_ms": None if ttft_s is None else round(ttft_s * 1000, 2),
                "output_tokens": None if usage is None else usage.output_tokens,
                "acceptance_length": None if usage is None else usage.acceptance_length,
            }
        )

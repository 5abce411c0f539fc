"""Accounts for a request: in the limits of its API key, the metrics of its class, the access log and its trace.

Its key is charged an estimate before the request is sent. When the request has ended, it is recorded once, and the
charge is corrected to the usage.
"""

from specpilot.gateway.limits.rate_limit import used_tokens
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.relay.relay import Relay
from specpilot.gateway.telemetry.outcome import Outcome
from specpilot.gateway.telemetry.tracing import Span
from specpilot.gateway.wire.errors import RateLimitError
from specpilot.gateway.wire.heads import rate_lines
from specpilot.gateway.wire.routes import UNCHARGED
from specpilot.policy.api_key import ApiKey


def charge(context: GatewayContext, key: ApiKey, prepared: PreparedRequest, now: float) -> bool:
    """Charge a request to `key`, and add its limits to the client's header lines. `now` is monotonic seconds.

    Returns `True`: the charge is to be settled at the end. Raises `RateLimitError` when the request may not pass.
    """
    meter = context.rates.meter(key, prepared.charged_tokens, now)
    denied = meter.admit(prepared.charged_tokens, now)
    for kind, bucket in meter.buckets.items():
        prepared.rate_lines += rate_lines(kind.encode(), bucket.limit, bucket.remaining, bucket.reset_s)
    prepared.header_lines += prepared.rate_lines
    if denied is not None:
        raise RateLimitError(denied.message, denied.kind, denied.retry_after_s)
    return True


def record_end(  # noqa: PLR0913, PLR0917 - the parts of a request
    context: GatewayContext,
    outcome: Outcome,
    key: ApiKey | None,
    prepared: PreparedRequest | None,
    relay: Relay | None,
    span: Span | None,
    *,
    is_charged: bool,
) -> None:
    """Complete `outcome` and record it. `relay` is the request's relay, `span` its trace.

    `prepared` is `None` for a request that was rejected before the decisions about it. `is_charged`: `charge`
    succeeded.
    """
    if key is not None:
        outcome.key_id = key.key_id
    if prepared is not None:
        outcome.model = prepared.model
        outcome.requested_model = prepared.requested_model
        outcome.traffic_class = prepared.traffic_class
        outcome.is_stream = prepared.is_stream
        outcome.max_tokens = prepared.max_tokens
    if relay is not None:
        relay.describe()
    context.recorder.record(outcome, None if prepared is None else prepared.cell, span)
    if prepared is not None and outcome.is_event_stream:
        slo = context.slo(prepared.model, prepared.traffic_class)
        if slo is not None:
            # Of several choices the usage states the tokens together, and no choice has its own time.
            prepared.cell.judge(slo, outcome.ttft_s, outcome.tpot_s if prepared.has_one_choice else None)
    if is_charged and key is not None and prepared is not None:
        used = _used_by(relay, outcome.path, prepared, outcome.status)
        context.rates.settle(key.key_id, prepared.charged_tokens, used, outcome.ended_at)


def _used_by(relay: Relay | None, path: str, prepared: PreparedRequest, status: int) -> int:
    """Return the tokens to charge for a request that has ended; `relay` is its relay."""
    if relay is None or not relay.sent_at or path in UNCHARGED:
        return 0
    delivery = relay.delivery
    usage, output = (None, 0) if delivery is None else (delivery.usage.total_tokens, delivery.tokens)
    return used_tokens(prepared.charged_tokens, prepared.prompt_tokens, usage, output, status)

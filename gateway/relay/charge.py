"""The charge of a request against the limits of its API key: an estimate before it is sent, its usage afterwards."""

from specpilot.gateway.limits.rate_limit import used_tokens
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.relay.relay import Relay
from specpilot.gateway.wire.errors import RateLimitError
from specpilot.gateway.wire.heads import rate_lines
from specpilot.gateway.wire.routes import UNCHARGED
from specpilot.policy.types import ApiKey


def charge(context: GatewayContext, key: ApiKey, prepared: PreparedRequest, now: float) -> bool:
    """Charge a request to `key`, and add its limits to the client's header lines. `now` is monotonic seconds.

    Returns `True`: the charge is to be settled at the end. Raises `RateLimitError` when the request may not pass.
    """
    meter = context.rates.meter(key, prepared.charged_tokens, now)
    denied = meter.admit(prepared.charged_tokens, now)
    for kind, bucket in ((b"requests", meter.requests), (b"tokens", meter.tokens)):
        if bucket is not None:
            prepared.rate_lines += rate_lines(kind, bucket.limit, bucket.remaining, bucket.reset_s)
    prepared.own += prepared.rate_lines
    if denied is not None:
        raise RateLimitError(denied.message, denied.kind, denied.retry_after_s)
    return True


def used_by(trip: Relay | None, path: str, prepared: PreparedRequest, status: int) -> int:
    """Return the tokens to charge for a request that has ended; `trip` is its relay."""
    if trip is None or not trip.sent_at or path in UNCHARGED:
        return 0
    delivery = trip.delivery
    stated, sent = (None, 0) if delivery is None else (delivery.usage.total_tokens, delivery.tokens)
    return used_tokens(prepared.charged_tokens, prepared.prompt_tokens, stated, sent, status)

"""A client's API key, its limits, and the demand under it that gateways report."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from specpilot.policy.names import STRICT, ClassName, K, ModelName

RATE_LIMIT_MAX = 1_000_000_000
"""A bound on an API key's limits; it only catches typing errors."""

ALLOWED_MODELS_LIMIT = 256
"""Models that an API key may name at most; each of its requests searches them."""


RateLimit = Annotated[int, Field(ge=1, le=RATE_LIMIT_MAX)]
AllowedModels = Annotated[tuple[ModelName, ...], Field(max_length=ALLOWED_MODELS_LIMIT)]


@dataclass(frozen=True, slots=True, config=STRICT)
class ApiKey:
    """A client's key as it is stored: only its SHA-256, never the key.

    `traffic_class` is the class of its requests without a stated class; `allowed_classes` are the classes that a
    request may state by header, `None`: every class of the model. `requests_per_minute`, `tokens_per_minute` and
    `max_concurrent_requests` (under way at once, waiting ones included) are its limits over all gateways together,
    `None` for none. `allowed_models` are the names that its requests may ask for, `None` meaning any. `k_max` is the
    ceiling on K of its requests, `None` for none. The key is refused from `expires_at` (Unix seconds) on; `None`: it
    does not expire. After a rotation the former secret, `previous_sha256`, is valid until `previous_expires_at`.
    """

    key_id: Annotated[str, Field(min_length=1)]
    sha256: str
    traffic_class: ClassName | None = None
    allowed_classes: tuple[ClassName, ...] | None = None
    requests_per_minute: RateLimit | None = None
    tokens_per_minute: RateLimit | None = None
    expires_at: float | None = None
    previous_sha256: str | None = None
    previous_expires_at: float | None = None
    allowed_models: AllowedModels | None = None
    max_concurrent_requests: RateLimit | None = None
    k_max: K | None = None

    def admits(self, sha256: str, now: float) -> bool:
        """Whether the key with this hash is accepted at `now`."""
        if self.expires_at is not None and now >= self.expires_at:
            return False
        if sha256 == self.sha256.lower():
            return True
        return sha256 == self.previous_sha256 and (self.previous_expires_at is None or now < self.previous_expires_at)

    @property
    def has_limits(self) -> bool:
        """Whether it has any limit on its rate or concurrency."""
        return (
            self.requests_per_minute is not None
            or self.tokens_per_minute is not None
            or self.max_concurrent_requests is not None
        )

    def may_use(self, model: str) -> bool:
        """Whether its requests may ask for `model`."""
        return self.allowed_models is None or model in self.allowed_models


@dataclass(frozen=True, slots=True)
class GatewayUsage:
    """The demand under each limited key that one gateway reports every second; also its heartbeat.

    `demand` maps a key's id to a multiple of the key's limit over all gateways together. Keys without demand are left
    out.
    """

    gateway_id: str
    demand: Mapping[str, float]

"""A client's API key, its limits, and the demand under it that gateways report."""

from collections.abc import Mapping
from dataclasses import dataclass

from specpilot.policy.names import K_LIMIT, model_name_faults, raise_faults

RATE_LIMIT_MAX = 1_000_000_000
"""A bound on an API key's limits; it only catches typing errors."""

ALLOWED_MODELS_LIMIT = 256
"""Models that an API key may name at most; each of its requests searches them."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A client's key as it is stored: only its SHA-256, never the key.

    `traffic_class` is the class of its requests without a stated class; `allowed_classes` are the classes that a
    request may state by header, `None`: every class of the model. `requests_per_minute`, `tokens_per_minute` and
    `max_concurrent_requests` (under way at once, waiting ones included) are its limits over all gateways together,
    `None` for none. `allowed_models` are the names that its requests may ask for, `None` meaning any. `k_max` is the
    ceiling on K of its requests, `None` for none. The key is refused from `expires_at` (Unix seconds) on; `None`: it
    does not expire. After a rotation the former secret, `previous_sha256`, is valid until `previous_expires_at`.
    """

    key_id: str
    sha256: str
    traffic_class: str | None = None
    allowed_classes: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    expires_at: float | None = None
    previous_sha256: str | None = None
    previous_expires_at: float | None = None
    allowed_models: tuple[str, ...] | None = None
    max_concurrent_requests: int | None = None
    k_max: int | None = None

    def __post_init__(self) -> None:
        limits = rate_faults(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            max_concurrent_requests=self.max_concurrent_requests,
        )
        raise_faults([*limits, *model_faults(self.allowed_models), *ceiling_faults(self.k_max)])

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


def rate_faults(**limits: int | None) -> list[str]:
    """Return the faults of `limits`, each a number of requests or tokens or `None`, for an API key."""
    return [
        f"{label} is {limit}; it must be between 1 and {RATE_LIMIT_MAX}, or left out for no limit"
        for label, limit in limits.items()
        if limit is not None and not 1 <= limit <= RATE_LIMIT_MAX
    ]


def ceiling_faults(k_max: int | None) -> list[str]:
    """Return the faults of `k_max` as an API key's ceiling on K."""
    if k_max is None or 0 <= k_max <= K_LIMIT:
        return []
    return [f"k_max is {k_max}; it must be between 0 (no speculation) and {K_LIMIT}, or left out for no ceiling"]


def model_faults(allowed_models: tuple[str, ...] | None) -> list[str]:
    """Return the faults of `allowed_models` for an API key."""
    names = allowed_models or ()
    faults = [f"allowed_models: {fault}" for name in names for fault in model_name_faults("model", name)]
    if len(names) > ALLOWED_MODELS_LIMIT:
        faults.append(f"allowed_models names {len(names)} models; at most {ALLOWED_MODELS_LIMIT}")
    return faults

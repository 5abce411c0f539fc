"""The shapes of documents that callers send and nobody stores: fields and bounds, also for the OpenAPI page.

`expiry` has the fields that state when something ends.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from specpilot.controller.admin.expiry import Expiry, Seconds, Time
from specpilot.policy.access import TOKEN_NAME_LIMIT, is_token_name
from specpilot.policy.api_key import AllowedModels, RateLimit
from specpilot.policy.names import STRICT, ClassName, K

NEWEST_VERSION = 2**53
_LONGEST_GRACE_S = 30 * 86_400.0


def _token_name(name: str) -> str:
    if not is_token_name(name):
        raise ValueError(f"must be 1 to {TOKEN_NAME_LIMIT} letters, digits, spaces or ._@+-, the first no sign")
    return name


_Limit = Annotated[RateLimit, Field(strict=True)] | None


@dataclass(frozen=True, kw_only=True)
class KeyRotation(Expiry):
    """What the rotation of a client key may change; `grace_s`: how long the old secret stays valid."""

    grace_s: Annotated[float, Field(strict=True, ge=0, le=_LONGEST_GRACE_S)] = 0.0


@dataclass(frozen=True, kw_only=True)
class KeyRequest(Expiry):
    """The limits of a client key."""

    traffic_class: ClassName | None = None
    allowed_classes: tuple[ClassName, ...] | None = None
    allowed_models: AllowedModels | None = None
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None
    max_concurrent_requests: _Limit = None
    k_max: Annotated[K, Field(strict=True)] | None = None


@dataclass(frozen=True, kw_only=True)
class TokenRequest(Expiry):
    """A new token."""

    name: Annotated[str, Field(max_length=TOKEN_NAME_LIMIT), AfterValidator(_token_name)]
    role: Literal["viewer", "operator", "admin"]


@dataclass(frozen=True, kw_only=True)
class FreezeRequest:
    """A freeze; `replace`: also in place of one that somebody else began."""

    __pydantic_config__: ClassVar = STRICT
    hold: Literal["current", "static"] = "current"
    until: Time = None
    for_s: Seconds = None
    replace: Annotated[bool, Field(strict=True)] = False


@dataclass(frozen=True, kw_only=True)
class Rollback:
    """The version to write again."""

    __pydantic_config__: ClassVar = STRICT
    version: Annotated[int, Field(strict=True, ge=1, le=NEWEST_VERSION)]

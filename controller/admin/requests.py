"""The shapes of documents that callers send and nobody stores: fields and bounds, also for the OpenAPI page.

`expiry` has the fields that state when something ends.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from specpilot.controller.admin.expiry import Expiry, Seconds, Time
from specpilot.policy.access import TOKEN_NAME_LIMIT, is_token_name
from specpilot.policy.api_key import ALLOWED_MODELS_LIMIT, RATE_LIMIT_MAX, model_faults
from specpilot.policy.names import K_LIMIT, STRICT, is_class_name, raise_faults

NEWEST_VERSION = 2**53
_LONGEST_GRACE_S = 30 * 86_400.0


def _models(names: tuple[str, ...]) -> tuple[str, ...]:
    raise_faults(model_faults(names))
    return names


def _token_name(name: str) -> str:
    if not is_token_name(name):
        raise ValueError(f"must be 1 to {TOKEN_NAME_LIMIT} letters, digits, spaces or ._@+-, the first no sign")
    return name


def _class_name(name: str) -> str:
    raise_faults(
        [] if is_class_name(name) else ["must be a lower-case class name of at most 32 characters, such as code"]
    )
    return name


_Class = Annotated[str, AfterValidator(_class_name), Field(json_schema_extra={"pattern": "^[a-z][a-z0-9_-]{0,31}$"})]
_Models = Annotated[tuple[str, ...], Field(max_length=ALLOWED_MODELS_LIMIT), AfterValidator(_models)]
_Limit = Annotated[int, Field(strict=True, ge=1, le=RATE_LIMIT_MAX)] | None


@dataclass(frozen=True, kw_only=True)
class KeyRotation(Expiry):
    """What the rotation of a client key may change; `grace_s`: how long the old secret stays valid."""

    grace_s: Annotated[float, Field(strict=True, ge=0, le=_LONGEST_GRACE_S)] = 0.0


@dataclass(frozen=True, kw_only=True)
class KeyRequest(Expiry):
    """The limits of a client key."""

    traffic_class: _Class | None = None
    allowed_classes: tuple[_Class, ...] | None = None
    allowed_models: _Models | None = None
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None
    max_concurrent_requests: _Limit = None
    k_max: Annotated[int, Field(strict=True, ge=0, le=K_LIMIT)] | None = None


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

"""Expiry of keys, tokens and freezes in requests: a time, or seconds from now, and not both.

The bounds of a time depend on the present time, which `body.document_from` hands to the checks.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo

from specpilot.controller.admin.problems import invalid
from specpilot.policy.clock import utc
from specpilot.policy.errors import Fault
from specpilot.policy.names import STRICT

LONGEST_S = 10 * 366 * 86_400
"""Ten years. The bound detects times given in milliseconds."""


def _to_come(at: float, info: ValidationInfo) -> float:
    now: Any = info.context
    if not now < at <= now + LONGEST_S:  # the message has no value, which may be of any length
        raise ValueError(f"must be Unix seconds after {utc(now)} and at most {utc(now + LONGEST_S)}")
    return at


def _alone(seconds: float, info: ValidationInfo) -> float:
    for name in ("expires_at", "until"):
        if info.data.get(name) is not None:
            raise ValueError(f"and {name} say the same; give one of them")
    return seconds


_Moment = Annotated[float, Field(strict=True), AfterValidator(_to_come)]
_Duration = Annotated[float, Field(strict=True, gt=0, le=LONGEST_S), AfterValidator(_alone)]
Time = Annotated[_Moment | None, Field(description="Unix seconds; null: no end")]
Seconds = Annotated[_Duration | None, Field(description="from now on")]
"""The types of a request's two fields, the time first."""


def moment_of(at: float | None, within_s: float | None, now: float) -> float | None:
    """Return the Unix seconds that the two fields of a request state; `None` for no end."""
    return at if within_s is None else now + within_s


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """When a token or key expires: all that the rotation of a token may change."""

    __pydantic_config__: ClassVar = STRICT
    expires_at: Time = None
    expires_in_s: Seconds = None

    def after_rotation(self, stated: Collection[str], before: float | None, now: float) -> float | None:
        """Return the expiry after a rotation whose request has the fields `stated`: its own, else that of `before`.

        Raises `ApiError` if that is over.
        """
        if "expires_at" in stated or "expires_in_s" in stated:
            return moment_of(self.expires_at, self.expires_in_s, now)
        if before is not None and before <= now:
            problem = "is missing, and it has expired; give it, or expires_at (null: it does not expire)"
            raise invalid([Fault("expires_in_s", problem)], "rotation")
        return before

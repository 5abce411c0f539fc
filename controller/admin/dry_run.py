"""The reply to a dry run: the effect of a write without the write.

A dry run is rejected like the write, with every fault by its field. Otherwise the reply has the fields that would
change and, if K may change, a forecast: the choice of K under the present and under the new policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi.responses import JSONResponse

from specpilot.controller.forecast import PoolForecast
from specpilot.policy.codec import to_plain
from specpilot.policy.history import Difference
from specpilot.policy.model_policy import Policy


@dataclass(frozen=True, slots=True)
class DryRun:
    """The answer to `?validate_only=true`.

    `version` is the version that the document would get, `None` if it has none.
    """

    dry_run: bool
    subject: str
    version: int | None
    changes: tuple[Difference, ...]
    forecast: tuple[PoolForecast, ...] | None = None


def no_forecast(model: str, policy: Policy | None) -> Sequence[PoolForecast]:
    """Return no forecast: the `Forecast` of a controller without a control law."""
    del model, policy
    return ()


def answer(
    subject: str, version: int | None, changes: Sequence[Difference], forecast: Sequence[PoolForecast] | None = None
) -> JSONResponse:
    """Return a dry run's answer."""
    reply = DryRun(True, subject, version, tuple(changes), None if forecast is None else tuple(forecast))
    return JSONResponse(to_plain(reply))

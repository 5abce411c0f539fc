"""What a write would do, said before it is done.

A dry run is refused as the write would be, with every fault by its field. Otherwise it answers with the fields that
would change and, where K may change, with a forecast: what the law would choose now, beside today.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi.responses import JSONResponse

from specpilot.controller.forecast import PoolForecast
from specpilot.policy.codec import to_plain
from specpilot.policy.history import Difference
from specpilot.policy.types import Policy


@dataclass(frozen=True, slots=True)
class DryRun:
    """The answer to `?validate_only=true`.

    `version` is the one that the document would be stored as, `None` where it has none.
    """

    dry_run: bool
    subject: str
    version: int | None
    changes: tuple[Difference, ...]
    forecast: tuple[PoolForecast, ...] | None = None


def no_forecast(model: str, policy: Policy | None) -> Sequence[PoolForecast]:
    """Return that nothing is known: the `Forecast` of a controller that has no law."""
    del model, policy
    return ()


def answer(
    subject: str, version: int | None, changes: Sequence[Difference], forecast: Sequence[PoolForecast] | None = None
) -> JSONResponse:
    """Return a dry run's answer."""
    found = DryRun(True, subject, version, tuple(changes), None if forecast is None else tuple(forecast))
    return JSONResponse(to_plain(found))

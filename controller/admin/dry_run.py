"""The reply to a dry run: the effect of a write without the write.

A dry run is rejected like the write, with every fault by its field. Otherwise the reply has the fields that would
change and, if K may change, a forecast: engines of each pool say what they would choose under the new policy.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from fastapi.responses import JSONResponse

from specpilot.controller.admin.asking import Asked
from specpilot.policy.codec import to_plain
from specpilot.policy.history import Difference

Forecast = Callable[[], Awaitable[Sequence[Asked]]]
"""Asks engines what they would choose."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The answer to `?validate_only=true`.

    `version` is the version that the document would get, `None` if it has none.
    """

    dry_run: bool
    subject: str
    version: int | None
    changes: tuple[Difference, ...]
    forecast: tuple[Asked, ...] | None = None


class DryRunEnded(Exception):  # noqa: N818 - no error
    """Ends a dry run where its write would begin."""

    def __init__(self, effect: DryRun, forecast: Forecast | None) -> None:
        super().__init__(effect.subject)
        self._effect = effect
        self._forecast = forecast

    async def reply(self) -> JSONResponse:
        """Return the reply; raises `StoreUnavailableError` if engines cannot be asked for the forecast."""
        forecast = None if self._forecast is None else tuple(await self._forecast())
        return JSONResponse(to_plain(replace(self._effect, forecast=forecast)))

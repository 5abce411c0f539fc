"""The reply to a dry run: the effect of a write without the write.

A dry run is rejected like the write, with every fault by its field. Otherwise the reply has the fields that would
change and, if K may change, a forecast: engines of each pool say what they would choose under the new policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi.responses import JSONResponse

from specpilot.controller.admin.asking import Asked
from specpilot.policy.codec import to_plain
from specpilot.policy.history import Difference


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


def answer(
    subject: str, version: int | None, changes: Sequence[Difference], forecast: Sequence[Asked] | None = None
) -> JSONResponse:
    """Return a dry run's answer."""
    reply = DryRun(True, subject, version, tuple(changes), None if forecast is None else tuple(forecast))
    return JSONResponse(to_plain(reply))

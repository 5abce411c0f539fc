"""A freeze: K of a model, or of all models, stays unchanged until the freeze is lifted or expires."""

from collections.abc import Mapping
from enum import StrEnum

from pydantic.dataclasses import dataclass

from specpilot.policy.names import STRICT

EVERYTHING = "*"
"""The name for all models. A model of this name cannot be frozen by itself."""


class Hold(StrEnum):
    """K of engines while frozen."""

    CURRENT = "current"  # as it is on each engine when the freeze reaches it
    STATIC = "static"  # the static K


@dataclass(frozen=True, slots=True, config=STRICT)
class Freeze:
    """One freeze. `since` and `until` are Unix seconds; `until` is `None` if it never expires."""

    model: str
    hold: Hold
    since: float
    until: float | None = None
    author: str = ""
    comment: str = ""

    def holds(self, at: float) -> bool:
        """Whether it is in force at `at`."""
        return self.until is None or at < self.until


def freeze_of(freezes: Mapping[str, Freeze], model: str, at: float) -> Freeze | None:
    """Return the freeze in force for `model` at `at`: its own, else the one for everything; `None` without one."""
    for name in (model, EVERYTHING):
        freeze = freezes.get(name)
        if freeze is not None and freeze.holds(at):
            return freeze
    return None

"""Audit entries of the controller's own actions: a canary or freeze ended, a pool fell back to the static K."""

from collections.abc import Iterable, Sequence
from typing import Any

from specpilot.policy.audit import CONTROLLER, AuditEntry, Result, bounded
from specpilot.policy.canary import Experiment
from specpilot.policy.codec import to_plain
from specpilot.policy.freeze import Freeze
from specpilot.policy.history import Difference, differences
from specpilot.policy.schedule import Schedule


def canary_ended(experiment: Experiment, at: float) -> AuditEntry:
    """Return the entry of a canary that ended by its own rule at `at` (Unix seconds)."""
    outcome = experiment.outcome.value if experiment.outcome else ""
    message = f"the canary ended: {outcome}, after {len(experiment.blocks)} blocks"
    return _entry(at, "end_canary", experiment.model, message, code=outcome)


def ended_within(freezes: Iterable[Freeze], after: float, at: float) -> list[Freeze]:
    """Return the freezes that expired after `after` (the last tick) and by `at`, both in Unix seconds.

    The leader writes them to the audit. A freeze that expires while no controller leads is not written: the next leader
    has no record of whether the last one wrote it.
    """
    return [freeze for freeze in freezes if freeze.until is not None and after < freeze.until <= at]


def freeze_ended(freeze: Freeze, at: float) -> AuditEntry:
    """Return the entry of a freeze that expired by `at` (Unix seconds)."""
    changes = differences({"hold": freeze.hold.value, "until": freeze.until}, {})
    message = f"the time of the freeze by {freeze.author or 'somebody'} is over"
    return _entry(at, "end_freeze", freeze.model, message, changes=changes)


def fell_back(before: Schedule | None, after: Schedule, at: float) -> AuditEntry:
    """Return the entry of a pool that fell back to the static K at `at` (Unix seconds) by its control group."""
    message = f"version {after.version}: by the control group the static K is better"
    changes = differences(_changed(before), _changed(after))
    return _entry(at, "fall_back_to_static", f"{after.model} {after.pool}", message, changes=changes)


def _changed(schedule: Schedule | None) -> dict[str, Any]:
    """Return the parts of a schedule that a fall back changes."""
    return {} if schedule is None else {"override": to_plain(schedule.override) if schedule.override else None}


def _entry(  # noqa: PLR0913 - the parts of an entry
    at: float, action: str, subject: str, message: str, *, changes: Sequence[Difference] = (), code: str = ""
) -> AuditEntry:
    changed, left_out = bounded(changes)
    return AuditEntry(
        at, CONTROLLER, action, subject, Result.DONE,
        code=code, message=message, changes=changed, changes_left_out=left_out,
    )  # fmt: skip

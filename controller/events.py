"""Audit entries of the controller's own actions: a canary or freeze ended, a pool fell back to the static K."""

from collections.abc import Iterable
from typing import Any

from specpilot.policy.audit import CONTROLLER, AuditEntry, Result, bounded
from specpilot.policy.canary import Experiment
from specpilot.policy.codec import to_plain
from specpilot.policy.freeze import Freeze
from specpilot.policy.history import differences
from specpilot.policy.schedule import Schedule


def canary_ended(experiment: Experiment, at: float) -> AuditEntry:
    """Return the entry of a canary that ended by its own rule at `at` (Unix seconds)."""
    outcome = experiment.outcome.value if experiment.outcome else ""
    return AuditEntry(
        at=at,
        who=CONTROLLER,
        action="end_canary",
        subject=experiment.model,
        result=Result.DONE,
        code=outcome,
        message=f"the canary ended: {outcome}, after {len(experiment.blocks)} blocks",
    )


def ended_within(freezes: Iterable[Freeze], after: float, at: float) -> list[Freeze]:
    """Return the freezes that expired after `after` (the last tick) and by `at`, both in Unix seconds.

    The leader writes them to the audit. A freeze that expires while no controller leads is not written: the next leader
    has no record of whether the last one wrote it.
    """
    return [freeze for freeze in freezes if freeze.until is not None and after < freeze.until <= at]


def freeze_ended(freeze: Freeze, at: float) -> AuditEntry:
    """Return the entry of a freeze that expired by `at` (Unix seconds)."""
    return AuditEntry(
        at=at,
        who=CONTROLLER,
        action="end_freeze",
        subject=freeze.model,
        result=Result.DONE,
        message=f"the time of the freeze by {freeze.author or 'somebody'} is over",
        changes=tuple(differences({"hold": freeze.hold.value, "until": freeze.until}, {})),
    )


def fell_back(before: Schedule | None, after: Schedule, at: float) -> AuditEntry:
    """Return the entry of a pool that fell back to the static K at `at` (Unix seconds) by its control group."""
    changes, left_out = bounded(differences(_plain(before), _plain(after)))
    return AuditEntry(
        at=at,
        who=CONTROLLER,
        action="fall_back_to_static",
        subject=f"{after.model} {after.pool}",
        result=Result.DONE,
        message=f"version {after.version}: by the control group the static K is better",
        changes=changes,
        changes_left_out=left_out,
    )


def _plain(schedule: Schedule | None) -> dict[str, Any]:
    """Return the parts of a schedule that a fall back changes."""
    if schedule is None:
        return {}
    return {"override": to_plain(schedule.override) if schedule.override is not None else None}

"""The audit: one entry for each write of the admin API, refused ones included, and for each write of the controller.

Append-only. Done and refused writes are bounded separately, so that refused calls cannot displace the record of done
ones. The size of an entry is bounded: it has only the fields of a document that changed.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specpilot.policy.history import Difference

DONE_KEPT = 20_000
"""Entries of writes that were done; at 1 KB each some 20 MB of Redis."""

REFUSED_KEPT = 5_000
"""Entries of writes that were refused."""

CHANGES_LIMIT = 40
"""Changed fields in one entry at most."""

VALUE_LIMIT = 500
"""Characters of JSON that one value may have in an entry."""

CONTROLLER = "controller"
"""The caller's name in entries of the controller's own writes."""


class Result(StrEnum):
    """The result of a write."""

    DONE = "done"
    REFUSED = "refused"  # wrong, not allowed, or from an unknown caller: nothing was changed
    FAILED = "failed"  # a fault of Redis or the controller: it may have been written or not


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One write that was done or refused.

    `number` grows with every entry (0: not stored yet), `at` is in Unix seconds. `who` is the caller's name, `role` the
    caller's role, empty without one; `source` the caller's address. `action` names the write, such as `policy.put`;
    `subject` the model, token or key. `status` is the HTTP status, `None` for the controller's own writes. `changes`
    are the fields that changed, `changes_left_out` counts those beyond the limit.
    """

    at: float
    who: str
    action: str
    subject: str
    result: Result
    role: str = ""
    source: str = ""
    status: int | None = None
    code: str = ""
    message: str = ""
    comment: str = ""
    changes: tuple[Difference, ...] = ()
    changes_left_out: int = 0
    number: int = 0


def bounded(changes: Sequence[Difference]) -> tuple[tuple[Difference, ...], int]:
    """Return as many of `changes` as an entry holds, long values cut, and how many are left out."""
    shown = tuple(Difference(item.field, _cut(item.before), _cut(item.after)) for item in changes[:CHANGES_LIMIT])
    return shown, len(changes) - len(shown)


def _cut(value: object) -> object:
    text = json.dumps(value)
    return value if len(text) <= VALUE_LIMIT else text[:VALUE_LIMIT] + "…"

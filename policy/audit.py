"""The audit: one entry for every write of the admin API, refused ones included, and for what the controller did itself.

Append-only. What was done and what was refused are bounded apart, so that nobody who has no token can push out the
record of what was done. Entries are bounded in size: a document's change is kept as the fields that differ.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from specpilot.policy.history import Difference

DONE_KEPT = 20_000
"""Entries of what was done; at 1 KB each some 20 MB of Redis."""

REFUSED_KEPT = 5_000
"""Entries of what was refused."""

CHANGES_LIMIT = 40
"""Fields that one entry tells of."""

VALUE_LIMIT = 500
"""Characters of JSON that one value may have in an entry."""

CONTROLLER = "controller"
"""Who did what the controller did by itself."""


class Result(StrEnum):
    """What became of it."""

    DONE = "done"
    REFUSED = "refused"  # the caller's fault, not allowed, or nobody could tell who calls: nothing was changed
    FAILED = "failed"  # Redis or the controller: it may or may not have been changed


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One thing that was done or refused.

    `number` grows with every entry (0: not stored yet), `at` is in Unix seconds. `who` is the caller's name, `role` its
    role, empty where it has none; `source` its address. `action` is what, such as `policy.put`; `subject` the model,
    token or key that it is about. `status` is the HTTP status, `None` for what the controller did. `changes` are the
    fields that differ afterwards, `changes_left_out` how many more there are.
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
    kept = tuple(Difference(item.field, _cut(item.before), _cut(item.after)) for item in changes[:CHANGES_LIMIT])
    return kept, len(changes) - len(kept)


def _cut(value: object) -> object:
    text = json.dumps(value)
    return value if len(text) <= VALUE_LIMIT else text[:VALUE_LIMIT] + "…"

"""The history of a policy: each version with its author, and the differences between two versions.

All are frozen and checked at creation.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from specpilot.policy.model_policy import Policy

VERSIONS_KEPT = 300
"""Versions that are kept of each policy; with the largest policy allowed they take some 20 MB of Redis."""

COMMENT_LIMIT = 500
"""Characters of a comment."""


class VersionCause(StrEnum):
    """How a version was made."""

    PUT = "put"  # written as a whole
    PATCH = "patch"  # single fields changed
    ROLLBACK = "rollback"  # an older version again, by an operator
    CANARY = "canary"  # a canary was promoted
    DELETE = "delete"  # the defaults apply from then on


@dataclass(frozen=True, slots=True)
class Change:
    """The author of a version, its cause and a comment. An empty `author` is unknown."""

    author: str = ""
    cause: VersionCause = VersionCause.PUT
    comment: str = ""


WRITTEN = Change()
DELETED = Change(cause=VersionCause.DELETE)


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One version of a policy; `policy` is `None` if it was deleted, `updated_at` Unix seconds."""

    version: int
    updated_at: float
    policy: Policy | None
    author: str = ""
    cause: VersionCause = VersionCause.PUT
    comment: str = ""


class Difference(NamedTuple):
    """One field that differs, by its dotted path; `None` if that side has none."""

    field: str
    before: Any
    after: Any


def shown(value: Any) -> str:
    """Return a field's value for a reader, as JSON without members that are null; `none` for no value."""
    if value is None or isinstance(value, str):
        return value or "none"
    return json.dumps(_stated(value), default=str)


def _stated(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _stated(inner) for name, inner in value.items() if inner is not None}
    return [_stated(inner) for inner in value] if isinstance(value, list | tuple) else value


def differences(before: Any, after: Any, path: str = "") -> list[Difference]:
    """Return the fields in which two JSON-like values differ, in order of field; a list differs as a whole."""
    if before == after and type(before) is type(after):
        return []
    if not isinstance(before, Mapping) or not isinstance(after, Mapping):
        return [Difference(path, before, after)]
    return [
        difference
        for name in sorted({*before, *after})
        for difference in differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    ]

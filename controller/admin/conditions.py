"""Checks If-Match and If-None-Match of a write, and applies JSON merge patches. Pure.

A document's ETag is its version. A write must name the version that it replaces, so that no operator overwrites an
unseen change.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Header

from specpilot.controller.admin.problems import ApiError

IfMatch = Annotated[str | None, Header(alias="If-Match")]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match")]


def check_conditions(
    document: str,
    version: int | None,
    if_match: str | None,
    if_none_match: str | None,
    since: Callable[[int], str] = lambda _: "",
) -> None:
    """Raise `ApiError` unless the caller may write `document`, which is stored at `version` (`None`: not at all).

    `since` says what has changed since an older version.
    """
    if if_none_match is not None and if_none_match.strip() != "*":
        raise ApiError(400, "invalid_condition", 'If-None-Match may only be "*" here', param="If-None-Match")
    if version is None:
        if if_match is not None:
            raise ApiError(412, "version_conflict", f"there is no {document}; leave If-Match out", param="If-Match")
        return
    if if_none_match is not None:
        message = f"the {document} exists already, at version {version}; replace it with If-Match"
        raise ApiError(412, "version_conflict", message, param="If-None-Match")
    if if_match is None:
        message = f'the {document} exists; GET it and send its ETag as If-Match (now "{version}") to replace it'
        raise ApiError(428, "precondition_required", message, param="If-Match")
    stated = re.fullmatch(r'(?:W/)?"?(\d{1,18})"?', if_match.strip())
    if if_match.strip() != "*" and (stated is None or int(stated[1]) != version):
        message = f"the {document} is at version {version}, not {if_match[:40]}; GET it again and repeat the change"
        message += since(int(stated[1])) if stated and int(stated[1]) < version else ""
        raise ApiError(412, "version_conflict", message, param="If-Match")


def merged(old: Any, change: Any) -> Any:
    """Return `old` with the JSON merge patch `change` applied: objects merge by member, `None` removes one."""
    if not isinstance(change, dict):
        return change
    members = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            members.pop(key, None)
        else:
            members[key] = merged(members.get(key), value)
    return members


def patched(old: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Return the whole document `old` with the JSON merge patch `change` applied.

    A field of `change` that `old` does not have stays in the result even if it is null. So a document with a misspelt
    field is rejected.
    """
    return {**dict.fromkeys(name for name in change if name not in old), **merged(old, change)}

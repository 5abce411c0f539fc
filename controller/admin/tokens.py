"""The admin API's own tokens: named, with a role, made and shown once, stored as SHA-256 only."""

import asyncio
import secrets
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from specpilot.controller.admin.access import Caller
from specpilot.controller.admin.audited import Writing
from specpilot.controller.admin.body import WritingAlone, body_schema, object_of
from specpilot.controller.admin.dry_run import DryRun, answer
from specpilot.controller.admin.expiry import (
    EXPIRY,
    EXPIRY_FIELDS,
    expiry_faults,
    expiry_in,
    rotated_expiry,
    rotation_faults,
)
from specpilot.controller.admin.problems import ApiError, invalid
from specpilot.controller.admin.replies import NewToken, TokenList, WhoAmI, refusals
from specpilot.policy.access import TOKEN_NAME_LIMIT, AdminToken, Role, is_token_name, sha256_of
from specpilot.policy.clock import Clock
from specpilot.policy.errors import Fault
from specpilot.policy.history import differences
from specpilot.policy.store import Store

_TOKEN_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": TOKEN_NAME_LIMIT},
        "role": {"enum": [role.value for role in Role]},
        **EXPIRY,
    },
    "required": ["name", "role"],
    "additionalProperties": False,
}
_ROTATION: dict[str, Any] = {"type": "object", "properties": EXPIRY, "additionalProperties": False}


def token_routes(store: Store, clock: Clock, router: APIRouter) -> APIRouter:  # noqa: C901 - one closure per route
    """Add the routes of tokens to `router`, and return it."""

    @router.get("/whoami", response_model=WhoAmI)
    async def who_am_i(request: Request) -> JSONResponse:
        """The caller's own name, role and when its token expires."""
        caller: Caller = request.state.caller
        return JSONResponse({"name": caller.name, "role": caller.role.value, "expires_at": caller.expires_at})

    @router.get("/tokens", response_model=TokenList)
    async def list_tokens() -> JSONResponse:
        """Every named token, without its secret."""
        found = await asyncio.to_thread(store.admin_tokens)
        return JSONResponse({"tokens": [_shown(token) for token in found], "now": clock.now()})

    @router.post(
        "/tokens",
        openapi_extra=body_schema(_TOKEN_REQUEST),
        status_code=201,
        response_model=NewToken,
        responses={200: {"model": DryRun}, **refusals(413)},
    )
    async def add_token(request: Request, write: Writing) -> JSONResponse:
        """Make a token. It is shown only this once."""
        name, role, expires_at = _asked(await object_of(request), clock.now())
        token_id = secrets.token_hex(6)
        secret = _secret(token_id)
        token = AdminToken(token_id, name, role, sha256_of(secret), clock.now(), write.caller.name, expires_at)
        changes = differences({}, {"name": name, "role": role.value, "expires_at": expires_at})
        if write.is_dry_run:
            return answer(name, None, changes)
        write.note.subject, write.note.changes = f"{token_id} {name}", changes
        await asyncio.to_thread(store.put_admin_token, token, None)
        return JSONResponse({**_shown(token), "token": secret}, status_code=201)

    @router.post(
        "/tokens/{token_id}/rotate",
        openapi_extra=body_schema(_ROTATION, is_required=False),
        response_model=NewToken | DryRun,
        responses=refusals(409, 413),
    )
    async def rotate_token(token_id: str, request: Request, write: Writing) -> JSONResponse:
        """Replace the secret of a token, and its expiry if one is named; the old secret is rejected at once.

        An expired token needs a new expiry.
        """
        plain, now = await object_of(request), clock.now()
        found = await asyncio.to_thread(store.admin_token, token_id)
        faults = _unknown_fields(plain, EXPIRY_FIELDS) + expiry_faults(plain, now)
        faults += rotation_faults(plain, found.expires_at if found else None, now)
        if faults:
            raise invalid(faults, "rotation")
        if found is None:
            raise _not_found(token_id)
        secret = _secret(token_id)
        expires_at = rotated_expiry(plain, found.expires_at, now)
        token = replace(found, sha256=sha256_of(secret), rotated_at=now, expires_at=expires_at)
        changes = differences(_shown(found), _shown(token))
        if write.is_dry_run:
            return answer(found.name, None, changes)
        write.note.subject, write.note.changes = f"{token_id} {found.name}", changes
        if not await asyncio.to_thread(store.put_admin_token, token, found):
            raise ApiError(409, "token_changed", "somebody else changed this token just now; try again")
        return JSONResponse({**_shown(token), "token": secret})

    @router.delete("/tokens/{token_id}", status_code=204, responses={200: {"model": DryRun}, **refusals(413)})
    async def revoke_token(token_id: str, write: WritingAlone) -> Response:
        """Revoke a token, also one whose document cannot be read; it is rejected at once."""
        found = await asyncio.to_thread(store.admin_token, token_id)
        changes = differences(_shown(found), {}) if found is not None else []
        if write.is_dry_run:
            if found is None:
                raise _not_found(token_id)
            return answer(found.name, None, changes)
        if found is not None:
            write.note.subject = f"{token_id} {found.name}"
        write.note.changes = changes
        if not await asyncio.to_thread(store.delete_admin_token, token_id):
            raise _not_found(token_id)
        return Response(status_code=204)

    return router


def _secret(token_id: str) -> str:
    return f"spt_{token_id}_{secrets.token_urlsafe(32)}"


def _not_found(token_id: str) -> ApiError:
    return ApiError(404, "token_not_found", f"there is no token {token_id!r}", param="token_id")


def _unknown_fields(plain: dict[str, Any], known: tuple[str, ...]) -> list[Fault]:
    return [Fault(name, f"is not known; give {', '.join(known)}") for name in plain if name not in known]


def _asked(plain: dict[str, Any], now: float) -> tuple[str, Role, float | None]:
    """Return the name, role and expiry in a request."""
    faults = _unknown_fields(plain, ("name", "role", *EXPIRY_FIELDS))
    name, role = plain.get("name"), plain.get("role")
    if not isinstance(name, str) or not is_token_name(name):
        faults.append(
            Fault("name", f"must be 1 to {TOKEN_NAME_LIMIT} letters, digits, spaces or ._@+-, the first no sign")
        )
    if role not in tuple(Role):
        faults.append(Fault("role", f"must be one of {', '.join(Role)}"))
    faults += expiry_faults(plain, now)
    if faults:
        raise invalid(faults, "token")
    assert isinstance(name, str)
    return name, Role(str(role)), expiry_in(plain, now)


def _shown(token: AdminToken) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "name": token.name,
        "role": token.role.value,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "rotated_at": token.rotated_at,
    }

"""The admin API's own tokens: named, with a role, made and shown once, stored as SHA-256 only."""

import asyncio
import secrets
from dataclasses import replace

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from specpilot.controller.admin.access import Caller
from specpilot.controller.admin.audited import Writing
from specpilot.controller.admin.body import WritingAlone, body_schema, document_from, object_of
from specpilot.controller.admin.dry_run import DryRun, answer
from specpilot.controller.admin.expiry import (
    expiry_faults,
    expiry_in,
    rotated_expiry,
    rotation_faults,
)
from specpilot.controller.admin.problems import ApiError, unknown_id
from specpilot.controller.admin.replies import NewToken, TokenList, WhoAmI, refusals, shown
from specpilot.controller.admin.requests import Rotation, TokenRequest
from specpilot.policy.access import AdminToken, Role, sha256_of
from specpilot.policy.clock import Clock
from specpilot.policy.history import differences
from specpilot.policy.store import Store


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
        tokens = await asyncio.to_thread(store.admin_tokens)
        return JSONResponse({"tokens": [shown(token) for token in tokens], "now": clock.now()})

    @router.post(
        "/tokens",
        openapi_extra=body_schema(TokenRequest),
        status_code=201,
        response_model=NewToken,
        responses={200: {"model": DryRun}, **refusals(413)},
    )
    async def add_token(request: Request, write: Writing) -> JSONResponse:
        """Make a token. It is shown only this once."""
        plain, now = await object_of(request), clock.now()
        document = document_from(TokenRequest, plain, "token", expiry_faults(plain, now))
        name, role, expires_at = document.name, Role(document.role), expiry_in(plain, now)
        token_id = secrets.token_hex(6)
        secret = _secret(token_id)
        token = AdminToken(token_id, name, role, sha256_of(secret), now, write.caller.name, expires_at)
        changes = differences({}, {"name": name, "role": role.value, "expires_at": expires_at})
        if write.is_dry_run:
            return answer(name, None, changes)
        write.note.subject, write.note.changes = f"{token_id} {name}", changes
        await asyncio.to_thread(store.put_admin_token, token, None)
        return JSONResponse({**shown(token), "token": secret}, status_code=201)

    @router.post(
        "/tokens/{token_id}/rotate",
        openapi_extra=body_schema(Rotation, is_required=False),
        response_model=NewToken | DryRun,
        responses=refusals(409, 413),
    )
    async def rotate_token(token_id: str, request: Request, write: Writing) -> JSONResponse:
        """Replace the secret of a token, and its expiry if one is named; the old secret is rejected at once.

        An expired token needs a new expiry.
        """
        plain, now = await object_of(request), clock.now()
        before = await asyncio.to_thread(store.admin_token, token_id)
        faults = expiry_faults(plain, now) + rotation_faults(plain, before.expires_at if before else None, now)
        document_from(Rotation, plain, "rotation", faults)
        if before is None:
            raise unknown_id("token", token_id)
        secret = _secret(token_id)
        expires_at = rotated_expiry(plain, before.expires_at, now)
        after = replace(before, sha256=sha256_of(secret), rotated_at=now, expires_at=expires_at)
        changes = differences(shown(before), shown(after))
        if write.is_dry_run:
            return answer(before.name, None, changes)
        write.note.subject, write.note.changes = f"{token_id} {before.name}", changes
        if not await asyncio.to_thread(store.put_admin_token, after, before):
            raise ApiError(409, "token_changed", "somebody else changed this token just now; try again")
        return JSONResponse({**shown(after), "token": secret})

    @router.delete("/tokens/{token_id}", status_code=204, responses={200: {"model": DryRun}, **refusals(413)})
    async def revoke_token(token_id: str, write: WritingAlone) -> Response:
        """Revoke a token, also one whose document cannot be read; it is rejected at once."""
        token = await asyncio.to_thread(store.admin_token, token_id)
        changes = differences(shown(token), {}) if token is not None else []
        if write.is_dry_run:
            if token is None:
                raise unknown_id("token", token_id)
            return answer(token.name, None, changes)
        if token is not None:
            write.note.subject = f"{token_id} {token.name}"
        write.note.changes = changes
        if not await asyncio.to_thread(store.delete_admin_token, token_id):
            raise unknown_id("token", token_id)
        write.note.subject = write.note.subject or token_id
        return Response(status_code=204)

    return router


def _secret(token_id: str) -> str:
    return f"spt_{token_id}_{secrets.token_urlsafe(32)}"

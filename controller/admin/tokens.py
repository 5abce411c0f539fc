"""The admin API's own tokens: named, with a role, made and shown once, stored as SHA-256 only."""

import secrets
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from specpilot.controller.admin.access import Caller
from specpilot.controller.admin.audited import Writing
from specpilot.controller.admin.body import Body, WritingAlone, body_schema, document_from
from specpilot.controller.admin.expiry import Expiry, moment_of
from specpilot.controller.admin.problems import ApiError, unknown_id
from specpilot.controller.admin.replies import NewToken, TokenList, WhoAmI, refusals, shown
from specpilot.controller.admin.requests import TokenRequest
from specpilot.policy.access import AdminToken, Role, sha256_of
from specpilot.policy.clock import Clock
from specpilot.policy.history import differences
from specpilot.policy.store import Store


def token_routes(store: Store, clock: Clock, router: APIRouter) -> None:
    """Add the routes of tokens to `router`."""

    @router.get("/whoami")
    def who_am_i(request: Request) -> WhoAmI:
        """The caller's own name, role and when its token expires."""
        caller: Caller = request.state.caller
        return WhoAmI(caller.name, caller.role, caller.expires_at)

    @router.get("/tokens", response_model=TokenList)
    def list_tokens() -> JSONResponse:
        """Every named token, without its secret."""
        return JSONResponse({"tokens": [shown(token) for token in store.admin_tokens()], "now": clock.now()})

    @router.post("/tokens", openapi_extra=body_schema(TokenRequest), status_code=201, response_model=NewToken)
    def add_token(write: Writing, plain: Body) -> JSONResponse:
        """Make a token. It is shown only this once."""
        now = clock.now()
        request = document_from(TokenRequest, plain, "token", now)
        name, role = request.name, Role(request.role)
        expires_at = moment_of(request.expires_at, request.expires_in_s, now)
        token_id = secrets.token_hex(6)
        secret = _secret(token_id)
        token = AdminToken(token_id, name, role, sha256_of(secret), now, write.author, expires_at)
        write.begin(differences({}, {"name": name, "role": role.value, "expires_at": expires_at}), subject=name)
        write.subject = f"{token_id} {name}"
        store.put_admin_token(token, None)
        return JSONResponse({**shown(token), "token": secret}, status_code=201)

    @router.post(
        "/tokens/{token_id}/rotate",
        openapi_extra=body_schema(Expiry, is_required=False),
        response_model=NewToken,
        responses=refusals(409),
    )
    def rotate_token(token_id: str, write: Writing, plain: Body) -> JSONResponse:
        """Replace the secret of a token, and its expiry if one is named; the old secret is rejected at once.

        An expired token needs a new expiry.
        """
        now, before = clock.now(), store.admin_token(token_id)
        rotation = document_from(Expiry, plain, "rotation", now)
        if before is None:
            raise unknown_id("token", token_id)
        secret = _secret(token_id)
        expires_at = rotation.after_rotation(plain, before.expires_at, now)
        after = replace(before, sha256=sha256_of(secret), rotated_at=now, expires_at=expires_at)
        write.begin(differences(shown(before), shown(after)), subject=f"{token_id} {before.name}")
        if not store.put_admin_token(after, before):
            raise ApiError(409, "token_changed", "somebody else changed this token just now; try again")
        return JSONResponse({**shown(after), "token": secret})

    @router.delete("/tokens/{token_id}", status_code=204)
    def revoke_token(token_id: str, write: WritingAlone) -> None:
        """Revoke a token, also one whose document cannot be read; it is rejected at once."""
        token = store.admin_token(token_id)
        if token is not None:
            write.begin(differences(shown(token), {}), subject=f"{token_id} {token.name}")
        if write.is_dry_run or not store.delete_admin_token(token_id):
            raise unknown_id("token", token_id)
        write.subject = write.subject or token_id


def _secret(token_id: str) -> str:
    return f"spt_{token_id}_{secrets.token_urlsafe(32)}"

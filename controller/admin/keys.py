"""The admin API's client keys: made and shown once, stored as SHA-256 only."""

import asyncio
import secrets
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from specpilot.controller.admin.audited import Writing
from specpilot.controller.admin.body import WritingAlone, body_schema, document_from, object_of
from specpilot.controller.admin.dry_run import DryRun, answer
from specpilot.controller.admin.expiry import (
    EXPIRY_FIELDS,
    expiry_faults,
    expiry_in,
    rotated_expiry,
    rotation_faults,
)
from specpilot.controller.admin.problems import ApiError, invalid, unknown_id
from specpilot.controller.admin.replies import KeyList, KeyShown, NewKey, refusals, shown
from specpilot.controller.admin.requests import KeyRequest, KeyRotation
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.clock import Clock
from specpilot.policy.history import differences
from specpilot.policy.store import Store


def key_routes(store: Store, clock: Clock, router: APIRouter) -> APIRouter:  # noqa: C901 - one closure per route
    """Add the routes of client keys to `router`, and return it."""

    @router.get("/keys", response_model=KeyList)
    async def list_keys() -> JSONResponse:
        """Every client key: its id and limits, without its secret."""
        keys = await asyncio.to_thread(store.api_keys)
        return JSONResponse({"keys": [shown(key) for key in keys], "now": clock.now()})

    @router.post(
        "/keys",
        openapi_extra=body_schema(KeyRequest),
        status_code=201,
        response_model=NewKey,
        responses={200: {"model": DryRun}, **refusals(413)},
    )
    async def add_key(request: Request, write: Writing) -> JSONResponse:
        """Make a client key with limits, every field optional. The key is shown only this once."""
        secret = _secret()
        blank = ApiKey(secrets.token_hex(6), sha256_of(secret))
        key = replace(blank, **_key_request(await object_of(request), clock.now()))
        changes = differences(shown(blank), shown(key))
        if write.is_dry_run:
            return answer("", None, changes)
        write.note.subject, write.note.changes = key.key_id, changes
        await asyncio.to_thread(store.put_api_key, key)
        return JSONResponse({**shown(key), "key": secret}, status_code=201)

    @router.patch(
        "/keys/{key_id}",
        openapi_extra=body_schema(KeyRequest),
        response_model=KeyShown | DryRun,
        responses=refusals(413),
    )
    async def change_key(request: Request, key_id: str, write: Writing) -> JSONResponse:
        """Change the limits of a client key; `null` resets a field, a field that is left out stays."""
        fields = _key_request(await object_of(request), clock.now())
        if write.is_dry_run:
            before = await asyncio.to_thread(_existing, store, key_id)
            return answer(key_id, None, differences(shown(before), shown(replace(before, **fields))))
        before, after = await asyncio.to_thread(_change, store, key_id, fields)
        write.note.subject, write.note.changes = key_id, differences(shown(before), shown(after))
        return JSONResponse(shown(after))

    @router.post(
        "/keys/{key_id}/rotate",
        openapi_extra=body_schema(KeyRotation, is_required=False),
        response_model=NewKey | DryRun,
        responses=refusals(409, 413),
    )
    async def rotate_key(request: Request, key_id: str, write: Writing) -> JSONResponse:
        """Replace the secret of a client key; the old secret is valid for `grace_s` more seconds.

        An expired key needs a new expiry, and its old secret has no grace.
        """
        plain, now = await object_of(request), clock.now()
        grace_s = document_from(KeyRotation, plain, "rotation", expiry_faults(plain, now)).grace_s
        secret = _secret()
        before = await asyncio.to_thread(_existing, store, key_id)
        faults = rotation_faults(plain, before.expires_at, now)
        if faults:
            raise invalid(faults, "rotation")
        is_good = grace_s > 0 and (before.expires_at is None or now < before.expires_at)
        after = replace(
            before,
            sha256=sha256_of(secret),
            previous_sha256=before.sha256 if is_good else None,
            previous_expires_at=now + grace_s if is_good else None,
            expires_at=rotated_expiry(plain, before.expires_at, now),
        )
        changes = differences(shown(before), shown(after))
        if write.is_dry_run:
            return answer(key_id, None, changes)
        write.note.subject, write.note.changes = key_id, changes
        # Replaces only the document that was read: otherwise, of two simultaneous rotations, the second would revoke
        # the key of the first.
        if not await asyncio.to_thread(store.change_api_key, before, after):
            raise ApiError(409, "key_changed", "somebody else changed this key just now; try again", param="key_id")
        return JSONResponse({**shown(after), "key": secret})

    @router.delete("/keys/{key_id}", status_code=204, responses={200: {"model": DryRun}, **refusals(413)})
    async def delete_key(key_id: str, write: WritingAlone) -> Response:
        """Revoke a client key, also one whose document cannot be read."""
        key = await asyncio.to_thread(_stored, store, key_id)
        changes = differences(shown(key), {}) if key is not None else []
        if write.is_dry_run:
            if key is None:
                raise unknown_id("key", key_id)
            return answer(key_id, None, changes)
        write.note.changes = changes
        if not await asyncio.to_thread(store.delete_api_key, key_id):
            raise unknown_id("key", key_id)
        write.note.subject = key_id
        return Response(status_code=204)

    return router


def _stored(store: Store, key_id: str) -> ApiKey | None:
    """Return a key; `None` when there is none or its document cannot be read. Blocks."""
    return next((key for key in store.api_keys() if key.key_id == key_id), None)


def _existing(store: Store, key_id: str) -> ApiKey:
    """Return a key; raises `ApiError` 404 without one. Blocks."""
    key = _stored(store, key_id)
    if key is None:
        raise unknown_id("key", key_id)
    return key


def _secret() -> str:
    return "sk-" + secrets.token_urlsafe(32)


def _change(store: Store, key_id: str, fields: dict[str, Any]) -> tuple[ApiKey, ApiKey]:
    """Change a key, again if another write came first; return it before and after. Raises `ApiError` 404. Blocks."""
    while True:
        before = _existing(store, key_id)
        after = replace(before, **fields)
        if store.change_api_key(before, after):
            return before, after


def _key_request(plain: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the fields of `ApiKey` in a request."""
    document_from(KeyRequest, plain, "key request", expiry_faults(plain, now))
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    if fields.keys() & EXPIRY_FIELDS:
        fields["expires_at"] = expiry_in(plain, now)
        fields.pop("expires_in_s", None)
    return fields

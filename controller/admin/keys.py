"""The admin API's client keys: made and shown once, stored as SHA-256 only."""

import secrets
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from specpilot.controller.admin.audited import Writing
from specpilot.controller.admin.body import Body, WritingAlone, body_schema, document_from
from specpilot.controller.admin.expiry import moment_of
from specpilot.controller.admin.problems import ApiError, unknown_id
from specpilot.controller.admin.replies import KeyList, KeyShown, NewKey, refusals, shown
from specpilot.controller.admin.requests import KeyRequest, KeyRotation
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.clock import Clock
from specpilot.policy.history import differences
from specpilot.policy.store import Store


def key_routes(store: Store, clock: Clock, router: APIRouter) -> None:  # noqa: C901 - one closure per route
    """Add the routes of client keys to `router`."""

    @router.get("/keys", response_model=KeyList)
    def list_keys() -> JSONResponse:
        """Every client key: its id and limits, without its secret."""
        return JSONResponse({"keys": [shown(key) for key in store.api_keys()], "now": clock.now()})

    @router.post("/keys", openapi_extra=body_schema(KeyRequest), status_code=201, response_model=NewKey)
    def add_key(write: Writing, plain: Body) -> JSONResponse:
        """Make a client key with limits, every field optional. The key is shown only this once."""
        secret = _secret()
        blank = ApiKey(secrets.token_hex(6), sha256_of(secret))
        key = replace(blank, **_key_request(plain, clock.now()))
        write.begin(differences(shown(blank), shown(key)), subject="a new key")
        write.subject = key.key_id
        store.put_api_key(key)
        return JSONResponse({**shown(key), "key": secret}, status_code=201)

    @router.patch("/keys/{key_id}", openapi_extra=body_schema(KeyRequest), response_model=KeyShown)
    def change_key(key_id: str, write: Writing, plain: Body) -> JSONResponse:
        """Change the limits of a client key; `null` resets a field, a field that is left out stays."""
        fields = _key_request(plain, clock.now())
        while True:  # another write may come first
            before = _existing(store, key_id)
            after = replace(before, **fields)
            write.begin(differences(shown(before), shown(after)), subject=key_id)
            if store.change_api_key(before, after):
                return JSONResponse(shown(after))

    @router.post(
        "/keys/{key_id}/rotate",
        openapi_extra=body_schema(KeyRotation, is_required=False),
        response_model=NewKey,
        responses=refusals(409),
    )
    def rotate_key(key_id: str, write: Writing, plain: Body) -> JSONResponse:
        """Replace the secret of a client key; the old secret is valid for `grace_s` more seconds.

        An expired key needs a new expiry, and its old secret has no grace.
        """
        now = clock.now()
        rotation, secret = document_from(KeyRotation, plain, "rotation", now), _secret()
        before = _existing(store, key_id)
        is_good = rotation.grace_s > 0 and (before.expires_at is None or now < before.expires_at)
        after = replace(
            before,
            sha256=sha256_of(secret),
            previous_sha256=before.sha256 if is_good else None,
            previous_expires_at=now + rotation.grace_s if is_good else None,
            expires_at=rotation.after_rotation(plain, before.expires_at, now),
        )
        write.begin(differences(shown(before), shown(after)), subject=key_id)
        # Replaces only the document that was read: otherwise, of two simultaneous rotations, the second would revoke
        # the key of the first.
        if not store.change_api_key(before, after):
            raise ApiError(409, "key_changed", "somebody else changed this key just now; try again", param="key_id")
        return JSONResponse({**shown(after), "key": secret})

    @router.delete("/keys/{key_id}", status_code=204)
    def delete_key(key_id: str, write: WritingAlone) -> None:
        """Revoke a client key, also one whose document cannot be read."""
        key = _stored(store, key_id)
        if key is not None:
            write.begin(differences(shown(key), {}), subject=key_id)
        if write.is_dry_run or not store.delete_api_key(key_id):
            raise unknown_id("key", key_id)
        write.subject = key_id


def _stored(store: Store, key_id: str) -> ApiKey | None:
    """Return a key; `None` when there is none or its document cannot be read."""
    return next((key for key in store.api_keys() if key.key_id == key_id), None)


def _existing(store: Store, key_id: str) -> ApiKey:
    """Return a key; raises `ApiError` 404 without one."""
    key = _stored(store, key_id)
    if key is None:
        raise unknown_id("key", key_id)
    return key


def _secret() -> str:
    return "sk-" + secrets.token_urlsafe(32)


def _key_request(plain: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the fields of `ApiKey` in a request."""
    request = document_from(KeyRequest, plain, "key request", now)
    fields = {name: getattr(request, name) for name in plain}
    if "expires_in_s" in fields:
        del fields["expires_in_s"]
        fields["expires_at"] = moment_of(request.expires_at, request.expires_in_s, now)
    return fields

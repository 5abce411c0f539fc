"""The admin API's client keys: made and shown once, stored as SHA-256 only."""

import asyncio
import hashlib
import secrets
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from controller.body import body_schema, object_of
from controller.problems import ApiError, invalid
from controller.replies import KeyList, KeyShown, NewKey, refusals
from policy.errors import Fault
from policy.store import Store
from policy.types import RATE_LIMIT_MAX, ApiKey, is_class_name, rate_faults

_FIELDS = ("traffic_class", "allowed_classes", "requests_per_minute", "tokens_per_minute")

_CLASS = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,31}$"}
_LIMIT = {"type": ["integer", "null"], "minimum": 1, "maximum": RATE_LIMIT_MAX}
_KEY_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "traffic_class": {"anyOf": [_CLASS, {"type": "null"}]},
        "allowed_classes": {"anyOf": [{"type": "array", "items": _CLASS}, {"type": "null"}]},
        "requests_per_minute": _LIMIT,
        "tokens_per_minute": _LIMIT,
    },
    "additionalProperties": False,
}


def key_routes(store: Store) -> APIRouter:
    """Return the routes of client keys over `store`."""
    router = APIRouter()

    @router.get("/keys", response_model=KeyList)
    async def list_keys() -> JSONResponse:
        """Client keys, without the keys: only their ids and what they may."""
        found = await asyncio.to_thread(store.api_keys)
        return JSONResponse({"keys": [_shown(key) for key in found]})

    @router.post(
        "/keys",
        openapi_extra=body_schema(_KEY_REQUEST),
        status_code=201,
        response_model=NewKey,
        responses=refusals(413),
    )
    async def add_key(request: Request) -> JSONResponse:
        """Make a client key from what it may, every field optional. It is shown only this once."""
        secret = "sk-" + secrets.token_urlsafe(32)
        blank = ApiKey(secrets.token_hex(6), hashlib.sha256(secret.encode()).hexdigest())
        key = replace(blank, **_key_request(await object_of(request)))
        await asyncio.to_thread(lambda: store.put_api_key(key))
        return JSONResponse({**_shown(key), "key": secret}, status_code=201)

    @router.patch(
        "/keys/{key_id}", openapi_extra=body_schema(_KEY_REQUEST), response_model=KeyShown, responses=refusals(413)
    )
    async def change_key(request: Request, key_id: str) -> JSONResponse:
        """Change what a client key may; `null` resets a field, what is not named stays."""
        wanted = _key_request(await object_of(request))
        key = await asyncio.to_thread(_change, store, key_id, wanted)
        if key is None:
            raise _unknown(key_id)
        return JSONResponse(_shown(key))

    @router.delete("/keys/{key_id}", status_code=204)
    async def delete_key(key_id: str) -> Response:
        """Revoke a client key."""
        if not await asyncio.to_thread(lambda: store.delete_api_key(key_id)):
            raise _unknown(key_id)
        return Response(status_code=204)

    return router


def _change(store: Store, key_id: str, wanted: dict[str, Any]) -> ApiKey | None:
    """Change the key, as often as somebody else was faster; `None` when there is none, or no more."""
    while True:
        found = next((key for key in store.api_keys() if key.key_id == key_id), None)
        if found is None:
            return None
        changed = replace(found, **wanted)
        if store.change_api_key(found, changed):
            return changed


def _unknown(key_id: str) -> ApiError:
    return ApiError(404, "key_not_found", f"there is no key {key_id!r}", param="key_id")


def _key_request(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `ApiKey` that a request states."""
    faults = [
        Fault(name, f"is not known; give {', '.join(_FIELDS)} or nothing") for name in plain if name not in _FIELDS
    ]
    traffic_class = plain.get("traffic_class")
    allowed = plain.get("allowed_classes")
    if traffic_class is not None and not (isinstance(traffic_class, str) and is_class_name(traffic_class)):
        faults.append(Fault("traffic_class", "is not a class name (lower case, at most 32 characters)"))
    if allowed is not None and not (
        isinstance(allowed, list) and all(isinstance(item, str) and is_class_name(item) for item in allowed)
    ):
        faults.append(Fault("allowed_classes", "must be a list of class names"))
    for name in ("requests_per_minute", "tokens_per_minute"):
        limit = plain.get(name)
        if limit is not None and type(limit) is not int:
            faults.append(Fault(name, "must be a whole number, or null for no limit"))
        else:
            faults.extend(Fault(name, fault) for fault in rate_faults(**{name: limit}))
    if faults:
        raise invalid(faults, "key request")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "traffic_class": key.traffic_class,
        "allowed_classes": None if key.allowed_classes is None else list(key.allowed_classes),
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
    }

"""The admin API's client keys: made and shown once, stored as SHA-256 only."""

import asyncio
import hashlib
import secrets
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from controller.body import body_schema, object_of
from controller.problems import ApiError, invalid
from controller.replies import KeyList, NewKey, refusals
from policy.errors import Fault
from policy.store import Store
from policy.types import ApiKey, is_class_name

_CLASS = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,31}$"}
_KEY_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {"traffic_class": _CLASS, "allowed_classes": {"type": "array", "items": _CLASS}},
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
        """Make a client key from `traffic_class` and `allowed_classes`, both optional. It is shown only this once."""
        traffic_class, allowed = _key_request(await object_of(request))
        secret = "sk-" + secrets.token_urlsafe(32)
        key = ApiKey(secrets.token_hex(6), hashlib.sha256(secret.encode()).hexdigest(), traffic_class, allowed)
        await asyncio.to_thread(lambda: store.put_api_key(key))
        return JSONResponse({**_shown(key), "key": secret}, status_code=201)

    @router.delete("/keys/{key_id}", status_code=204)
    async def delete_key(key_id: str) -> Response:
        """Revoke a client key."""
        if not await asyncio.to_thread(lambda: store.delete_api_key(key_id)):
            raise ApiError(404, "key_not_found", f"there is no key {key_id!r}", param="key_id")
        return Response(status_code=204)

    return router


def _key_request(plain: dict[str, Any]) -> tuple[str | None, tuple[str, ...] | None]:
    faults = [
        Fault(name, "is not known; give traffic_class and allowed_classes or nothing")
        for name in plain
        if name not in ("traffic_class", "allowed_classes")
    ]
    traffic_class = plain.get("traffic_class")
    allowed = plain.get("allowed_classes")
    if traffic_class is not None and not (isinstance(traffic_class, str) and is_class_name(traffic_class)):
        faults.append(Fault("traffic_class", "is not a class name (lower case, at most 32 characters)"))
    if allowed is not None and not (
        isinstance(allowed, list) and all(isinstance(item, str) and is_class_name(item) for item in allowed)
    ):
        faults.append(Fault("allowed_classes", "must be a list of class names"))
        allowed = None
    if faults:
        raise invalid(faults, "key request")
    return traffic_class, None if allowed is None else tuple(allowed)


def _shown(key: ApiKey) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "traffic_class": key.traffic_class,
        "allowed_classes": None if key.allowed_classes is None else list(key.allowed_classes),
    }

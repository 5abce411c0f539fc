"""The admin API's policies: versioned documents with ETag and If-Match.

A policy's ETag is its version. Replacing one needs `If-Match`, so that two operators cannot overwrite each other
unseen. `on_change` is called after every write, so that the loop need not wait for its next tick.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import JSONResponse

from controller.body import body_schema, object_of
from controller.problems import ApiError, invalid
from controller.replies import PolicyList, refusals
from policy.clock import Clock
from policy.codec import from_plain, schema, to_plain
from policy.errors import Fault, InvalidDocumentError
from policy.store import Store
from policy.types import Policy, VersionedPolicy

IfMatch = Annotated[str | None, Header(alias="If-Match")]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match")]


def policy_routes(store: Store, clock: Clock, on_change: Callable[[], None]) -> APIRouter:
    """Return the routes of policies over `store`."""
    router = APIRouter()

    async def existing(model: str) -> VersionedPolicy:
        found = await asyncio.to_thread(store.policy, model)
        if found is None:
            raise ApiError(404, "policy_not_found", f"model {model!r} has no policy; the defaults hold", param="model")
        return found

    @router.get("/policies", response_model=PolicyList)
    async def list_policies() -> JSONResponse:
        """Every policy with its version."""
        return JSONResponse({"policies": [to_plain(item) for item in await asyncio.to_thread(store.policies)]})

    @router.get("/policy-schema", response_model=dict[str, Any])
    async def policy_schema() -> JSONResponse:
        """The JSON schema of a policy."""
        return JSONResponse(schema(Policy))

    @router.get("/policies/{model:path}", response_model=VersionedPolicy)
    async def get_policy(model: str) -> Response:
        """One policy; its ETag goes into If-Match of a later PUT."""
        return _policy_response(await existing(model))

    @router.put(
        "/policies/{model:path}",
        openapi_extra=body_schema({"$ref": "#/components/schemas/Policy"}),
        response_model=VersionedPolicy,
        responses={201: {"model": VersionedPolicy}, **refusals(400, 412, 413, 428)},
    )
    async def put_policy(
        model: str, request: Request, if_match: IfMatch = None, if_none_match: IfNoneMatch = None
    ) -> Response:
        """Create a policy (If-None-Match: * or nothing) or replace one (If-Match: its ETag)."""
        policy = await _policy_of(request, model)
        found = await asyncio.to_thread(store.policy, model)
        expected = _expected_version(found, if_match, if_none_match)
        stored = await asyncio.to_thread(lambda: store.put_policy(policy, expected, clock.now()))
        on_change()
        return _policy_response(stored, status=201 if found is None else 200)

    @router.patch(
        "/policies/{model:path}",
        openapi_extra=body_schema({"type": "object"}),
        response_model=VersionedPolicy,
        responses=refusals(412, 413),
    )
    async def patch_policy(model: str, request: Request, if_match: IfMatch = None) -> Response:
        """Change the named fields of a policy (JSON merge patch: null resets a field to its default)."""
        found = await existing(model)
        change = await object_of(request)
        expected = found.version if if_match is None else _expected_version(found, if_match, None)
        merged = _merged(to_plain(found.policy), change)
        stored = await asyncio.to_thread(lambda: store.put_policy(_policy(merged, model), expected, clock.now()))
        on_change()
        return _policy_response(stored)

    @router.delete("/policies/{model:path}", status_code=204, responses=refusals(412))
    async def delete_policy(model: str, if_match: IfMatch = None) -> Response:
        """Remove a policy; the defaults hold from then on."""
        found = await existing(model)
        expected = None if if_match is None else _expected_version(found, if_match, None)
        await asyncio.to_thread(lambda: store.delete_policy(model, expected))
        on_change()
        return Response(status_code=204)

    return router


def _policy_response(found: VersionedPolicy, status: int = 200) -> JSONResponse:
    return JSONResponse(to_plain(found), status_code=status, headers={"ETag": f'"{found.version}"'})


async def _policy_of(request: Request, model: str) -> Policy:
    return _policy(await object_of(request), model)


def _policy(plain: dict[str, Any], model: str) -> Policy:
    """The policy that `plain` states; the model may be left out, as the path names it."""
    try:
        policy = from_plain(Policy, {"model": model, **plain})
    except InvalidDocumentError as error:
        raise invalid(error.faults, "policy") from error
    if policy.model != model:
        problem = f"is {policy.model!r}, but the path names {model!r}; leave it out or make them agree"
        raise invalid([Fault("model", problem)], "policy")
    return policy


def _expected_version(found: VersionedPolicy | None, if_match: str | None, if_none_match: str | None) -> int:
    """The version that the store must hold for the write to go on, from the caller's conditions."""
    if if_none_match is not None and if_none_match.strip() != "*":
        raise ApiError(400, "invalid_condition", 'If-None-Match may only be "*" here', param="If-None-Match")
    if found is None:
        if if_match is not None:
            raise ApiError(412, "version_conflict", "there is no policy yet; leave If-Match out", param="If-Match")
        return 0
    if if_none_match is not None:
        message = f"the policy exists already, at version {found.version}; replace it with If-Match"
        raise ApiError(412, "version_conflict", message, param="If-None-Match")
    if if_match is None:
        message = f'the policy exists; GET it and send its ETag as If-Match (now "{found.version}") to replace it'
        raise ApiError(428, "precondition_required", message, param="If-Match")
    if if_match.strip() == "*":
        return found.version
    wanted = re.fullmatch(r'(?:W/)?"?(\d{1,18})"?', if_match.strip())
    if wanted is None or int(wanted[1]) != found.version:
        message = f"the policy is at version {found.version}, not {if_match}; GET it again and repeat the change"
        raise ApiError(412, "version_conflict", message, param="If-Match")
    return found.version


def _merged(old: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged

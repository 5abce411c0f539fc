"""The admin API's freezes: K of a model, or of every model, stays until the freeze is lifted or expires.

The leader reads them in every tick, and engines read its schedule when it is announced, otherwise every 5 s.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from specpilot.controller.admin.audited import Write, Writing
from specpilot.controller.admin.body import WritingAlone, body_schema, document_from, object_of
from specpilot.controller.admin.dry_run import DryRun, answer
from specpilot.controller.admin.expiry import expiry_faults, expiry_in
from specpilot.controller.admin.problems import ApiError, invalid
from specpilot.controller.admin.replies import FreezeList, refusals
from specpilot.controller.admin.requests import FreezeRequest
from specpilot.policy.clock import Clock, utc
from specpilot.policy.codec import to_plain
from specpilot.policy.errors import Fault
from specpilot.policy.freeze import EVERYTHING, Freeze, Hold
from specpilot.policy.history import differences
from specpilot.policy.names import model_name_faults
from specpilot.policy.store import Store


def freeze_routes(store: Store, clock: Clock, on_change: Callable[[], None], router: APIRouter) -> APIRouter:  # noqa: C901 - one closure per route
    """Add the routes of freezes to `router`, and return it."""

    async def in_force(model: str, now: float) -> Freeze | None:
        freeze = (await asyncio.to_thread(store.freezes)).get(model)
        return freeze if freeze is not None and freeze.holds(now) else None

    async def begin_freeze(model: str, request: Request, write: Write) -> JSONResponse:
        write.note.subject = model
        faults = [] if model == EVERYTHING else model_name_faults("it", model)
        if faults:
            raise invalid([Fault("model", fault) for fault in faults], "freeze")
        plain, now = await object_of(request), clock.now()
        document = document_from(FreezeRequest, plain, "freeze", expiry_faults(plain, now, "until", "for_s"))
        until = expiry_in(plain, now, "until", "for_s")
        freeze = Freeze(model, Hold(document.hold), now, until, write.caller.name, write.note.comment)
        present = await in_force(model, now)
        if present is not None and present.author != freeze.author and not document.replace:
            raise _anothers(present)
        changes = differences(_shown(present), _shown(freeze))
        if write.is_dry_run:
            return answer(model, None, changes)
        write.note.changes = changes
        await asyncio.to_thread(store.put_freeze, freeze)
        on_change()
        return JSONResponse(to_plain(freeze))

    async def lift_freeze(model: str, write: Write) -> Response:
        write.note.subject = model
        freeze = await in_force(model, clock.now())
        if freeze is None:
            raise ApiError(404, "not_frozen", f"{_name(model)} is not frozen", param="model")
        changes = differences(_shown(freeze), {})
        if write.is_dry_run:
            return answer(model, None, changes)
        write.note.changes = changes
        await asyncio.to_thread(store.delete_freeze, model)
        on_change()
        return Response(status_code=204)

    @router.get("/freezes", response_model=FreezeList)
    async def list_freezes() -> JSONResponse:
        """The freezes in force; the model `*` is every model."""
        freezes, now = await asyncio.to_thread(store.freezes), clock.now()
        return JSONResponse({"freezes": [to_plain(item) for item in freezes.values() if item.holds(now)], "now": now})

    body = body_schema(FreezeRequest, is_required=False)
    written: dict[str, Any] = {
        "response_model": Freeze | DryRun,
        "responses": refusals(409, 413),
        "openapi_extra": body,
    }
    lifted: dict[str, Any] = {"status_code": 204, "responses": {200: {"model": DryRun}, **refusals(413)}}

    @router.put("/freezes", **written)
    async def freeze_everything(request: Request, write: Writing) -> JSONResponse:
        """Freeze K of every model, until the freeze is lifted or expires."""
        return await begin_freeze(EVERYTHING, request, write)

    @router.put("/freezes/{model:path}", **written)
    async def freeze_model(model: str, request: Request, write: Writing) -> JSONResponse:
        """Freeze K of one model, until the freeze is lifted or expires."""
        return await begin_freeze(model, request, write)

    @router.delete("/freezes", **lifted)
    async def unfreeze_everything(write: WritingAlone) -> Response:
        """Lift the freeze of every model; those of single models stay."""
        return await lift_freeze(EVERYTHING, write)

    @router.delete("/freezes/{model:path}", **lifted)
    async def unfreeze_model(model: str, write: WritingAlone) -> Response:
        """Lift the freeze of one model."""
        return await lift_freeze(model, write)

    return router


def _anothers(freeze: Freeze) -> ApiError:
    """Return the error for a call that would replace another caller's freeze, which may have a stricter purpose."""
    until = "it is lifted" if freeze.until is None else utc(freeze.until)
    why = f" ({freeze.comment})" if freeze.comment else ""
    message = f"{_name(freeze.model)} is frozen by {freeze.author or 'somebody'} until {until}{why}"
    return ApiError(
        409, "frozen_by_another", f"{message}; send replace: true to put yours in its place", param="replace"
    )


def _shown(freeze: Freeze | None) -> dict[str, Any]:
    return {} if freeze is None else {"hold": freeze.hold.value, "until": freeze.until}


def _name(model: str) -> str:
    return "everything" if model == EVERYTHING else repr(model)

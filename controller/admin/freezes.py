"""The admin API's freezes: K of a model, or of every model, stays until the freeze is lifted or expires.

The leader reads them in every tick, and engines read its schedule when it is announced, otherwise every 5 s.
"""

from typing import Any

from fastapi import APIRouter

from specpilot.controller.admin.audited import Write, Writing
from specpilot.controller.admin.body import Body, WritingAlone, body_schema, document_from
from specpilot.controller.admin.expiry import moment_of
from specpilot.controller.admin.problems import ApiError, invalid
from specpilot.controller.admin.replies import FreezeList, refusals
from specpilot.controller.admin.requests import FreezeRequest
from specpilot.policy.clock import Clock, utc
from specpilot.policy.errors import Fault
from specpilot.policy.freeze import EVERYTHING, Freeze, Hold
from specpilot.policy.history import differences
from specpilot.policy.names import MODEL_NAME_RULE, is_model_name
from specpilot.policy.store import Store


def freeze_routes(store: Store, clock: Clock, router: APIRouter) -> None:  # noqa: C901 - one closure per route
    """Add the routes of freezes to `router`."""

    def in_force(model: str, now: float) -> Freeze | None:
        freeze = store.freezes().get(model)
        return freeze if freeze is not None and freeze.holds(now) else None

    def begin_freeze(model: str, write: Write, plain: dict[str, Any]) -> Freeze:
        if not is_model_name(model):
            raise invalid([Fault("model", f"it {model!r} {MODEL_NAME_RULE}")], "freeze")
        now = clock.now()
        document = document_from(FreezeRequest, plain, "freeze", now)
        until = moment_of(document.until, document.for_s, now)
        freeze = Freeze(model, Hold(document.hold), now, until, write.author, write.comment)
        present = in_force(model, now)
        if present is not None and present.author != freeze.author and not document.replace:
            raise _anothers(present)
        write.begin(differences(_shown(present), _shown(freeze)))
        store.put_freeze(freeze)
        return freeze

    def lift_freeze(model: str, write: Write) -> None:
        freeze = in_force(model, clock.now())
        if freeze is None:
            raise ApiError(404, "not_frozen", f"{_name(model)} is not frozen", param="model")
        write.begin(differences(_shown(freeze), {}))
        store.delete_freeze(model)

    @router.get("/freezes")
    def list_freezes() -> FreezeList:
        """The freezes in force; the model `*` is every model."""
        now = clock.now()
        return FreezeList([item for item in store.freezes().values() if item.holds(now)], now)

    body = body_schema(FreezeRequest, is_required=False)

    @router.put("/freezes", openapi_extra=body, responses=refusals(409))
    def freeze_everything(write: Writing, plain: Body) -> Freeze:
        """Freeze K of every model, until the freeze is lifted or expires."""
        return begin_freeze(EVERYTHING, write, plain)

    @router.put("/freezes/{model:path}", openapi_extra=body, responses=refusals(409))
    def freeze_model(model: str, write: Writing, plain: Body) -> Freeze:
        """Freeze K of one model, until the freeze is lifted or expires."""
        return begin_freeze(model, write, plain)

    @router.delete("/freezes", status_code=204)
    def unfreeze_everything(write: WritingAlone) -> None:
        """Lift the freeze of every model; those of single models stay."""
        lift_freeze(EVERYTHING, write)

    @router.delete("/freezes/{model:path}", status_code=204)
    def unfreeze_model(model: str, write: WritingAlone) -> None:
        """Lift the freeze of one model."""
        lift_freeze(model, write)


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

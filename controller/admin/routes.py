"""The admin API: operators write policies, canaries, freezes, keys and tokens, and read the state and its history.

Reads and writes go to Redis directly, so that every controller, leader or stand-by, gives the same replies.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Security
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer

from specpilot.controller.admin.access import Access
from specpilot.controller.admin.asking import Asked, Asker
from specpilot.controller.admin.audited import AuditTrail, audited
from specpilot.controller.admin.canaries import canary_routes
from specpilot.controller.admin.freezes import freeze_routes
from specpilot.controller.admin.keys import key_routes
from specpilot.controller.admin.model_routes import model_route_routes
from specpilot.controller.admin.policies import PolicyWriter, policy_routes
from specpilot.controller.admin.problems import ApiError
from specpilot.controller.admin.replies import ALWAYS, AuditPage, DecisionList, EngineList, Explanation, ScheduleList
from specpilot.controller.admin.tokens import token_routes
from specpilot.controller.admin.versions import version_routes
from specpilot.controller.recording.explanation import explain
from specpilot.policy.clock import Clock
from specpilot.policy.model_policy import Mode
from specpilot.policy.questions import Kind
from specpilot.policy.records import Decision
from specpilot.policy.store import Store

_AT_ONCE_S = 1e-6
_ARRIVES_WITHIN_S = 2.0
_ARRIVING = 30

EntryNumber = Annotated[int | None, Query(ge=0, le=2**53)]
Moment = Annotated[float | None, Query(gt=0, lt=1e11, description="Unix seconds")]


def routes(  # noqa: PLR0913 - collaborators
    store: Store,
    access: Access,
    clock: Clock,
    trail: AuditTrail,
    *,
    on_change: Callable[[], None],
    default_mode: Mode = Mode.ACT,
) -> APIRouter:
    """Return the admin API over `store`; it calls `on_change` after every write, so that the loop ticks at once.

    `default_mode` is the mode of models without a policy.
    """
    shown = Security(HTTPBearer(auto_error=False, description="a token of the admin API"))  # `access` decides
    router = APIRouter(
        prefix="/admin", dependencies=[Depends(access), shown], tags=["admin"], responses=ALWAYS,
        route_class=audited(trail, on_change),
    )  # fmt: skip
    asker = Asker(store, clock)
    writer = PolicyWriter(store, clock, asker, default_mode)
    version_routes(writer, router)
    policy_routes(writer, router)
    canary_routes(writer, router)
    freeze_routes(store, clock, router)
    key_routes(store, clock, router)
    model_route_routes(store, clock, router)
    token_routes(store, clock, router)

    @router.get("/audit")
    def read_audit(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100, before: EntryNumber = None, after: EntryNumber = None
    ) -> AuditPage:
        """Writes and rejected writes, newest first; `before` (a number) pages back.

        With `after` (a number): the entries after that one, oldest first; repeat with the last number to follow.
        """
        return AuditPage(store.audit(limit, before, after))

    @router.get("/schedules")
    def list_schedules() -> ScheduleList:
        """The schedules in force."""
        return ScheduleList(store.schedules())

    @router.get("/engines")
    def list_engines() -> EngineList:
        """The engines whose heartbeat is fresh."""
        return EngineList(store.engines(), clock.now())

    @router.get("/decisions")
    def list_decisions(
        model: str,
        pool: str = "default",
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        before: Moment = None,
    ) -> DecisionList:
        """A pool's decisions, newest first; `before` (Unix seconds) pages back."""
        decisions = _decisions(store, model, pool, limit, before)
        if not decisions:
            _check_pool(store, model, pool)
        return DecisionList(decisions)

    @router.get("/explain", response_model=Explanation)
    def explain_moment(model: str, pool: str = "default", at: Moment = None) -> JSONResponse:
        """The measured K at a moment (default: now), the decision, its reason, its evidence, the measured gain."""
        decisions = _decisions(store, model, pool, 1, None if at is None else at + _AT_ONCE_S)
        if not decisions:
            _check_pool(store, model, pool)
            raise ApiError(
                404, "no_decision", f"there is no decision of {model!r} in pool {pool!r} by then", param="at"
            )
        return JSONResponse(explain(decisions[0], store.daily_gains(model, pool)))

    @router.get("/ask")
    async def ask_engines(model: str, pool: str = "default", kind: Kind = Kind.EXPLAIN) -> Asked:
        """What engines of a pool say now: `explain` (K, why, predictions) or `k_by_load`; takes a second at most."""
        await asyncio.to_thread(_check_pool, store, model, pool)
        return await asker.ask(model, pool, kind)

    return router


def _check_pool(store: Store, model: str, pool: str) -> None:
    """Raise `ApiError` 404 for a pool without an engine, a schedule or a decision; it names the field."""
    if _decisions(store, model, pool, 1, None):
        return
    engines, schedules = store.engines(), store.schedules()
    known = {(item.model, item.pool) for item in engines} | {(item.model, item.pool) for item in schedules}
    models = sorted({name for name, _ in known})
    if model not in models:
        message = f"no engine serves the model {model!r}; served: {', '.join(models) or 'none'}"
        raise ApiError(404, "model_not_found", message, param="model")
    if (model, pool) not in known:
        pools = ", ".join(sorted(name for served, name in known if served == model))
        raise ApiError(404, "pool_not_found", f"model {model!r} has no pool {pool!r}; it has {pools}", param="pool")


def _decisions(store: Store, model: str, pool: str, limit: int, before: float | None) -> Sequence[Decision]:
    """Return the decisions made before `before`, newest first.

    Redis orders decisions by arrival, a moment after they were made. So a few more are read, and the excess is dropped.
    """
    if before is None:
        return store.decisions(model, pool, limit)
    decisions = store.decisions(model, pool, limit + _ARRIVING, before + _ARRIVES_WITHIN_S)
    return [item for item in decisions if item.at < before][:limit]

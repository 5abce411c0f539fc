"""The admin API's route of the audit: every write and every rejected one, with its caller, time and source."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from specpilot.controller.admin.replies import AuditPage
from specpilot.policy.codec import to_plain
from specpilot.policy.store import Store

Number = Annotated[int | None, Query(ge=0, le=2**53)]


def audit_routes(store: Store, router: APIRouter) -> APIRouter:
    """Add the route of the audit to `router`, and return it."""

    @router.get("/audit", response_model=AuditPage)
    async def read_audit(
        limit: Annotated[int, Query(ge=1, le=1000)] = 100, before: Number = None, after: Number = None
    ) -> JSONResponse:
        """Writes and rejected writes, newest first; `before` (a number) pages back.

        With `after` (a number): the entries after that one, oldest first; repeat with the last number to follow.
        """
        found = await asyncio.to_thread(store.audit, limit, before, after)
        return JSONResponse({"entries": [to_plain(item) for item in found]})

    return router

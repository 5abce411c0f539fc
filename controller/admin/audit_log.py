"""The admin API's view of the audit: who did what, when, from where, and what was refused."""

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
        """What was written and refused, newest first; `before` (a number) pages back.

        With `after` (a number) what came after that, oldest first: ask again with the last number to follow.
        """
        found = await asyncio.to_thread(store.audit, limit, before, after)
        return JSONResponse({"entries": [to_plain(item) for item in found]})

    return router

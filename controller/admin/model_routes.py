"""The admin API's model routes: aliases, splits and fall-back models, one versioned document with ETag and If-Match.

Every gateway applies a new document within a second. The control loop does not use it. Earlier documents are not kept;
the audit has the changes of each write.
"""

from typing import Any

from fastapi import APIRouter, Response

from specpilot.controller.admin.audited import Write, Writing
from specpilot.controller.admin.body import Body, body_schema, document_from
from specpilot.controller.admin.conditions import IfMatch, IfNoneMatch, check_conditions, patched
from specpilot.controller.admin.replies import refusals, versioned
from specpilot.policy.clock import Clock
from specpilot.policy.codec import to_plain
from specpilot.policy.history import differences
from specpilot.policy.model_routes import ModelRoutes, VersionedModelRoutes
from specpilot.policy.store import Store

_DOCUMENT = "document of model routes"
_BODY = body_schema({"type": "object", "properties": {"routes": {"type": "object"}}})


def model_route_routes(store: Store, clock: Clock, router: APIRouter) -> None:
    """Add the routes of model routes to `router`."""

    def write_over(present: VersionedModelRoutes, plain: dict[str, Any], write: Write) -> Response:
        routes = document_from(ModelRoutes, plain, _DOCUMENT)
        write.begin(differences(_shown(present), to_plain(routes)), present.version + 1)
        stored = store.put_model_routes(routes, present.version, clock.now())
        return versioned(stored, status=201 if present.version == 0 else 200)

    @router.get("/model-routes", response_model=VersionedModelRoutes)
    def get_model_routes() -> Response:
        """Every model route, by the model name in requests; the ETag goes into If-Match of a later PUT."""
        return versioned(store.model_routes())

    @router.put(
        "/model-routes",
        openapi_extra=_BODY,
        response_model=VersionedModelRoutes,
        responses={201: {"model": VersionedModelRoutes}, **refusals(400, 412, 428)},
    )
    def put_model_routes(
        write: Writing, plain: Body, if_match: IfMatch = None, if_none_match: IfNoneMatch = None
    ) -> Response:
        """Replace all model routes (If-Match: the ETag; the first time If-None-Match: * or nothing)."""
        present = store.model_routes()
        check_conditions(_DOCUMENT, present.version or None, if_match, if_none_match)
        return write_over(present, plain, write)

    @router.patch(
        "/model-routes",
        openapi_extra=_BODY,
        response_model=VersionedModelRoutes,
        responses={201: {"model": VersionedModelRoutes}, **refusals(400, 412)},
    )
    def patch_model_routes(write: Writing, change: Body, if_match: IfMatch = None) -> Response:
        """Change the named routes (JSON merge patch: null removes a route, the others stay)."""
        present = store.model_routes()
        if if_match is not None:
            check_conditions(_DOCUMENT, present.version or None, if_match, None)
        return write_over(present, patched(_shown(present), change), write)


def _shown(document: VersionedModelRoutes) -> dict[str, Any]:
    return {"routes": to_plain(document)["routes"]}

"""The admin API's history of policies: their versions, the difference of two, and the rollback to one.

A rollback writes the older policy as a new version, so that it can be rolled back too. The routes of this file are
added before those of single policies, whose path would match `/policies/MODEL/versions` as a model's name. So the
policy of a model with a name that ends in `/versions` cannot be read.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response
from fastapi.responses import JSONResponse

from specpilot.controller.admin.audited import Writing
from specpilot.controller.admin.body import Body, body_schema, document_from
from specpilot.controller.admin.conditions import IfMatch, IfNoneMatch
from specpilot.controller.admin.policies import PolicyWriter
from specpilot.controller.admin.problems import ApiError
from specpilot.controller.admin.replies import PolicyDiff, VersionList, refusals
from specpilot.controller.admin.requests import NEWEST_VERSION, Rollback
from specpilot.policy.history import VERSIONS_KEPT, PolicyVersion, VersionCause, differences
from specpilot.policy.model_policy import VersionedPolicy

Number = Annotated[int, Path(ge=1, le=NEWEST_VERSION)]


def version_routes(writer: PolicyWriter, router: APIRouter) -> None:
    """Add the routes of policies' histories to `router`."""
    store = writer.store

    def version_of(model: str, number: int) -> PolicyVersion:
        version = store.policy_version(model, number)
        if version is None:
            message = f"there is no version {number} of the policy of {model!r}; the last {VERSIONS_KEPT} are kept"
            raise ApiError(404, "version_not_found", message, param="version")
        return version

    @router.get("/policies/{model:path}/versions")
    def list_versions(
        model: str,
        limit: Annotated[int, Query(ge=1, le=VERSIONS_KEPT)] = 50,
        before: Annotated[int | None, Query(ge=1, le=NEWEST_VERSION)] = None,
    ) -> VersionList:
        """A policy's versions, newest first; `before` (a version) pages back. A deletion is a version too."""
        return VersionList(store.policy_versions(model, limit, before))

    @router.get("/policies/{model:path}/versions/{version}")
    def get_version(model: str, version: Number) -> PolicyVersion:
        """One version of a policy; its `policy` is null where it was deleted."""
        return version_of(model, version)

    @router.get("/policies/{model:path}/diff", response_model=PolicyDiff)
    def diff_versions(
        model: str,
        before: Annotated[int, Query(alias="from", ge=0, le=NEWEST_VERSION, description="version; 0: the defaults")],
        after: Annotated[int, Query(alias="to", ge=0, le=NEWEST_VERSION, description="version; 0: the defaults")],
    ) -> JSONResponse:
        """The fields in which two versions of a policy differ."""
        older, newer = [writer.plain(version_of(model, item) if item else None, model) for item in (before, after)]
        changes = [{"field": at, "before": old, "after": new} for at, old, new in differences(older, newer)]
        return JSONResponse({"model": model, "from": before, "to": after, "changes": changes})

    @router.post(
        "/policies/{model:path}/rollback",
        openapi_extra=body_schema(Rollback),
        response_model=VersionedPolicy,
        responses={201: {"model": VersionedPolicy}, **refusals(400, 412, 428)},
    )
    def rollback_policy(
        model: str, write: Writing, plain: Body, if_match: IfMatch = None, if_none_match: IfNoneMatch = None
    ) -> Response:
        """Write an older version of a policy again, as a new version; conditions as for PUT."""
        number, present = document_from(Rollback, plain, "rollback").version, store.policy(model)
        writer.expected(model, present, if_match, if_none_match)
        version = version_of(model, number)
        if version.policy is None:
            message = f"version {number} is a deletion; DELETE the policy, or name another version"
            raise ApiError(422, "version_is_deletion", message, param="version")
        write.comment = write.comment or f"back to version {number}"
        return writer.put(version.policy, present, write, VersionCause.ROLLBACK)

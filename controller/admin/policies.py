"""The admin API's policies: versioned documents with ETag and If-Match.

A policy's ETag is its version. `PUT`, `DELETE` and a roll-back need `If-Match` where there is a policy, so that no
operator overwrites an unseen change; the error lists the changes since.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Response

from specpilot.controller.admin.asking import Asked, Asker
from specpilot.controller.admin.audited import Write, Writing
from specpilot.controller.admin.body import Body, WritingAlone, body_schema, document_from
from specpilot.controller.admin.conditions import IfMatch, IfNoneMatch, check_conditions, patched
from specpilot.controller.admin.problems import ApiError, invalid
from specpilot.controller.admin.replies import PolicyList, refusals, versioned
from specpilot.policy.clock import Clock
from specpilot.policy.codec import schema, to_plain
from specpilot.policy.errors import Fault, VersionConflictError
from specpilot.policy.history import Difference, PolicyVersion, VersionCause, differences, shown
from specpilot.policy.model_policy import Mode, Policy, VersionedPolicy
from specpilot.policy.store import Store

_CHANGES_LISTED = 8


@dataclass(frozen=True, slots=True)
class PolicyWriter:
    """Writes policies for all routes that write one.

    `default_mode` is the mode of models without a policy.
    """

    store: Store
    clock: Clock
    asker: Asker
    default_mode: Mode

    def plain(self, stored: VersionedPolicy | PolicyVersion | None, model: str) -> Any:
        """Return a model's policy as plain data, else the defaults; `model` need not be a valid name."""
        if stored is not None and stored.policy is not None:
            return to_plain(stored.policy)
        return {**to_plain(Policy("any", mode=self.default_mode)), "model": model}

    def existing(self, model: str) -> VersionedPolicy:
        """Return the policy of `model`; raises `ApiError` 404 without one."""
        present = self.store.policy(model)
        if present is None:
            raise ApiError(404, "policy_not_found", f"model {model!r} has no policy; the defaults apply", param="model")
        return present

    def put(self, policy: Policy, present: VersionedPolicy | None, write: Write, cause: VersionCause) -> Response:
        """Write `policy` over `present`."""
        model = policy.model
        changes = differences(self.plain(present, model), to_plain(policy))
        write.begin(changes, self._next_version(model, present), forecast=lambda: self.forecast(model, policy))
        version = present.version if present else 0
        try:
            stored = self.store.put_policy(policy, version, self.clock.now(), write.change(cause))
        except VersionConflictError as error:
            raise self._overtaken(model, error) from error
        return versioned(stored, status=201 if present is None else 200)

    def delete(self, present: VersionedPolicy, write: Write) -> None:
        """Remove `present`."""
        model = present.policy.model
        changes = differences(to_plain(present.policy), self.plain(None, model))
        write.begin(changes, present.version + 1, forecast=lambda: self.forecast(model, None))
        try:
            self.store.delete_policy(model, present.version, self.clock.now(), write.change(VersionCause.DELETE))
        except VersionConflictError as error:
            raise self._overtaken(model, error) from error

    async def forecast(self, model: str, policy: Policy | None) -> Sequence[Asked]:
        """Return what `policy` (`None`: the defaults) would do in every pool of the model, as its engines say."""
        return await self.asker.forecast(model, policy, self.default_mode)

    def expected(
        self, model: str, present: VersionedPolicy | None, if_match: str | None, if_none_match: str | None
    ) -> None:
        """Raise `ApiError` unless the caller's conditions allow to replace `present`."""
        version = present.version if present else None
        check_conditions("policy", version, if_match, if_none_match, lambda older: self._since(model, older))

    def _overtaken(self, model: str, error: VersionConflictError) -> ApiError:
        """Return the reply to a write that another one preceded by a moment."""
        return ApiError(412, "version_conflict", str(error) + self._since(model, error.expected), param="If-Match")

    def _since(self, model: str, older: int) -> str:
        """Return a sentence with the authors and changes since the version `older`."""
        versions = [item for item in self.store.policy_versions(model, 50) if item.version > older]
        return _changes_since(self.store.policy_version(model, older), versions) if versions else ""

    def _next_version(self, model: str, present: VersionedPolicy | None) -> int:
        if present is not None:
            return present.version + 1
        latest = self.store.policy_versions(model, 1)
        return latest[0].version + 1 if latest else 1


def policy_routes(writer: PolicyWriter, router: APIRouter) -> None:
    """Add the routes of policies to `router`."""
    store = writer.store

    @router.get("/policies")
    def list_policies() -> PolicyList:
        """Every policy with its version; `default_mode` is the mode of models without one."""
        return PolicyList(store.policies(), writer.default_mode)

    @router.get("/policy-schema")
    def policy_schema() -> dict[str, Any]:
        """The JSON schema of a policy."""
        return schema(Policy)

    @router.get("/policies/{model:path}", response_model=VersionedPolicy)
    def get_policy(model: str) -> Response:
        """One policy; its ETag goes into If-Match of a later PUT."""
        return versioned(writer.existing(model))

    @router.put(
        "/policies/{model:path}",
        openapi_extra=body_schema({"$ref": "#/components/schemas/Policy"}),
        response_model=VersionedPolicy,
        responses={201: {"model": VersionedPolicy}, **refusals(400, 412, 428)},
    )
    def put_policy(
        model: str, write: Writing, plain: Body, if_match: IfMatch = None, if_none_match: IfNoneMatch = None
    ) -> Response:
        """Create a policy (If-None-Match: * or nothing) or replace one (If-Match: its ETag)."""
        policy, present = policy_from(plain, model), store.policy(model)
        writer.expected(model, present, if_match, if_none_match)
        return writer.put(policy, present, write, VersionCause.PUT)

    @router.patch(
        "/policies/{model:path}",
        openapi_extra=body_schema({"type": "object"}),
        response_model=VersionedPolicy,
        responses=refusals(400, 412),
    )
    def patch_policy(model: str, write: Writing, change: Body, if_match: IfMatch = None) -> Response:
        """Change the named fields of a policy (JSON merge patch: null resets a field to its default)."""
        present = writer.existing(model)
        if if_match is not None:
            writer.expected(model, present, if_match, None)
        policy = policy_from(patched(to_plain(present.policy), change), model)
        return writer.put(policy, present, write, VersionCause.PATCH)

    @router.delete("/policies/{model:path}", status_code=204, responses=refusals(400, 412, 428))
    def delete_policy(model: str, write: WritingAlone, if_match: IfMatch = None) -> None:
        """Remove a policy (If-Match: its ETag); the defaults apply from then on."""
        present = writer.existing(model)
        writer.expected(model, present, if_match, None)
        writer.delete(present, write)


def policy_from(plain: dict[str, Any], model: str) -> Policy:
    """Return the policy that `plain` describes. Raises `ApiError`."""
    return document_from(Policy, with_model(plain, model, "policy", "model"), "policy")


def with_model(policy: dict[str, Any], model: str, kind: str, field: str) -> dict[str, Any]:
    """Return a policy in a request with its model, which it may leave out, as the path names it.

    Raises `ApiError`, about `field` of a `kind`, if it names another one.
    """
    stated = policy.get("model", model)
    if stated != model:
        problem = f"is {str(stated)[:80]!r}, but the path names {model!r}; leave it out or make them agree"
        raise invalid([Fault(field, problem)], kind)
    return {**policy, "model": model}


def _changes_since(before: PolicyVersion | None, versions: list[PolicyVersion]) -> str:
    """Return a sentence with the authors of `versions` (newest first) and the sum of their changes."""
    authors = ", ".join(dict.fromkeys(item.author or "somebody" for item in reversed(versions)))
    newest = versions[0]
    if newest.policy is None:
        return f". Since then {authors} deleted it"
    if before is None:
        return f". Since then {authors} wrote it"
    if before.policy is None:
        return f". Since then {authors} wrote it again"
    changes = differences(to_plain(before.policy), to_plain(newest.policy))
    if not changes:
        return f". Since then {authors} wrote the same again"
    listed = "; ".join(_line(item) for item in changes[:_CHANGES_LISTED])
    more = f" and {len(changes) - _CHANGES_LISTED} more" if len(changes) > _CHANGES_LISTED else ""
    return f". Since then {authors} changed {listed}{more}"


def _line(item: Difference) -> str:
    return f"{item.field} from {_short(item.before)} to {_short(item.after)}"


def _short(value: Any) -> str:
    text = shown(value)
    return text if len(text) <= 80 else text[:80] + "…"  # noqa: PLR2004 - the length of a readable line

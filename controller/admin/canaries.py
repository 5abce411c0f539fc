"""The admin API's canaries: start, read, promote and abort them.

A model has at most one running experiment; the latest one can be read until the next begins. A canary must not change
`match` or the names of the classes: the gateway applies them, and it assigns a request's class independently of the
canary's windows.
"""

import secrets
from dataclasses import fields, replace
from functools import partial
from typing import Any

from fastapi import APIRouter

from specpilot.controller.admin.audited import Write, Writing
from specpilot.controller.admin.body import Body, WritingAlone, body_schema, document_from
from specpilot.controller.admin.conditions import IfMatch
from specpilot.controller.admin.policies import PolicyWriter, with_model
from specpilot.controller.admin.problems import ApiError, invalid
from specpilot.controller.admin.replies import CanaryList, refusals
from specpilot.controller.experiments.canary import described, ended
from specpilot.policy.canary import Canary, Experiment, Outcome
from specpilot.policy.clock import utc
from specpilot.policy.codec import to_plain
from specpilot.policy.errors import Fault, VersionConflictError
from specpilot.policy.history import Change, Difference, VersionCause, differences
from specpilot.policy.model_policy import Policy, VersionedPolicy
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.store import Store

_CANARY_REQUEST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "policy": {"$ref": "#/components/schemas/Policy"},
        **{field.name: {"type": "number"} for field in fields(Canary) if field.name != "policy"},
    },
    "required": ["policy"],
    "additionalProperties": False,
}


def canary_routes(writer: PolicyWriter, router: APIRouter) -> None:  # noqa: C901 - one closure per route
    """Add the routes of canaries to `router`."""
    store, clock = writer.store, writer.clock

    def end(model: str, outcome: Outcome, write: Write, if_match: str | None) -> Experiment:
        experiment = store.canary(model)
        if experiment is None or not experiment.is_running:
            raise ApiError(404, "canary_not_running", f"model {model!r} has no running canary", param="model")
        if if_match is not None and if_match.strip().strip('"') not in ("*", experiment.experiment_id):
            raise _another(experiment)
        changes: list[Difference] = []
        if outcome.is_promotion:
            present = store.policy(model)
            version = present.version if present else 0
            if version != experiment.base_version:
                raise VersionConflictError(f"the policy of {model}", experiment.base_version, version)
            changes = differences(writer.plain(present, model), to_plain(experiment.canary.policy))
        forecast = partial(writer.forecast, model, experiment.canary.policy) if outcome.is_promotion else None
        write.begin(changes, forecast=forecast)
        return _end(store, experiment, outcome, clock.now(), write.change(VersionCause.CANARY))

    @router.get("/canaries")
    def list_canaries() -> CanaryList:
        """The running or latest canary of every model."""
        return CanaryList(store.canaries())

    @router.get("/canaries/{model:path}")
    def get_canary(model: str) -> Experiment:
        """The running or latest canary of a model, with its results so far."""
        experiment = store.canary(model)
        if experiment is None:
            raise ApiError(404, "canary_not_found", f"model {model!r} never had a canary", param="model")
        if experiment.is_running:
            experiment = replace(experiment, evidence=described(experiment, None))
        return experiment

    @router.put(
        "/canaries/{model:path}",
        openapi_extra=body_schema(_CANARY_REQUEST),
        status_code=201,
        responses=refusals(400, 409, 412),
    )
    def start_canary(model: str, write: Writing, plain: Body, if_match: IfMatch = None) -> Experiment:
        """Try a policy in alternation with the present one; 409 while a canary of the model runs.

        If-Match is the version of the present policy that the canary was derived from. With another present version
        the call is rejected, because a promotion would undo the changes since.
        """
        canary, present = _canary(plain, model), store.policy(model)
        if if_match is not None:
            writer.expected(model, present, if_match, None)
        changes = differences(writer.plain(present, model), to_plain(canary.policy))
        started = _started(store, canary, present, clock.now())
        write.begin(changes, forecast=partial(writer.forecast, model, canary.policy))
        store.put_canary(started, None, clock.now())
        return started

    @router.delete("/canaries/{model:path}", responses=refusals(412))
    def abort_canary(model: str, write: WritingAlone, if_match: IfMatch = None) -> Experiment:
        """End the running canary (with If-Match, an `experiment_id`, only that one); the present policy stays."""
        return end(model, Outcome.ABORTED, write, if_match)

    @router.post("/canary-promotions/{model:path}", responses=refusals(412))
    def promote_canary(model: str, write: WritingAlone, if_match: IfMatch = None) -> Experiment:
        """End the running canary (with If-Match, an `experiment_id`, only that one); its policy becomes the model's."""
        return end(model, Outcome.PROMOTED, write, if_match)


def _canary(plain: dict[str, Any], model: str) -> Canary:
    """Return the canary that `plain` describes."""
    policy = plain.get("policy")
    named = {"policy": with_model(policy, model, "canary", "policy.model")} if isinstance(policy, dict) else {}
    return document_from(Canary, plain | named, "canary")


def _started(store: Store, canary: Canary, present: VersionedPolicy | None, now: float) -> Experiment:
    """Return the experiment that `canary` begins; raises `ApiError` if it must not begin."""
    model = canary.policy.model
    latest = store.canary(model)
    if latest is not None and latest.is_running:
        message = f"a canary of {model!r} runs since {utc(latest.started_at)}; abort or promote it first"
        raise ApiError(409, "canary_running", message, param="model")
    faults = _gateway_faults(canary.policy, present.policy if present else Policy(model))
    if faults:
        raise invalid(faults, "canary")
    return Experiment(
        version=(latest.version if latest else 0) + 1,
        experiment_id=secrets.token_hex(8),
        canary=canary,
        base_version=present.version if present else 0,
        started_at=now,
    )


def _gateway_faults(tried: Policy, present: Policy) -> list[Fault]:
    """Return a fault for each field of `tried` that the gateway applies and that differs from `present`."""
    faults = []
    whole = "a canary's policy is whole, so begin with the present one"
    if tried.match != present.match:
        problem = f"differs from the present policy's, but a canary cannot try rules of the gateway; {whole}"
        faults.append(Fault("policy.match", problem))
    present_classes, tried_classes = (sorted({*policy.classes} - {DEFAULT_CLASS}) for policy in (present, tried))
    if present_classes != tried_classes:
        tried_names, present_names = (", ".join(names) or "none" for names in (tried_classes, present_classes))
        problem = f"names {tried_names}, but the present policy {present_names}, and a canary cannot try other classes"
        faults.append(Fault("policy.classes", f"{problem}; {whole}"))
    return faults


def _another(running: Experiment) -> ApiError:
    """Return the error for a caller that meant another canary than `running`."""
    message = f"the canary {running.experiment_id} of {running.model!r} runs now, since {utc(running.started_at)}"
    return ApiError(412, "version_conflict", f"{message}; GET it again, then repeat the call", param="If-Match")


def _end(store: Store, experiment: Experiment, outcome: Outcome, now: float, change: Change) -> Experiment:
    """End `experiment` for an operator, also when the leader has stored another block meanwhile."""
    while True:
        last = replace(ended(experiment, outcome, now), version=experiment.version + 1)
        try:
            store.put_canary(last, None, now, change)
        except VersionConflictError:
            stored = store.canary(experiment.model)
            if stored is None or not stored.is_running or stored.version == experiment.version:
                raise
            if stored.experiment_id != experiment.experiment_id:
                raise _another(stored) from None
            experiment = stored
        else:
            return last

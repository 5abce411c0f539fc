"""The shapes of the admin API's replies. A test checks every reply against its OpenAPI page.

Replies with an ETag, without a secret's hash, or with members that depend on the evidence are plain JSON instead: of
those the page alone uses the types.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

from specpilot.policy.access import AdminToken, Role
from specpilot.policy.api_key import ApiKey
from specpilot.policy.audit import AuditEntry
from specpilot.policy.canary import Experiment
from specpilot.policy.codec import to_plain
from specpilot.policy.errors import Fault
from specpilot.policy.freeze import Freeze
from specpilot.policy.history import PolicyVersion
from specpilot.policy.model_policy import Mode, VersionedPolicy
from specpilot.policy.model_routes import VersionedModelRoutes
from specpilot.policy.records import Decision, EngineRecord
from specpilot.policy.schedule import Guidance, Override, Schedule

Responses = dict[int | str, dict[str, Any]]


@dataclass(frozen=True)
class Refusal:
    """The fault, as a message for people and a code for programs."""

    message: str
    type: str
    param: str | None
    code: str
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Problem:
    """Every refusal."""

    error: Refusal


@dataclass(frozen=True)
class PolicyList:
    """Every policy, and the mode of models without one."""

    policies: Sequence[VersionedPolicy]
    default_mode: Mode


@dataclass(frozen=True)
class CanaryList:
    """The running or latest canary of every model."""

    canaries: Sequence[Experiment]


@dataclass(frozen=True)
class ScheduleList:
    """Every schedule in force."""

    schedules: Sequence[Schedule]


@dataclass(frozen=True)
class EngineList:
    """The engines whose heartbeat is fresh; `now` in Unix seconds."""

    engines: Sequence[EngineRecord]
    now: float


@dataclass(frozen=True)
class DecisionList:
    """A pool's decisions, newest first."""

    decisions: Sequence[Decision]


@dataclass(frozen=True)
class KeyShown:
    """A client key without the key."""

    key_id: str
    traffic_class: str | None
    allowed_classes: list[str] | None
    allowed_models: list[str] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_concurrent_requests: int | None
    k_max: int | None
    expires_at: float | None
    previous_expires_at: float | None


@dataclass(frozen=True)
class KeyList:
    """Every client key; `now` in Unix seconds."""

    keys: list[KeyShown]
    now: float


@dataclass(frozen=True)
class NewKey(KeyShown):
    """A client key, this once with the key itself."""

    key: str


@dataclass(frozen=True)
class VersionList:
    """A policy's versions, newest first."""

    versions: Sequence[PolicyVersion]


@dataclass(frozen=True)
class FieldDifference:
    """One field that differs."""

    field: str
    before: Any
    after: Any


@dataclass(frozen=True)
class PolicyDiff:
    """The fields in which two versions differ; the answer names the versions `from` and `to`."""

    model: str
    changes: list[FieldDifference]


@dataclass(frozen=True)
class TokenShown:
    """A named token without its secret."""

    token_id: str
    name: str
    role: Role
    created_at: float
    created_by: str
    expires_at: float | None
    rotated_at: float | None


@dataclass(frozen=True)
class TokenList:
    """Every named token; `now` in Unix seconds."""

    tokens: list[TokenShown]
    now: float


@dataclass(frozen=True)
class NewToken(TokenShown):
    """A named token, this once with the token itself."""

    token: str


@dataclass(frozen=True)
class WhoAmI:
    """The caller."""

    name: str
    role: Role
    expires_at: float | None


@dataclass(frozen=True)
class FreezeList:
    """The freezes in force; `now` in Unix seconds."""

    freezes: Sequence[Freeze]
    now: float


@dataclass(frozen=True)
class AuditPage:
    """Entries of the audit."""

    entries: Sequence[AuditEntry]


@dataclass(frozen=True)
class GainShown:
    """A measured gain, 0.1 is 10 %, with its 95 % interval."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class GainOfDay:
    """The gain of adaptive K over the static K in one day (UTC); `null` when its windows are too few."""

    day: str
    windows: int
    throughput_gain_ratio: GainShown | None
    itl_gain_ratio: GainShown | None


@dataclass(frozen=True)
class Explanation:
    """A decision; the members are those of `controller.recording.explanation.explain`."""

    at: float
    model: str
    pool: str
    mode: str
    version: int | None
    published: bool
    reason: str
    meaning: str
    k: dict[str, float]
    guidance: Guidance | None
    override: Override | None
    control_group: dict[str, Any] | None
    control_group_days: list[GainOfDay]
    evidence: dict[str, Any]


@dataclass(frozen=True)
class Status:
    """Whether the controller is well, and the problem if not."""

    status: str
    problem: str = ""


def shown(record: ApiKey | AdminToken) -> dict[str, Any]:
    """Return a client key or a named token as plain JSON (`KeyShown`, `TokenShown`): without its hashes."""
    return {name: value for name, value in to_plain(record).items() if not name.endswith("sha256")}


def versioned(document: VersionedPolicy | VersionedModelRoutes, status: int = 200) -> JSONResponse:
    """Return a document with its version as ETag."""
    return JSONResponse(to_plain(document), status_code=status, headers={"ETag": f'"{document.version}"'})


def refusals(*statuses: int) -> Responses:
    """Return the documentation of errors with `statuses`."""
    return {status: {"model": Problem} for status in statuses}


ALWAYS = refusals(401, 403, 404, 405, 422, 500, 503)
"""Errors of every call: no token, role too low, not found, invalid values, Redis unavailable."""

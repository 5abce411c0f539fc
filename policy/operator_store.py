"""The operators' part of the shared state: history of policies, model routes, tokens, freezes, audit, gains.

Part of `Store`; every call may raise `StoreUnavailableError`.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from specpilot.policy.access import AdminToken
from specpilot.policy.audit import AuditEntry
from specpilot.policy.freeze import Freeze
from specpilot.policy.gain import DailyGain, LogGain
from specpilot.policy.history import PolicyVersion
from specpilot.policy.model_routes import ModelRoutes, VersionedModelRoutes
from specpilot.policy.records import Lease


class OperatorStore(Protocol):
    """The shared state of operators."""

    def unannounced(self) -> str | None:
        """Return why the latest write could not be announced; `None` when it was.

        A write counts although it is not announced: other parts see it when they poll.
        """

    def policy_versions(self, model: str, limit: int, before: int | None = None) -> Sequence[PolicyVersion]:
        """Return the latest `limit` versions of a policy, newest first; with `before`, those below that version."""

    def policy_version(self, model: str, version: int) -> PolicyVersion | None:
        """Return one version; `None` when it never existed or is no longer kept."""

    def model_routes(self) -> VersionedModelRoutes:
        """Return the model routes; an empty document of version 0 before the first write."""

    def put_model_routes(self, routes: ModelRoutes, expected_version: int, now: float) -> VersionedModelRoutes:
        """Write `routes` if the stored version is `expected_version`; else raises `VersionConflictError`."""

    def admin_tokens(self) -> Sequence[AdminToken]:
        """Return every named token that can be read, in order of id."""

    def admin_token(self, token_id: str) -> AdminToken | None:
        """Return one named token; `None` when it does not exist or cannot be read."""

    def put_admin_token(self, token: AdminToken, before: AdminToken | None) -> bool:
        """Replace `before` (`None`: no token) by `token`; `False`, and nothing is written, if another is stored."""

    def delete_admin_token(self, token_id: str) -> bool:
        """Revoke a token; `False` when there is none of that id."""

    def freezes(self) -> Mapping[str, Freeze]:
        """Return every freeze by its model, expired ones included.

        A freeze that cannot be read counts as a freeze of the current K until it is lifted or replaced: otherwise K
        would change although an operator froze it.
        """

    def put_freeze(self, freeze: Freeze) -> None:
        """Begin a freeze, or replace the one of the same model."""

    def delete_freeze(self, model: str) -> bool:
        """Lift a freeze; `False` when there is none."""

    def append_audit(self, entry: AuditEntry) -> int:
        """Add an entry and return its number; the oldest entries are dropped."""

    def audit(self, limit: int, before: int | None = None, after: int | None = None) -> Sequence[AuditEntry]:
        """Return `limit` entries with numbers below `before` and above `after`.

        They are the newest ones, newest first; with `after` the oldest ones, oldest first.
        """

    def add_gain(self, model: str, pool: str, at: float, log_gain: LogGain, lease: Lease) -> DailyGain:
        """Add a window of the control group, compared at `at` (Unix seconds), to its day; return that day.

        Days before the last `GAIN_DAYS_KEPT` are dropped. Raises `FencedError` when another controller has led since
        `lease`.
        """

    def daily_gains(self, model: str, pool: str) -> Sequence[DailyGain]:
        """Return the days with compared windows, newest first."""

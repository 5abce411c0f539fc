"""The interface of the shared state, independent of Redis.

All calls block for at most the store's time-out. No request path calls the store: the gateway and the engines read a
snapshot that a background thread keeps. Every call may raise `StoreUnavailableError`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.canary import Experiment
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.history import DELETED, WRITTEN, Change
from specpilot.policy.model_policy import Policy, VersionedPolicy
from specpilot.policy.operator_store import OperatorStore
from specpilot.policy.questions import Answer, Question
from specpilot.policy.records import Decision, EngineRecord, Lease
from specpilot.policy.schedule import Schedule


class StoreMemory(NamedTuple):
    """The bytes that a server uses, and its limit; 0: no limit."""

    used_bytes: int
    max_bytes: int

    @property
    def used_ratio(self) -> float:
        """Used bytes over the limit; 0 without a limit."""
        return self.used_bytes / self.max_bytes if self.max_bytes else 0.0


class Store(OperatorStore, Protocol):
    """The shared policy state."""

    def policy(self, model: str) -> VersionedPolicy | None:
        """Return the policy of `model`; `None` when there is none."""

    def policies(self) -> Sequence[VersionedPolicy]:
        """Return every policy that can be read, in order of model."""

    def policies_by_model(self) -> Mapping[str, VersionedPolicy | InvalidDocumentError]:
        """Return by model every policy, or the faults of its document."""

    def put_policy(
        self, policy: Policy, expected_version: int | None, now: float, change: Change = WRITTEN
    ) -> VersionedPolicy:
        """Write `policy` if the stored version is `expected_version` (0: none yet; `None`: any).

        `change` goes into the policy's history; the author is no part of the policy. Raises `VersionConflictError` when
        another version is stored.
        """

    def delete_policy(self, model: str, expected_version: int | None, now: float, change: Change = DELETED) -> bool:
        """Remove the policy of `model`; `False` when there is none. Conflicts as in `put_policy`.

        A deletion is a version too.
        """

    def canary(self, model: str) -> Experiment | None:
        """Return the running or latest experiment of `model`; `None` when there was none."""

    def canaries(self) -> Sequence[Experiment]:
        """Return the running or latest experiment of every model, of those that can be read."""

    def put_canary(self, experiment: Experiment, lease: Lease | None, now: float, change: Change | None = None) -> None:
        """Write `experiment` if the stored version is the one before its own (1: nothing is stored).

        With a promoting outcome its policy becomes the model's policy in the same step, if the stored policy is still
        at the experiment's `base_version`. `change` goes into the policy's history; by default the author is the
        controller. A controller passes its `lease`, an operator none. Raises `VersionConflictError` when the experiment
        or the policy was written in between, `FencedError` as `publish_schedule`.
        """

    def schedule(self, model: str, pool: str) -> Schedule | None:
        """Return the schedule in force for a pool; `None` before the first."""

    def schedules(self) -> Sequence[Schedule]:
        """Return the schedule of every pool, of those that can be read."""

    def remove_schedule(self, model: str, pool: str, lease: Lease) -> None:
        """Remove the schedule of a pool that is gone; `FencedError` as `publish_schedule`."""

    def publish_schedule(self, schedule: Schedule, lease: Lease) -> None:
        """Write and announce `schedule`.

        Raises `FencedError` when another controller has led since `lease`, `VersionConflictError` when the stored
        version is not older.
        """

    def put_question(self, model: str, pool: str, question: Question) -> None:
        """Ask engines of a pool: write the question for some seconds and announce it."""

    def remove_question(self, model: str, pool: str, question_id: str) -> None:
        """Remove a question that needs no further answer."""

    def questions(self, model: str, pool: str) -> Sequence[Question]:
        """Return the questions to engines of a pool that can be read."""

    def put_answer(self, answer: Answer) -> None:
        """Answer a question; the answer expires within seconds."""

    def answers(self, question: Question) -> Mapping[str, Answer | InvalidDocumentError]:
        """Return by engine the answers so far, or the faults of their documents."""

    def engines(self) -> Sequence[EngineRecord]:
        """Return the engines whose heartbeat is fresh and whose record can be read, in order of id."""

    def heartbeat(self, record: EngineRecord, ttl_s: float) -> None:
        """Register an engine or renew it for `ttl_s` seconds."""

    def remove_engine(self, engine_id: str) -> None:
        """Remove an engine from the list at once."""

    def append_decision(self, decision: Decision, *, is_lasting: bool) -> None:
        """Add `decision` to its pool's record. The latest decisions are kept; lasting ones are kept longer."""

    def decisions(self, model: str, pool: str, limit: int, before: float | None = None) -> Sequence[Decision]:
        """Return a pool's latest `limit` decisions, newest first; with `before`, those made before that time.

        Beyond the latest ones, lasting decisions follow.
        """

    def api_keys(self) -> Sequence[ApiKey]:
        """Return every client key that can be read (hashes only)."""

    def api_keys_by_id(self) -> Mapping[str, ApiKey | InvalidDocumentError]:
        """Return by id every client key, or the faults of its document."""

    def put_api_key(self, key: ApiKey) -> None:
        """Add or replace a client key."""

    def change_api_key(self, before: ApiKey, after: ApiKey) -> bool:
        """Replace `before` by `after` of the same id; `False`, and nothing is written, when `before` is not there."""

    def delete_api_key(self, key_id: str) -> bool:
        """Revoke a client key; `False` when there is none of that id."""

    def exchange_usage(self, usage: GatewayUsage, ttl_s: float) -> Sequence[GatewayUsage]:
        """Publish `usage` for `ttl_s` seconds, and return the usage of every gateway, in order of id."""

    def acquire_lease(self, holder: str, ttl_s: float) -> Lease | None:
        """Become or stay leader for `ttl_s` seconds; `None` while another controller holds the lease."""

    def release_lease(self, lease: Lease) -> None:
        """Give up leadership at once, if `lease` still holds it."""

    def changes(self, poll_s: float, of_pool: tuple[str, str] | None = None) -> Iterator[str | None]:
        """Yield the key of each announced change, and `None` after every `poll_s` seconds without one.

        With `of_pool`, a model and a pool, only schedules and questions of this pool are announced.

        The first value is `None`, once the subscription is active: read everything then. Ends when the connection
        breaks, or when the address of the store leads to another server: then subscribe again. While no subscription is
        to be had, for want of a right or of its connection, it yields `None` every `poll_s`.
        """

    def ping(self) -> None:
        """Raise if the store does not answer."""

    def missing_rights(self) -> str | None:
        """Return a sentence that names the rights which the store's user lacks, and the remedy; `None` if none."""

    def run_id(self) -> str | None:
        """Return the id of the server's process that holds the documents; `None` when it cannot be read."""

    def memory(self) -> StoreMemory | None:
        """Return the memory of the server (in a cluster, of the fullest one); `None` if a server does not report it."""

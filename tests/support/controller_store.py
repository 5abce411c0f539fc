"""The shared state in memory, for tests that need no Redis; a test can make it silent, or full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specpilot.policy.api_key import ApiKey
from specpilot.policy.audit import AuditEntry
from specpilot.policy.canary import Experiment
from specpilot.policy.errors import (
    FencedError,
    InvalidDocumentError,
    StoreFullError,
    StoreUnavailableError,
    VersionConflictError,
)
from specpilot.policy.freeze import Freeze
from specpilot.policy.gain import DailyGain, LogGain, day_of
from specpilot.policy.history import WRITTEN, Change
from specpilot.policy.model_policy import Policy, VersionedPolicy
from specpilot.policy.questions import Answer, Question
from specpilot.policy.records import Decision, EngineRecord, Lease
from specpilot.policy.schedule import Schedule
from specpilot.policy.store import StoreMemory


@dataclass
class MemoryStore:
    """`policy.store.Store` in a dictionary."""

    is_down: bool = False
    is_full: bool = False
    used: StoreMemory | None = None
    looks: int = 0
    stored: dict[str, VersionedPolicy] = field(default_factory=dict)
    published: dict[tuple[str, str], Schedule] = field(default_factory=dict)
    records: dict[str, EngineRecord] = field(default_factory=dict)
    log: list[Decision] = field(default_factory=list)
    keys: dict[str, ApiKey] = field(default_factory=dict)
    tried: dict[str, Experiment] = field(default_factory=dict)
    frozen: dict[str, Freeze] = field(default_factory=dict)
    audited: list[AuditEntry] = field(default_factory=list)
    gains: dict[tuple[str, str, str], DailyGain] = field(default_factory=dict)
    unreadable: dict[str, InvalidDocumentError] = field(default_factory=dict)
    asked: dict[tuple[str, str], list[Question]] = field(default_factory=dict)
    answered: dict[tuple[str, str], Answer | InvalidDocumentError] = field(default_factory=dict)
    leader: Lease | None = None
    fence: int = 0

    def ping(self) -> None:
        if self.is_down:
            raise StoreUnavailableError("Redis does not answer: the test made it silent")

    def memory(self) -> StoreMemory | None:
        self.ping()
        self.looks += 1
        return self.used

    def unannounced(self) -> None:
        """Every write is announced."""

    def grow(self) -> None:
        """What a write that grows the store meets."""
        self.ping()
        if self.is_full:
            raise StoreFullError

    def policy(self, model: str) -> VersionedPolicy | None:
        self.ping()
        return self.stored.get(model)

    def policies_by_model(self) -> Mapping[str, VersionedPolicy | InvalidDocumentError]:
        self.ping()
        return {**self.stored, **self.unreadable}

    def put_policy(
        self, policy: Policy, expected_version: int | None, now: float, change: Change = WRITTEN
    ) -> VersionedPolicy:
        self.ping()
        found = self.stored[policy.model].version if policy.model in self.stored else 0
        if expected_version is not None and expected_version != found:
            raise VersionConflictError(policy.model, expected_version, found)
        self.stored[policy.model] = VersionedPolicy(found + 1, now, policy)
        return self.stored[policy.model]

    def schedules(self) -> Sequence[Schedule]:
        self.ping()
        return list(self.published.values())

    def publish_schedule(self, schedule: Schedule, lease: Lease) -> None:
        self.grow()
        if lease.fence != self.fence:
            raise FencedError("another controller has led since")
        self.published[schedule.model, schedule.pool] = schedule

    def remove_schedule(self, model: str, pool: str, lease: Lease) -> None:
        self.ping()
        self.published.pop((model, pool), None)

    def canary(self, model: str) -> Experiment | None:
        self.ping()
        return self.tried.get(model)

    def canaries(self) -> Sequence[Experiment]:
        self.ping()
        return list(self.tried.values())

    def put_canary(self, experiment: Experiment, lease: Lease | None, now: float, change: Change | None = None) -> None:
        self.ping()
        if lease is not None and lease.fence != self.fence:
            raise FencedError("another controller has led since")
        found = self.tried.get(experiment.model)
        if (found.version if found else 0) != experiment.version - 1:
            raise VersionConflictError(experiment.model, experiment.version - 1, found.version if found else 0)
        if experiment.outcome is not None and experiment.outcome.is_promotion:
            self.put_policy(experiment.canary.policy, experiment.base_version, now)
        self.tried[experiment.model] = experiment

    def put_question(self, model: str, pool: str, question: Question) -> None:
        self.grow()
        self.asked.setdefault((model, pool), []).append(question)

    def remove_question(self, model: str, pool: str, question_id: str) -> None:
        self.asked[model, pool] = [item for item in self.asked[model, pool] if item.question_id != question_id]

    def questions(self, model: str, pool: str) -> Sequence[Question]:
        self.ping()
        return list(self.asked.get((model, pool), ()))

    def answers(self, question: Question) -> Mapping[str, Answer | InvalidDocumentError]:
        self.ping()
        found = {name: self.answered.get((question.question_id, name)) for name in question.engines}
        return {name: answer for name, answer in found.items() if answer is not None}

    def engines(self) -> Sequence[EngineRecord]:
        self.ping()
        return list(self.records.values())

    def heartbeat(self, record: EngineRecord, ttl_s: float) -> None:
        self.records[record.engine_id] = record

    def remove_engine(self, engine_id: str) -> None:
        self.records.pop(engine_id, None)

    def append_decision(self, decision: Decision, *, is_lasting: bool) -> None:
        self.grow()
        self.log.append(decision)

    def decisions(self, model: str, pool: str, limit: int, before: float | None = None) -> Sequence[Decision]:
        self.ping()
        found = [item for item in self.log if (item.model, item.pool) == (model, pool)]
        return [item for item in reversed(found) if before is None or item.at < before][:limit]

    def api_keys(self) -> Sequence[ApiKey]:
        self.ping()
        return list(self.keys.values())

    def put_api_key(self, key: ApiKey) -> None:
        self.ping()
        self.keys[key.key_id] = key

    def change_api_key(self, before: ApiKey, after: ApiKey) -> bool:
        self.ping()
        if self.keys.get(before.key_id) != before:
            return False
        self.keys[after.key_id] = after
        return True

    def freezes(self) -> Mapping[str, Freeze]:
        self.ping()
        return dict(self.frozen)

    def append_audit(self, entry: AuditEntry) -> int:
        self.ping()
        self.audited.append(entry)
        return len(self.audited)

    def add_gain(self, model: str, pool: str, at: float, log_gain: LogGain, lease: Lease) -> DailyGain:
        self.ping()
        if lease.fence != self.fence:
            raise FencedError("another controller has led since")
        day = day_of(at)
        self.gains[model, pool, day] = found = self.gains.get((model, pool, day), DailyGain(day)).plus(log_gain)
        return found

    def daily_gains(self, model: str, pool: str) -> Sequence[DailyGain]:
        self.ping()
        found = [gain for key, gain in self.gains.items() if key[:2] == (model, pool)]
        return sorted(found, key=lambda gain: gain.day, reverse=True)

    def acquire_lease(self, holder: str, ttl_s: float) -> Lease | None:
        self.ping()
        if self.leader is None:
            self.fence += 1
            self.leader = Lease(holder, self.fence)
        return self.leader if self.leader.holder == holder else None

    def release_lease(self, lease: Lease) -> None:
        if self.leader == lease:
            self.leader = None

"""The loop's view of Redis: the state that was read last, and calls of the store that never raise.

A call can fail because Redis does not answer, is full, grants no right to it, has another leader, or holds a document
that cannot be read. In each case the call has no effect and the loop goes on with the state that was read last. The log
has one line when Redis stops answering or is full, and one when that is over; and one for each right that is missing.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from specpilot.controller.events import ended_within, freeze_ended
from specpilot.controller.lease import Leadership
from specpilot.policy.audit import AuditEntry
from specpilot.policy.canary import Experiment
from specpilot.policy.clock import Clock
from specpilot.policy.errors import (
    FencedError,
    InvalidDocumentError,
    StoreFullError,
    StoreRefusedError,
    StoreUnavailableError,
    VersionConflictError,
)
from specpilot.policy.freeze import Freeze
from specpilot.policy.model_policy import Policy
from specpilot.policy.names import PoolKey
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import Schedule
from specpilot.policy.store import Store, StoreMemory

MEMORY_S = 5.0
"""Seconds between two readings of the memory that Redis uses; it fills over hours."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SharedState:
    """Engines, policies by model, schedules by model and pool, canaries and freezes, as read at `at`.

    `unreadable` are the models whose policy cannot be read; `at` is Unix seconds.
    """

    engines: tuple[EngineRecord, ...] = ()
    policies: dict[str, Policy] = field(default_factory=dict)
    schedules: dict[PoolKey, Schedule] = field(default_factory=dict)
    policy_versions: dict[str, int] = field(default_factory=dict)
    experiments: dict[str, Experiment] = field(default_factory=dict)
    freezes: Mapping[str, Freeze] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    at: float = math.inf


class SharedReader:
    """Reads the shared state and calls the store; `state` was read last, `is_up` is whether the store answers."""

    def __init__(self, store: Store, leadership: Leadership, clock: Clock, audit: Callable[[AuditEntry], None]) -> None:
        self._store = store
        self._leadership = leadership
        self._clock = clock
        self._audit = audit
        self._is_full = False
        self._refused: set[str] = set()  # the lacking rights that were logged
        self._memory_at = float("-inf")
        self.state = SharedState()
        self.is_up = True
        self.memory: StoreMemory | None = None

    async def read(self) -> bool:
        """Read the state; return whether that worked."""
        return bool(await self.ask(self._read))

    async def ask(self, question: Callable[[], bool | None]) -> bool | None:
        """Call `question` in a thread and return its answer; `None` when the store failed."""
        try:
            answer = await asyncio.to_thread(question)
        except StoreUnavailableError as error:
            self._note(error)
            return None
        except (FencedError, VersionConflictError) as error:
            _log.info("not written; the next tick tries again if this controller still leads: %s", error)
            return None
        except InvalidDocumentError as error:
            _log.error("the shared state holds a document that cannot be read; repair or delete it: %s", error)
            return None
        if not self.is_up:
            _log.info("Redis answers again")
        self.is_up = True
        return answer

    def _note(self, error: StoreUnavailableError) -> None:
        """Log a failure of the store that is not known yet."""
        if isinstance(error, StoreFullError):
            if not self._is_full:
                _log.warning("schedules stay as they are: %s", error)
            self._is_full = True
        elif isinstance(error, StoreRefusedError):
            if str(error) not in self._refused:
                _log.warning("going on without it: %s", error)
            self._refused.add(str(error))
        else:
            if self.is_up:
                _log.warning("going on with the last known state: %s", error)
            self.is_up = False

    def begin_to_lead(self) -> None:
        """Log a full store again, as another controller logged it last."""
        self._is_full = False

    def was_written(self) -> None:
        """Log once that a full store accepts writes again."""
        if self._is_full:
            _log.info("Redis takes schedules and decisions again")
        self._is_full = False

    def _read(self) -> bool:
        try:
            self._read_all()
        except StoreRefusedError as error:
            raise StoreUnavailableError(str(error)) from error  # of no use without this right
        return True

    def _read_all(self) -> None:
        documents = self._store.policies_by_model()
        policies = [item for item in documents.values() if not isinstance(item, InvalidDocumentError)]
        unreadable = {model: item for model, item in documents.items() if isinstance(item, InvalidDocumentError)}
        before = self.state
        for model in unreadable.keys() - before.unreadable:
            _log.error("%s: its policy cannot be read, its pools keep their schedules: %s", model, unreadable[model])
        self.state = SharedState(
            engines=tuple(self._store.engines()),
            policies={item.policy.model: item.policy for item in policies},
            schedules={(item.model, item.pool): item for item in self._store.schedules()},
            policy_versions={item.policy.model: item.version for item in policies},
            experiments={item.model: item for item in self._store.canaries()},
            freezes=self._store.freezes(),
            unreadable=frozenset(unreadable),
            at=self._clock.now(),
        )
        if self._leadership.lease is not None:
            for freeze in ended_within(self.state.freezes.values(), before.at, self.state.at):
                self._audit(freeze_ended(freeze, self.state.at))
        self._read_memory()

    def _read_memory(self) -> None:
        """Read the memory of Redis every `MEMORY_S`."""
        if self._clock.monotonic() - self._memory_at < MEMORY_S:
            return
        self.memory, self._memory_at = None, self._clock.monotonic()
        with contextlib.suppress(StoreUnavailableError):  # Redis answers, but its ACL forbids this command
            self.memory = self._store.memory()

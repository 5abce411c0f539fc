"""The engine's link to Redis: registers the engine, keeps its heartbeat, receives its schedules, answers questions.

A schedule is read when it is announced and, in case an announcement was lost, every `READ_S`. It holds until a newer
one comes. Its age, which ends windows, counts from its receipt, so clocks may differ. Only the age of a schedule that
was in the store before the link connected counts from its `issued_at`.

Questions (`policy.questions`) are read when one is announced, and otherwise every `POLL_S`.

Failures, by name:

- Redis does not answer: the schedule in force stays; the link tries again every `RETRY_S`;
- Redis answers again, perhaps without its data: the engine registers anew with its next heartbeat;
- a schedule does not fit: it is refused, and logged once while the reason is the same; the present one stays in force.

An engine that cannot speculate follows no schedule.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from specpilot.engine_adapter.errors import ScheduleRefusedError, StaleScheduleError
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl
from specpilot.policy import redis_keys
from specpilot.policy.clock import Clock
from specpilot.policy.errors import PolicyError, StoreUnavailableError
from specpilot.policy.questions import Answer, Question
from specpilot.policy.records import EngineRecord
from specpilot.policy.store import Store

HEARTBEAT_S = 1.0
"""Seconds between two heartbeats of an engine: each is one write to Redis."""

TTL_S = 4.0
"""Seconds after the last heartbeat at which the record expires: three heartbeats may be lost."""

POLL_S = 0.5
"""Seconds between two checks for a heartbeat, a drain or a question, if no announcement comes before."""

READ_S = 5.0
"""Seconds after which a schedule is read without an announcement: the interval at which the leader renews it, so that
each version is read once. A pool's schedule has 1 to 5 kB."""

RETRY_S = 0.5
"""Seconds between two tries to reach a store that does not answer."""

logger = logging.getLogger("vllm.specpilot")


class EngineLink:
    """Synchronises one engine and the store. `run` blocks, so it needs a thread of its own.

    `is_stalled` and `running_limit` are called with each heartbeat: whether the engine's steps have stopped, and the
    most requests that gateways may have there. `answer` answers a question.
    """

    def __init__(  # noqa: PLR0913 - collaborators
        self,
        store: Store,
        control: SpeculationControl,
        record: EngineRecord,
        clock: Clock,
        *,
        is_stalled: Callable[[], bool] = lambda: False,
        running_limit: Callable[[], int | None] = lambda: None,
        answer: Callable[[Question], Answer] | None = None,
    ) -> None:
        self._store = store
        self._control = control
        self._record = record
        self._clock = clock
        self._is_stalled = is_stalled
        self._running_limit = running_limit
        self._stopped = threading.Event()
        self._registering = threading.Lock()
        self._refused = ""  # the latest reason
        self._answer = answer
        self._answered: deque[str] = deque(maxlen=64)  # ids of the latest questions
        self._beat_at = self._read_at = float("-inf")
        self._is_draining = self._reported_draining = False
        self._is_connected = True

    def run(self) -> None:
        """Name the rights that the store's user lacks, and follow the store until `stop`."""
        with suppress(StoreUnavailableError):
            if (lacking := self._store.missing_rights()) is not None:
                logger.warning("SpecPilot: %s", lacking)
        while not self._stopped.is_set():
            try:
                for count, change in enumerate(self._store.changes(POLL_S, (self._control.model, self._control.pool))):
                    if self._stopped.is_set():
                        return
                    self._beat()
                    if self._is_read_due(change, is_first=count == 0):
                        self._read_at = self._clock.monotonic()
                        self._follow(is_first=count == 0)
                    self._answer_questions()
                    self._note_connected()
            except StoreUnavailableError as error:
                if self._is_connected:
                    logger.warning("SpecPilot: %s; the schedule in force stays", error)
                self._is_connected = False
                self._stopped.wait(RETRY_S)
            except PolicyError:
                logger.exception("SpecPilot: a document in Redis cannot be read")
                self._stopped.wait(RETRY_S)
            except Exception:  # without heartbeats the engine would get no traffic, whatever the fault
                logger.exception("SpecPilot: the link to Redis failed, and tries again")
                self._stopped.wait(RETRY_S)

    def begin_drain(self) -> None:
        """Mark the engine's record as draining, within `POLL_S`. Any thread may call."""
        self._is_draining = True

    def stop(self) -> None:
        """End `run` and deregister the engine."""
        self._stopped.set()
        try:
            with self._registering:  # otherwise a heartbeat under way could add the record again
                self._store.remove_engine(self._record.engine_id)
        except StoreUnavailableError as error:
            logger.warning("SpecPilot: could not deregister (%s); the record expires in %.0f s", error, TTL_S)

    def _note_connected(self) -> None:
        if not self._is_connected:
            logger.info("SpecPilot: Redis answers again")
        self._is_connected = True

    def _beat(self) -> None:
        is_draining = self._is_draining
        if self._clock.monotonic() - self._beat_at < HEARTBEAT_S and is_draining == self._reported_draining:
            return
        record = replace(
            self._record,
            heartbeat_at=self._clock.now(),
            schedule_version=self._control.version,
            draining=is_draining,
            stalled=self._is_stalled(),
            running_limit=self._running_limit(),
        )
        with self._registering:
            if self._stopped.is_set():
                return
            self._store.heartbeat(record, TTL_S)
        self._reported_draining = is_draining
        self._beat_at = self._clock.monotonic()

    def _is_read_due(self, change: str | None, *, is_first: bool) -> bool:
        """Whether to read the pool's schedule: it was announced, or none was read for `READ_S`."""
        is_announced = change == redis_keys.SCHEDULES
        return is_announced or is_first or self._clock.monotonic() - self._read_at >= READ_S

    def _follow(self, *, is_first: bool) -> None:
        if self._control.k_max == 0:
            return
        schedule = self._store.schedule(self._control.model, self._control.pool)
        if schedule is None or schedule.version <= self._control.version:
            return
        age_s = max(0.0, self._clock.now() - schedule.issued_at) if is_first else 0.0
        try:
            self._control.offer(schedule, self._clock.monotonic() - age_s)
        except StaleScheduleError:
            return  # the control route applied a newer one in between
        except ScheduleRefusedError as error:
            if str(error) != self._refused:
                logger.warning("SpecPilot: schedule %d refused, the running one stays: %s", schedule.version, error)
            self._refused = str(error)

    def _answer_questions(self) -> None:
        if self._answer is None:
            return
        engine_id = self._record.engine_id
        for question in self._store.questions(self._control.model, self._control.pool):
            if engine_id in question.engines and question.question_id not in self._answered:
                self._answered.append(question.question_id)
                self._store.put_answer(self._answer(question))

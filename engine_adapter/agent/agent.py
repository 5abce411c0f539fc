"""The engine's link to the rest: registers it, keeps its heartbeat, brings its schedule, exports its evidence.

Two daemon threads in the EngineCore process, neither of which the model ever waits for. The *exporter* empties the
meter into Prometheus metrics. The *link* has the engine calibrated (`calibration`), registers it, follows the store's
announcements (a look every `LOOK_S` is the net), offers schedules to the control and renews the engine's record.

A schedule's age counts from its receipt, so that clocks may differ. Only what lies in the store when the link connects
goes by its date: whoever wrote it may be long gone. It is held as one that was received then would be.

Failures, by name: Redis gone or frozen -> the schedule in force stays, then is held, the link tries again every
`RETRY_S`; Redis back, also emptied -> the engine registers anew with its next heartbeat; a schedule that does not
fit -> refused, logged once while the reason is the same, the running one stays. An engine that cannot speculate follows
none.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from typing import Any

from specpilot.engine_adapter.agent.calibration import Calibration
from specpilot.engine_adapter.agent.export import MetricsExporter
from specpilot.engine_adapter.agent.learning import Learning
from specpilot.engine_adapter.agent.tuning import EXPORT_S, HEARTBEAT_S, LOOK_S, POLL_S, RETRY_S, STALLED_S, TTL_S
from specpilot.engine_adapter.errors import ScheduleRefusedError, StaleScheduleError
from specpilot.engine_adapter.law.law import Wish
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.policy import keys
from specpilot.policy.bands import band_of
from specpilot.policy.clock import Clock
from specpilot.policy.errors import PolicyError, StoreUnavailableError
from specpilot.policy.redis_store import RedisStore
from specpilot.policy.store import Store
from specpilot.policy.types import DEFAULT_CLASS, EngineRecord

logger = logging.getLogger("vllm.specpilot")


class EngineLink:
    """Keeps one engine and the store in step. `run` blocks; it belongs in a thread of its own.

    `is_stalled` is asked with each heartbeat whether the engine's steps have stopped.
    """

    def __init__(
        self,
        store: Store,
        control: SpeculationControl,
        record: EngineRecord,
        clock: Clock,
        is_stalled: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._control = control
        self._record = record
        self._clock = clock
        self._is_stalled = is_stalled
        self._stopped = threading.Event()
        self._registering = threading.Lock()
        self._refused = ""
        self._left_over_version = 0
        self._beat_at = self._looked_at = float("-inf")
        self._is_draining = self._said_draining = False
        self._is_connected = True

    def run(self) -> None:
        """Follow the store until `stop`."""
        while not self._stopped.is_set():
            try:
                for count, change in enumerate(self._store.changes(POLL_S, (self._control.model, self._control.pool))):
                    if self._stopped.is_set():
                        return
                    self._beat()
                    if self._is_look_due(change, is_first_look=count == 0):
                        self._looked_at = self._clock.monotonic()
                        self._follow(is_first_look=count == 0)
                    self._say_connected()
            except StoreUnavailableError as error:
                if self._is_connected:
                    logger.warning(
                        "SpecPilot: %s; the schedule in force stays, for %.0f s at least", error, self._control.hold_s
                    )
                self._is_connected = False
                self._stopped.wait(RETRY_S)
            except PolicyError:
                logger.exception("SpecPilot: a document in Redis cannot be read")
                self._stopped.wait(RETRY_S)
            except Exception:  # an engine that is off the list takes no traffic, whatever the reason
                logger.exception("SpecPilot: the link to Redis failed, and tries again")
                self._stopped.wait(RETRY_S)

    def begin_drain(self) -> None:
        """Let the record say that the engine drains, within `POLL_S`. From any thread."""
        self._is_draining = True

    def stop(self) -> None:
        """End `run` and take the engine off the list."""
        self._stopped.set()
        try:
            with self._registering:  # a heartbeat under way would bring the record back
                self._store.remove_engine(self._record.engine_id)
        except StoreUnavailableError as error:
            logger.warning("SpecPilot: could not deregister (%s); the record expires in %.0f s", error, TTL_S)

    def _say_connected(self) -> None:
        if not self._is_connected:
            logger.info("SpecPilot: Redis answers again")
        self._is_connected = True

    def _beat(self) -> None:
        is_draining = self._is_draining
        if self._clock.monotonic() - self._beat_at < HEARTBEAT_S and is_draining == self._said_draining:
            return
        record = replace(
            self._record,
            heartbeat_at=self._clock.now(),
            schedule_version=self._control.version,
            draining=is_draining,
            stalled=self._is_stalled(),
        )
        with self._registering:
            if self._stopped.is_set():
                return
            self._store.heartbeat(record, TTL_S)
        self._said_draining = is_draining
        self._beat_at = self._clock.monotonic()

    def _is_look_due(self, change: str | None, *, is_first_look: bool) -> bool:
        """Whether the pool's schedule is to be read: it was announced, or none was read for long."""
        is_announced = change == keys.SCHEDULES
        return is_announced or is_first_look or self._clock.monotonic() - self._looked_at >= LOOK_S

    def _follow(self, *, is_first_look: bool) -> None:
        if self._control.k_max == 0:
            return
        schedule = self._store.schedule(self._control.model, self._control.pool)
        if schedule is None or schedule.version <= max(self._control.version, self._left_over_version):
            return
        age_s = max(0.0, self._clock.now() - schedule.issued_at) if is_first_look else 0.0
        over_s = age_s - schedule.valid_for_s - self._control.hold_s
        if over_s > 0:
            logger.info("SpecPilot: schedule %d expired %.0f s ago; K waits for a newer one", schedule.version, over_s)
            self._left_over_version = schedule.version
            return
        try:
            self._control.offer(schedule, self._clock.monotonic() - age_s)
        except StaleScheduleError:
            return  # the control route applied a newer one in between
        except ScheduleRefusedError as error:
            if str(error) != self._refused:
                logger.warning("SpecPilot: schedule %d refused, the running one stays: %s", schedule.version, error)
            self._refused = str(error)


class Agent:
    """The threads of one engine."""

    def __init__(  # noqa: PLR0913, PLR0917 - what an engine's threads work with
        self,
        scheduler: Any,
        exporter: MetricsExporter,
        link: EngineLink | None,
        calibration: Calibration | None,
        clock: Clock,
        learning: Learning,
    ) -> None:
        self._scheduler = scheduler
        self._exporter = exporter
        self._link = link
        self._calibration = calibration
        self._clock = clock
        self._learning = learning
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        threading.Thread(target=self._export, name="specpilot-export", daemon=True).start()
        if self._link is not None:
            threading.Thread(target=self._join, args=(self._link,), name="specpilot-link", daemon=True).start()

    def begin_drain(self) -> None:
        """Let gateways know that the engine takes nothing new."""
        if self._link is not None:
            self._link.begin_drain()

    def stop(self) -> None:
        """Stop both threads and deregister."""
        self._stopped.set()
        if self._link is not None:
            self._link.stop()

    def _join(self, link: EngineLink) -> None:
        """Calibrate, then register and follow the store."""
        if self._calibration is not None:
            try:
                self._calibration.run(self._stopped)
            except Exception:
                logger.exception("SpecPilot: this engine was not calibrated")
            self._exporter.write()  # the first look of a controller finds the table of steps
        link.run()

    def _export(self) -> None:
        while not self._stopped.wait(EXPORT_S):
            if self._scheduler.control.calibrating is None:  # the calibration exports what it measures
                try:
                    self._export_once()
                except Exception:  # what one look cannot tell must not end the evidence
                    logger.exception("SpecPilot: the evidence of this moment was not exported")

    def _export_once(self) -> None:
        """Export what was counted and what runs, and let the law learn from it."""
        scheduler = self._scheduler
        evidence = scheduler.meter.take()
        self._exporter.add(evidence)
        now = self._clock.monotonic()
        self._learning.take(evidence, now)
        table = scheduler.control.table(now)
        running = scheduler.running_decodes if scheduler.has_unfinished_requests() else {}
        decodes = dict.fromkeys((DEFAULT_CLASS, *table.rows), 0)
        verified = dict.fromkeys(decodes, 0)
        for (name, _, k), count in running.items():
            decodes[name] = decodes.get(name, 0) + count
            verified[name] = verified.get(name, 0) + count * k
        begins = scheduler.steps.priors
        self._exporter.show(
            running=decodes,
            active_k={
                name: verified[name] / count if count else table.k(name, band_of(begins.of_class(name)), 1)
                for name, count in decodes.items()
            },
            backlog=scheduler.backlog_tokens if running else 0,
            version=scheduler.control.version,
            age_s=scheduler.control.age_s(now),
        )
        self._exporter.write()


def is_stalled(scheduler: Any, now: float) -> bool:
    """Whether `scheduler` has requests and a step under way that should have ended long before `now`."""
    return bool(scheduler.has_unfinished_requests() and scheduler.steps.waiting_s(now) > STALLED_S)


def start_agent(scheduler: Any, settings: AdapterSettings, clock: Clock, vllm_version: str) -> Agent:
    """Start the agent of the engine that `scheduler` belongs to; without a Redis URL it only exports."""
    control: SpeculationControl = scheduler.control
    speculative = scheduler.vllm_config.speculative_config
    link = None
    if settings.redis_url:
        if not os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
            logger.warning(
                "SpecPilot: PROMETHEUS_MULTIPROC_DIR is not set, so the evidence does not reach /metrics and no "
                "controller will steer this engine; set it to an empty folder before vLLM starts"
            )
        record = EngineRecord(
            engine_id=settings.engine_id,
            url=settings.url,
            model=control.model,
            pool=control.pool,
            k_max=control.k_max,
            static_k=control.static_k,
            max_num_seqs=control.max_running,
            method=speculative.method if speculative is not None else "none",
            vllm_version=vllm_version,
            adapter_version=metadata.version("specpilot"),
            started_at=clock.now(),
            heartbeat_at=clock.now(),
            graphs=scheduler.graphs,
        )
        link = EngineLink(
            RedisStore(settings.redis_url), control, record, clock, lambda: is_stalled(scheduler, clock.monotonic())
        )
    exporter = MetricsExporter(control.model)
    is_alone = scheduler.vllm_config.parallel_config.data_parallel_size == 1  # else its requests would go elsewhere too
    calibration = Calibration(scheduler, exporter, settings.url, settings.calibrate_s) if is_alone else None
    learning = Learning(scheduler, adapts=settings.adapt, probe_ratio=settings.probe_ratio)
    agent = Agent(scheduler, exporter, link, calibration, clock, learning)
    if settings.least_k:
        scheduler.law.wish({DEFAULT_CLASS: Wish(low=settings.least_k)})
    agent.start()
    return agent

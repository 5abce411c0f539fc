"""The two threads of the adapter in the EngineCore process. The model's steps wait for neither.

- The *exporter* empties the meter into Prometheus metrics, and passes the evidence to the engine's law
  (`agent.learning`).
- The *link* calibrates the engine (`agent.calibration`), then follows Redis (`agent.link`) and answers questions
  (`agent.answers`).
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from specpilot.engine_adapter.agent.answers import Answers
from specpilot.engine_adapter.agent.calibration import Calibration
from specpilot.engine_adapter.agent.export import MetricsExporter
from specpilot.engine_adapter.agent.learning import Learning
from specpilot.engine_adapter.agent.link import EngineLink
from specpilot.engine_adapter.agent.short_holds import ShortHolds
from specpilot.engine_adapter.law.running_limit import RunningLimit
from specpilot.engine_adapter.plan.latencies import Latency
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.policy import engine_metrics as names
from specpilot.policy.clock import Clock
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import Guidance
from specpilot.policy.store import Store

STALLED_S = 60.0
"""Seconds after which an unfinished step makes the engine report that it is stalled. The longest steps, whole chunks of
prompts on a slow processor, take some seconds."""

EXPORT_S = 0.25
"""Seconds between two exports of the evidence, and so its largest age in a scrape."""

logger = logging.getLogger("vllm.specpilot")


@dataclass(eq=False)
class Agent:
    """The threads of one engine, and the parts that they work with.

    `between` is called between two parts of a computation.
    """

    scheduler: Any
    exporter: MetricsExporter
    link: EngineLink | None
    calibration: Calibration | None
    clock: Clock
    learning: Learning
    between: Callable[[], None]
    running_limit: RunningLimit
    _stopped: threading.Event = field(default_factory=threading.Event, init=False)

    def start(self) -> None:
        """Start the threads."""
        threading.Thread(target=self._export, name="specpilot-export", daemon=True).start()
        if self.link is not None:
            threading.Thread(target=self._join, args=(self.link,), name="specpilot-link", daemon=True).start()

    def begin_drain(self) -> None:
        """Mark the engine's record as draining, so that gateways send no new requests."""
        if self.link is not None:
            self.link.begin_drain()

    def stop(self) -> None:
        """Stop both threads, deregister, and remove the page of metrics."""
        self._stopped.set()
        self.exporter.remove()
        if self.link is not None:
            self.link.stop()

    def _join(self, link: EngineLink) -> None:
        """Calibrate, then register and follow the store."""
        if self.calibration is not None:
            try:
                self.calibration.run(self._stopped)
            except Exception:
                logger.exception("SpecPilot: this engine was not calibrated")
        link.run()

    def _export(self) -> None:
        while not self._stopped.wait(EXPORT_S):
            if self.scheduler.control.calibrating is not None:  # the requests of a calibration are no traffic
                self.scheduler.latencies.drop()
            else:
                try:
                    self._export_once()
                except Exception:  # one failed export must not end the thread
                    logger.exception("SpecPilot: an export of the evidence failed")

    def _export_once(self) -> None:
        """Export the counts and the running decodes, and pass the counts to the law."""
        scheduler, between = self.scheduler, self.between
        evidence = scheduler.meter.take_evidence(between)
        self.exporter.add(evidence, between)
        now = self.clock.monotonic()
        self.learning.learn(evidence, now)
        between()
        guidance, table = scheduler.control.guidance(now), scheduler.control.table(now)
        slos = {name: item.slo for name, item in guidance.classes.items()} if guidance is not None else {}
        latencies, running = scheduler.latencies.take(), scheduler.running_decodes
        self.exporter.add_latencies(latencies, dict.fromkeys(table.k_of) | slos)
        between()
        decodes = dict.fromkeys((DEFAULT_CLASS, *table.k_of), 0)
        verified = dict.fromkeys(decodes, 0)
        for (name, _, k), count in running.items():
            decodes[name] = decodes.get(name, 0) + count
            verified[name] = verified.get(name, 0) + count * k
        self._limit_running(guidance, latencies, decodes, now, is_chosen=table.law is not None)
        between()
        law, age_s = scheduler.law, scheduler.control.age_s(now)
        self.exporter.show(
            {
                names.RUNNING_DECODES: decodes,
                names.ACTIVE_K: {
                    name: verified[name] / count if count else table.k(name) for name, count in decodes.items()
                },
                names.BACKLOG_TOKENS: scheduler.backlog_tokens if running else 0,
                names.SCHEDULE_VERSION: scheduler.control.version,
                names.SCHEDULE_AGE_SECONDS: -1.0 if age_s is None else age_s,
                names.DECODE_SECONDS: law.decode_s or None,
                names.STATIC_BREAKS_SLO: law.outlook.breaks_slo,
                names.SLO_PREDICTED_SECONDS: law.outlook.predicted_s,
                names.SLO_MEAN_PREDICTED_SECONDS: law.outlook.mean_predicted_s,
            }
        )
        between()
        self.exporter.write()

    def _limit_running(
        self,
        guidance: Guidance | None,
        latencies: Sequence[Latency],
        running: Mapping[str, int],
        now: float,
        *,
        is_chosen: bool,
    ) -> None:
        """Move the limit on running requests; `is_chosen`: the law chooses K, so its predictions are of this batch."""
        limit, law = self.running_limit, self.scheduler.law
        if guidance is None or not guidance.limit_running:
            limit.drop()
        else:
            slos = {name: item.slo for name, item in guidance.classes.items()}
            limit.add(latencies, slos)
            limit.update(running, slos, law.outlook.out_of_reach if is_chosen else (), now)
        self.exporter.show({names.RUNNING_LIMIT: limit.limit})


def is_stalled(scheduler: Any, now: float) -> bool:
    """Whether `scheduler` has requests, and a step that should have ended long before `now`."""
    return bool(scheduler.has_unfinished_requests() and scheduler.steps.waiting_s(now) > STALLED_S)


def start_agent(scheduler: Any, settings: AdapterSettings, clock: Clock, vllm_version: str) -> Agent:
    """Start the agent of the engine of `scheduler`; without a Redis URL it has no link."""
    control: SpeculationControl = scheduler.control
    speculative = scheduler.vllm_config.speculative_config
    link, running_limit = None, RunningLimit(control.max_running)
    if settings.redis_url:
        record = EngineRecord(
            engine_id=control.engine_id,
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
            rank=scheduler.rank,
        )
        link = EngineLink(
            Store(settings.redis_url),
            control,
            record,
            clock,
            is_stalled=lambda: is_stalled(scheduler, clock.monotonic()),
            running_limit=lambda: running_limit.limit,
            answer=Answers(scheduler, clock, ShortHolds()).answer,
        )
    exporter = MetricsExporter(control.model, scheduler.rank or 0)
    parallel = scheduler.vllm_config.parallel_config
    rank = None if scheduler.rank is None else parallel.data_parallel_rank_local
    calibration = Calibration(scheduler, settings.url, settings.calibrate_s, rank)
    between = ShortHolds()
    learning = Learning(scheduler, between)
    agent = Agent(scheduler, exporter, link, calibration, clock, learning, between, running_limit)
    agent.start()
    return agent

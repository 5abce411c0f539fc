"""An engine in virtual time: the adapter's own plan and evidence, over simulated requests and step times.

The adapter's real code (`engine_adapter.plan.steps`) does the adapter's work: bands, K, slots, probes, backlogs and
counters. This engine replaces vLLM: it schedules all requests in each step, prompts in chunks, and the next step before
the outcome of the last is known, like vLLM's asynchronous loop. The duration of a step is a function of its content,
with some noise. Deterministic for a given seed.

Host and device have a clock each (`plant`). The device runs one step after the other. The host launches the next step,
then waits for the running one, so between two updates it has spent the launch of the *next* step, like vLLM's
asynchronous loop. The adapter reads the device's end of each step, as on CUDA.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.observation import Observation, Series
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.engine_adapter.agent.answers import Answers
from specpilot.engine_adapter.agent.calibration import CLASS, STEPS, calibrating, loads, settings
from specpilot.engine_adapter.agent.export import MetricsExporter
from specpilot.engine_adapter.evidence.meter import Meter
from specpilot.engine_adapter.evidence.request_acceptance import Starts
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.law import NO_GUIDANCE, EngineLaw
from specpilot.engine_adapter.plan.latencies import Latencies
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl, law_table
from specpilot.engine_adapter.plan.step_room import StepRoom
from specpilot.engine_adapter.plan.steps import Steps
from specpilot.policy import engine_metrics
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.questions import Answer, Question
from specpilot.policy.schedule import Guidance, Schedule
from tests.simulation.plant import OneTime, Plant, Work
from tests.simulation.requests import Request, Requests
from tests.simulation.step_times import StepTime, cpu_catch_up_s, cpu_step_s
from tests.simulation.traffic import Source

MODEL, POOL = "demo", "cpu"
K_MAX = 7
"""The largest K of a simulated engine."""
STATIC_K = 3
REPLY_TOKENS = 150.0
_BACKLOG_ROWS = 8192
_MOST_RUNNING = 512
_CALIBRATION_ACCEPTANCE = 0.05
"""Drafts for the random tokens of a calibration are almost never accepted."""


class _UnderWay(NamedTuple):
    """A step that was launched and has not ended: vLLM's output, the requests that get tokens, its work, its times.

    The host launched it from `began_at` to `launched_at`.
    """

    output: SimpleNamespace
    delivering: Sequence[str]
    work: Work
    began_at: float
    launched_at: float


@dataclass
class Engine:
    """One engine; `tokens` are delivered so far. A step takes `step_s` on the device, times noise, plus its catch-up.

    A `plant` replaces this time by times on the host and on the device. `drafts` are all decodes of one request in one
    step, K = 0 included, `probes` those that were verified deeper than their K, `deepest_probe` the largest depth.

    Before traffic it runs the adapter's calibration, for up to `calibrated_to` requests; 0: none.

    Its law updates when a `run` begins, once a virtual second. With `adapts` it follows no schedule: the law chooses K,
    by `guidance`. `graphs` is its record of CUDA graphs. `least_width` is that of a drafter that runs in every step;
    `None`: it leaves out requests with K = 0.

    For wrong evidence: `claims` are acceptances, by position, that its law and its counters show instead of the truth;
    while `is_lying` the counters stand still.
    """

    engine_id: str
    rng: np.random.Generator
    step_s: StepTime = cpu_step_s
    noise: float = 0.03
    k_max: int = K_MAX
    started_at: float = 0.0
    is_lying: bool = False
    reply_tokens: float = REPLY_TOKENS
    claims: Mapping[int, float] = field(default_factory=dict)
    calibrated_to: int = 0
    plant: Plant | None = None
    graphs: Graphs | None = None
    least_width: int | None = None
    is_parallel: bool = True
    guidance: Guidance = NO_GUIDANCE
    adapts: bool = False
    tokens: float = 0.0
    drafts: int = 0
    probes: int = 0
    deepest_probe: int = 0
    frozen: Observation | None = None

    def __post_init__(self) -> None:
        self._requests = Requests(self.rng, self.reply_tokens)
        self._plant = self.plant or OneTime(self.step_s, cpu_catch_up_s)
        self.restart(self.started_at)

    def restart(self, at: float) -> None:
        """Restart: no request, no count."""
        self.started_at = at
        self._control = SpeculationControl(
            MODEL, POOL, self.k_max, STATIC_K, _MOST_RUNNING, adapts=self.adapts, engine_id=self.engine_id
        )
        self._schedule: Schedule | None = None
        self._at = 0.0  # seconds of all runs since the start
        self._table = self._control.table(self._at)
        self._meter = Meter()
        rows = _BACKLOG_ROWS if self.least_width is None else 0
        room = StepRoom(is_parallel=self.is_parallel)
        self._planner = Planner(self.k_max, rows, least_width=self.least_width or 0, room=room)
        self._steps = Steps(self._planner, self._meter, self._table, longest_to_draft=1 << 30)
        self.law = EngineLaw(self.k_max, STATIC_K, _MOST_RUNNING, self.graphs, self.least_width)
        self.law.follow(self.guidance)
        self._exporter = MetricsExporter(MODEL)
        self._latencies = Latencies()
        self._reader = PageReader()
        self._requests.restart()
        self._under_way: _UnderWay | None = None
        self._now = 0.0  # on the host
        self._device_done_at = 0.0  # with the last step that ended
        if self.calibrated_to:
            self._calibrate()

    def _calibrate(self) -> None:
        """Learn the step times at each load and setting of a calibration; its counters are not exported."""
        tokens, table = self.tokens, self._table
        for n in loads(self.calibrated_to):
            self._requests.settle(
                [Source(_CALIBRATION_ACCEPTANCE, n - n // 2), Source(_CALIBRATION_ACCEPTANCE, n // 2, CLASS)]
            )
            for k, others in settings(n, self.k_max):
                self._table = calibrating(k, others)
                for _ in range(STEPS):
                    self._step(1.0)
                self.law.learn(self._meter.take_steps())
        self._refresh()
        self._requests.settle([])
        self._step(1.0)
        self._under_way = None
        self._meter.take_evidence()
        self._meter.take_steps()
        self._latencies = Latencies()
        self._steps.starts = Starts()
        self.tokens, self._table = tokens, table

    def run(
        self,
        seconds: float,
        sources: Sequence[Source],
        schedule: Schedule | None,
        slowdown: float = 1.0,
    ) -> float:
        """Run for some seconds, in which steps take `slowdown` times as long; return the delivered tokens."""
        before = self.tokens
        self._take()
        self._refresh()
        self._follow(schedule)
        self._at += seconds
        self._requests.settle(list(sources))
        pace = slowdown * math.exp(self.rng.normal(0, self.noise))
        left_s = seconds
        while left_s > 0 and self._requests.running:
            left_s -= self._step(pace)
        return self.tokens - before

    @property
    def by_source(self) -> NDArray[np.float64]:
        """Of each running source the decodes of its requests so far, and the sum of their K [sources, 2]."""
        return self._requests.by_source

    @property
    def page(self) -> str:
        """Return the adapter's page of metrics in Prometheus' text format."""
        self._take()
        schedule = self._schedule
        running = dict.fromkeys((DEFAULT_CLASS, *self._table.k_of), 0)
        verified: Counter[str] = Counter()
        for state in self._steps.decoding if self._requests.running else ():
            running[state.label] += 1
            verified[state.label] += state.k
        active_k = {name: verified[name] / max(1, count) for name, count in running.items()}
        law = self.law
        self._exporter.show(
            {
                engine_metrics.RUNNING_DECODES: running,
                engine_metrics.ACTIVE_K: active_k,
                engine_metrics.BACKLOG_TOKENS: self._steps.backlog_tokens,
                engine_metrics.SCHEDULE_VERSION: schedule.version if schedule else 0,
                engine_metrics.SCHEDULE_AGE_SECONDS: 0.0 if schedule else -1.0,
                engine_metrics.DECODE_SECONDS: law.decode_s or None,
                engine_metrics.STATIC_BREAKS_SLO: law.outlook.breaks_slo,
                engine_metrics.SLO_PREDICTED_SECONDS: law.outlook.predicted_s,
                engine_metrics.SLO_MEAN_PREDICTED_SECONDS: law.outlook.mean_predicted_s,
            }
        )
        return self._exporter.text()

    @property
    def values(self) -> dict[Series, float]:
        """Return its cumulative counters as a controller reads them."""
        return dict(self._reader.read(self.page))

    def observe(self, at: float) -> Observation:
        """Return the observation of a scrape at `at`."""
        observation = Observation(self.engine_id, MODEL, POOL, at, self.started_at, self.values)
        if self.is_lying:
            self.frozen = self.frozen or observation
            return replace(self.frozen, at=at)
        self.frozen = None
        return observation

    def answer(self, question: Question) -> Answer:
        """Answer a controller's question."""
        scheduler = SimpleNamespace(
            control=self._control, law=self.law, graphs=self.graphs, steps=self._steps, latencies=self._latencies,
            has_unfinished_requests=lambda: bool(self._requests.running),
        )  # fmt: skip
        clock: Any = SimpleNamespace(monotonic=lambda: self._at)
        return Answers(scheduler, clock, lambda: None).answer(question)

    def _step(self, pace: float) -> float:
        """Launch the next step and end the one before; return the seconds."""
        began_at, under_way = self._now, self._under_way
        self._under_way = self._launched(pace)
        if under_way is not None:
            self._finish(under_way, pace)
        return self._now - began_at

    def follow(self, guidance: Guidance) -> None:
        """Change the guidance of an engine that `adapts`."""
        self.guidance = guidance
        self.law.follow(guidance)

    def _take(self) -> None:
        """Export the counts since the last call, and update the law with them."""
        evidence = self._meter.take_evidence()
        self.drafts += evidence.drafts.total()
        self.probes += evidence.probes.total()
        for tried, accepts in ((evidence.trials, evidence.accepts), (evidence.first_trials, evidence.first_accepts)):
            for (band, position), count in tried.items():
                if position in self.claims:
                    accepts[band, position] = self.claims[position] * count  # type: ignore[assignment]
        self._exporter.add(evidence)
        slos = {name: item.slo for name, item in self.law.guidance.classes.items()}
        self._exporter.add_latencies(self._latencies.take(), slos)
        self.law.learn(self._meter.take_steps(), evidence)

    def _refresh(self) -> None:
        self.law.refresh()
        self._planner.prices = self.law.probe_prices

    def _follow(self, schedule: Schedule | None) -> None:
        """Follow a schedule, whatever its version, like `agent.learning`; without one the last stays."""
        control = self._control
        if schedule is not None and schedule is not self._schedule and not self.adapts:
            self._schedule = schedule
            control.offer(replace(schedule, version=control.version + 1), self._at)
            if schedule.fleet is not None:
                self.law.acceptance.begin_with(schedule.fleet)
        guidance = control.guidance(self._at)
        if guidance is not None and replace(guidance, override=None) != self.law.guidance:
            self.law.follow(replace(guidance, override=None))
        self.law.hold(is_held=control.holds_law(self._at))
        control.by_law = law_table(self.law, self.law.guidance.probe_ratio)
        self._table = control.table(self._at)

    def _launched(self, pace: float) -> _UnderWay:
        """Launch a step of all requests; the adapter plans the drafts after it."""
        began_at = self._now
        for request in self._requests.take_begun():
            request.arrival_time = began_at
            self._latencies.begin(request)
        output, delivering, work = self._requests.scheduled(lambda name: self._steps.states[name].k)
        plan = self._steps.begin(output, self._requests.running, self._table, self._now)
        if plan.width:
            probes = [state.k for state in self._steps.decoding if state.k > state.chosen_k]
            self.deepest_probe = max(self.deepest_probe, *probes, 0)
        deferred = sum(output.num_scheduled_tokens[name] - 1 for name in plan.deferred)
        caught_up = plan.read if plan.width else max(0, plan.read - (work.prefill - work.prompts - deferred))
        reads = plan.read if self._plant.reads_prompts_apart else caught_up
        work = work._replace(slots=plan.slots, read=reads, width=plan.width)
        self._now += pace * self._plant.host_s(work)
        return _UnderWay(output, delivering, work, began_at, self._now)

    def _finish(self, step: _UnderWay, pace: float) -> None:
        """End a step, and the requests that it completes."""
        output = step.output
        seconds = self._plant.device_s(step.work) * pace * math.exp(self.rng.normal(0, 3 * self.noise))
        items = []
        over: list[Request] = []
        for name in step.delivering:
            request = self._requests.running.get(name)
            if request is None:
                continue
            k = len(output.scheduled_spec_decode_tokens.get(name, ()))
            accepted = self._requests.accepted(request, k) if k else 0
            if k:
                request.num_computed_tokens -= k - accepted
                self._steps.note_draft(name, k, accepted, 0)
            request.num_output_tokens += 1 + accepted
            self.tokens += 1 + accepted
            items.append(SimpleNamespace(request_id=name, new_token_ids=range(1 + accepted)))
            if request.num_output_tokens >= request.length:
                over.append(request)
        before = self._device_done_at
        self._device_done_at = max(max(before, step.began_at) + seconds, step.launched_at)
        self._now = max(self._now, self._device_done_at)
        self._latencies.step(self._now, self._now)
        self._latencies.note_tokens()
        for request in over:
            self._latencies.end(request)
        self._steps.end(
            output,
            {0: SimpleNamespace(outputs=items)},
            self._now,
            goes_on=True,
            device_s=self._device_done_at - before,
        )
        self._requests.replace(over)

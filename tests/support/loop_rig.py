"""A whole control loop in virtual time: store in memory, clock by hand, engines of the closed loop as its source."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from specpilot.controller.decision.decider import Decider
from specpilot.controller.estimation.observation import Observation
from specpilot.controller.lease import Leadership
from specpilot.controller.loop import ControlLoop
from specpilot.controller.metrics import ControllerMetrics
from specpilot.controller.recording.explanation import lines
from specpilot.policy.errors import StoreUnavailableError
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Policy
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import Objective, Override
from tests.simulation.engine import K_MAX, MODEL, POOL, Engine
from tests.simulation.step_times import cpu_step_s
from tests.simulation.traffic import Source
from tests.support.controller_store import MemoryStore
from tests.support.hand_clock import Clock


def registered(engine_id: str, schedule_version: int = 0) -> EngineRecord:
    return EngineRecord(
        engine_id, f"http://{engine_id}", MODEL, POOL, K_MAX, 3, 64, "eagle3", "0", "0", 0.0, 0.0, schedule_version
    )


SLOWER = 4.0


def slow_step_s(n: float, m: float, slots: float, prefill: float, context: float) -> float:
    """The CPU's step, `SLOWER` times as long: a rig's subject is the controller, and steps are what playing costs."""
    return SLOWER * cpu_step_s(n, m, slots, prefill, context)


def engine(engine_id: str, seed: int) -> Engine:
    """Return an engine of a rig."""
    return Engine(engine_id, np.random.default_rng(seed), step_s=slow_step_s)


def text(explanation: dict[str, Any]) -> str:
    """The explanation as `specpilot explain` prints it."""
    return "".join(f"{line}\n" for line in lines(explanation))


@dataclass
class Fleet:
    """The engines, all of one pool; each second of the clock they run a second under the store's schedule."""

    store: MemoryStore
    clock: Clock
    sources: list[Source] = field(default_factory=lambda: [Source("json", 8)])
    engines: dict[str, Engine] = field(default_factory=lambda: {"one": engine("one", 3)})
    ran_until: float = 99.0

    def run(self) -> None:
        seconds, self.ran_until = self.clock.at - self.ran_until, self.clock.at
        schedule = self.store.published.get((MODEL, POOL))
        if schedule and schedule.drawn_until is not None and self.clock.now() - seconds >= schedule.drawn_until:
            schedule = replace(schedule, drawn=())  # an engine ends its window by itself
        for engine in self.engines.values():
            if seconds > 0:
                engine.run(seconds, self.sources, schedule)


@dataclass
class FleetSource:
    """What one controller scrapes."""

    fleet: Fleet
    scraped_at: dict[str, float] = field(default_factory=dict)

    async def scrape(self, engines: Sequence[EngineRecord]) -> list[Observation]:
        self.fleet.run()
        known = self.fleet.engines
        return [known[item.engine_id].observe(self.fleet.clock.at) for item in engines if item.engine_id in known]


@dataclass
class Rig:
    """One controller on a store and a fleet that others may share."""

    store: MemoryStore
    clock: Clock
    fleet: Fleet
    loop: ControlLoop
    leadership: Leadership
    metrics: ControllerMetrics
    law: Decider

    @classmethod
    def new(cls, holder: str = "me", beside: "Rig | None" = None) -> "Rig":
        """Return a controller; with `beside` one more over the same store, clock and engines."""
        if beside is None:
            store, clock = MemoryStore(), Clock()
            fleet = Fleet(store, clock)
            store.heartbeat(registered("one", 41), 5.0)
        else:
            store, clock, fleet = beside.store, beside.clock, beside.fleet
        leadership, law = Leadership(store, holder, clock), Decider()
        loop = ControlLoop(
            store=store, leadership=leadership, collector=FleetSource(fleet), law=law,
            metrics=(metrics := ControllerMetrics()), clock=clock, audit=store.append_audit,
        )  # fmt: skip
        return cls(store, clock, fleet, loop, leadership, metrics, law)

    def k(self, name: str = DEFAULT_CLASS) -> float:
        """The measured mean K of a class, by the latest decision."""
        return self.store.log[-1].k[name]

    @property
    def override(self) -> Override | None:
        """The override of engines that are not drawn, by the schedule in force."""
        return self.store.published[MODEL, POOL].override

    def page(self) -> str:
        """What it tells Prometheus."""
        return self.metrics.render().decode()

    async def tick(self, count: int = 1) -> None:
        for _ in range(count):
            with suppress(StoreUnavailableError):
                self.leadership.renew()
            await self.loop.tick()
            self.clock.at += 1.0


ENGINES_CHOOSE = Policy(
    MODEL, objective=Objective.LATENCY, static_k=1, k_max=5, control_group_ratio=0.0,
    classes={"code": ClassPolicy(weight=2.0, slo=Slo(tpot_ms={Statistic.MEAN: 900.0})), "batch": ClassPolicy(pin=6)},
)  # fmt: skip

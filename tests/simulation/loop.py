"""The closed loop in virtual time: engines, observations, the controller, schedule, engines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specpilot.controller.decision.context import PoolContext, TickResult
from specpilot.controller.decision.decider import Decider
from specpilot.controller.decision.reason import Reason
from specpilot.controller.pools import schedule_of
from specpilot.policy.model_policy import Policy
from specpilot.policy.schedule import Guidance, Override, Schedule
from tests.simulation.engine import K_MAX, MODEL, POOL, STATIC_K, Engine
from tests.simulation.traffic import Phase


@dataclass(frozen=True)
class Second:
    """One virtual second: its throughput, and the law's result at its end."""

    at: float
    phase: int
    throughput: float  # of the mean engine, tokens per second, corrected for the machine's slowdown
    result: TickResult


@dataclass
class Run:
    """The outcome of a simulation."""

    seconds: list[Second] = field(default_factory=list)
    fleet: list[Engine] = field(default_factory=list)

    def of_phase(self, phase: int) -> list[Second]:
        """Return the seconds of one phase."""
        return [second for second in self.seconds if second.phase == phase]

    def throughput(self, phase: int, settle_s: int = 0) -> float:
        """Return the tokens per second of the mean engine in a phase, without its first `settle_s` seconds."""
        return float(np.mean([second.throughput for second in self.of_phase(phase)[settle_s:]]))

    @property
    def reasons(self) -> set[Reason]:
        """The reasons of all decisions."""
        return {second.result.reason for second in self.seconds}

    @property
    def probe_ratio(self) -> float:
        """Probes over drafts."""
        return sum(engine.probes for engine in self.fleet) / sum(engine.drafts for engine in self.fleet)


def simulate(
    phases: Sequence[Phase],
    *,
    policy: Policy | None = None,
    later: tuple[int, Policy] | None = None,
    seed: int = 0,
    engines: int = 1,
    disturb: Callable[[int, list[Engine]], None] | None = None,
    start: Schedule | None = None,
    is_scraped: Callable[[int], bool] = lambda _: True,
    max_num_seqs: int = 64,
    is_steered: bool = True,
    k_max: int = K_MAX,
    **machine: Any,
) -> Run:
    """Play `phases` and return the run.

    - `later`: a second, and the policy from then on.
    - `is_steered`: whether the controller's schedules are applied; otherwise `start` stays.
    - `machine`: further arguments of each `Engine`.
    """
    policy = policy or Policy(model=MODEL, control_group_ratio=0.0)
    fleet = [
        Engine(
            f"engine-{index}",
            np.random.default_rng([seed, index]),
            calibrated_to=max_num_seqs if is_steered else 0,
            k_max=k_max,
            guidance=PoolContext(MODEL, POOL, policy, k_max, STATIC_K, None).guidance(),
            **machine,
        )
        for index in range(engines)
    ]
    law, schedule, run, second = Decider(), start, Run(fleet=fleet), 0
    law.observe(engine.observe(0.0) for engine in fleet)
    for index, phase in enumerate(phases):
        for _ in range(phase.seconds):
            if disturb:
                disturb(second, fleet)
            tokens = [engine.run(1.0, phase.sources, schedule, phase.slowdown) for engine in fleet]
            second += 1
            if later is not None and second == later[0]:
                policy = later[1]
                changed = PoolContext(MODEL, POOL, policy, k_max, STATIC_K, None)
                for engine in fleet:
                    engine.follow(changed.guidance())
            if is_scraped(second):
                law.observe(engine.observe(float(second)) for engine in fleet)
            context = PoolContext(MODEL, POOL, policy, k_max, STATIC_K, schedule)
            result = law.decide(context, float(second), float(second))
            run.seconds.append(Second(second, index, float(np.mean(tokens)) * phase.slowdown, result))
            if is_steered and result.guidance is not None:
                schedule = schedule_of(context, result, result.guidance, second, float(second))
    return run


def uniform(k: int, version: int = 1) -> Schedule:
    """Return the schedule with `k` for all requests."""
    return Schedule(MODEL, POOL, version, 0.0, Guidance(override=Override(k)))

"""Closes the loop: plant, observations, the controller's own law, schedule, and back, in virtual time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.reason import Reason
from specpilot.controller.tuning import Tuning
from specpilot.policy.graphs import Graphs
from specpilot.policy.types import Policy, Schedule
from tests.closed_loop.plant import K_MAX, MODEL, POOL, REPLY_TOKENS, Engine, Phase, StepTime, cpu_step_s, uniform

WANDER_KEPT = math.exp(-1 / 15)  # from a second to the next: a shared machine keeps its pace for some 15 s


@dataclass(frozen=True)
class Second:
    """One virtual second: what it yielded, in force during it, and what the law said at its end."""

    at: float
    phase: int
    throughput: float  # of the mean engine, tokens per second at the machine's usual pace
    by_engine: dict[str, float]
    in_force: Schedule | None
    result: TickResult


@dataclass
class Run:
    """The outcome of a simulation."""

    seconds: list[Second] = field(default_factory=list)
    fleet: list[Engine] = field(default_factory=list)

    def of_phase(self, phase: int) -> list[Second]:
        return [second for second in self.seconds if second.phase == phase]

    def throughput(self, phase: int, settle_s: int = 0) -> float:
        """Tokens per second of the mean engine."""
        return float(np.mean([second.throughput for second in self.of_phase(phase)[settle_s:]]))

    @property
    def reasons(self) -> set[Reason]:
        return {second.result.reason for second in self.seconds}

    def changes(self, phase: int, settle_s: int = 5) -> int:
        return sum(second.result.reason is Reason.GAIN for second in self.of_phase(phase)[settle_s:])

    @property
    def probe_ratio(self) -> float:
        """Probes in all drafts."""
        drafts = sum(float(flat.sum()) for engine in self.fleet for flat in engine._outcomes.values())
        return sum(engine.probes for engine in self.fleet) / drafts


def simulate(
    phases: Sequence[Phase],
    *,
    policy: Policy | None = None,
    later: tuple[int, Policy] | None = None,
    seed: int = 0,
    step_s: StepTime = cpu_step_s,
    engines: int = 1,
    tuning: Tuning | None = None,
    disturb: Callable[[int, list[Engine]], None] | None = None,
    law: ControlLaw | None = None,
    start: Schedule | None = None,
    static_k: int = 3,
    is_scraped: Callable[[int], bool] = lambda _: True,
    noise: float = 0.03,
    wander: float = 0.0,
    max_num_seqs: int = 64,
    reply_tokens: float = REPLY_TOKENS,
    is_steered: bool = True,
    graphs: Graphs | None = None,
) -> Run:
    """Play `phases`; `wander` is by how much (standard deviation) the machine grows slower and faster for a while.

    `later` is a second from which on another policy is in force. Without `is_steered` the schedule `start` stays.
    """
    policy = policy or Policy(model=MODEL, hold_out_ratio=0.0)
    fleet = [
        Engine(
            f"engine-{index}", np.random.default_rng([seed, index]), step_s=step_s, static_k=static_k, noise=noise,
            reply_tokens=reply_tokens,
        )
        for index in range(engines)
    ]  # fmt: skip
    law = law or ControlLaw(tuning)
    schedule, run = start, Run(fleet=fleet)
    second, pace, weather = 0, 0.0, np.random.default_rng([seed, 99])
    law.observe(engine.observe(0.0) for engine in fleet)
    for index, phase in enumerate(phases):
        for _ in range(phase.seconds):
            if disturb:
                disturb(second, fleet)
            pace = WANDER_KEPT * pace + weather.normal(0, wander * math.sqrt(1 - WANDER_KEPT**2))
            slowdown = phase.slowdown * math.exp(pace)
            in_force = schedule
            told = {
                engine.engine_id: engine.run(
                    1.0, phase.of_engine.get(engine.engine_id, phase.sources), schedule, slowdown, phase.queue
                )
                for engine in fleet
            }
            second += 1
            if later is not None and second == later[0]:
                policy = later[1]
            if is_scraped(second):
                law.observe(engine.observe(float(second)) for engine in fleet)
            context = PoolContext(MODEL, POOL, policy, K_MAX, static_k, max_num_seqs, schedule, graphs=graphs)
            result = law.decide(context, float(second), float(second))
            throughput = float(np.mean(list(told.values()))) * slowdown
            run.seconds.append(Second(second, index, throughput, told, in_force, result))
            if is_steered and result.publish is not None:
                schedule = Schedule(
                    MODEL, POOL, second, float(second), 60.0, result.probe_ratio, result.publish, result.trial
                )
    return run


@cache
def single_k(phase_text: str, k: int, step_s: StepTime, seed: int, seconds: int, engines: int) -> float:
    """What a single K for all yields in a phase, tokens per second; `phase_text` is from `as_key`."""
    phase = _PHASES[phase_text]
    fixed = Phase(seconds + 5, phase.sources, phase.queue, phase.slowdown, phase.of_engine)
    run = simulate([fixed], start=uniform(k), is_steered=False, seed=seed + 1000, step_s=step_s, engines=engines)
    return run.throughput(0, settle_s=5)


_PHASES: dict[str, Phase] = {}


def best_single_k(
    phase: Phase, *, step_s: StepTime = cpu_step_s, seed: int = 0, seconds: int = 20, engines: int = 1
) -> tuple[float, int]:
    """Return the best throughput of any single K for all in a phase, and that K."""
    found = {
        k: of_single_k(phase, k, step_s=step_s, seed=seed, seconds=seconds, engines=engines) for k in range(K_MAX + 1)
    }
    best = max(found, key=lambda k: found[k])
    return found[best], best


def of_single_k(
    phase: Phase, k: int, *, step_s: StepTime = cpu_step_s, seed: int = 0, seconds: int = 20, engines: int = 1
) -> float:
    """Return what `k` for all yields in a phase."""
    text = repr(phase)
    _PHASES[text] = phase
    return single_k(text, k, step_s, seed, seconds, engines)

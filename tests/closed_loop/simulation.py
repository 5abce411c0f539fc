"""Closes the loop: plant, observations, the controller's own law, schedule, and back, in virtual time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from controller.facts import Facts, Verdict
from controller.guard import Reason
from controller.pilot import Pilot
from controller.tuning import Tuning
from policy.types import DEFAULT_CLASS, Policy, Schedule
from tests.closed_loop.plant import (
    CHAT,
    CODE,
    JSON,
    K_MAX,
    MODEL,
    POOL,
    REPLY_TOKENS,
    Engine,
    Phase,
    StepTime,
    cpu_step_s,
    oracle,
    true_goodput,
)


@dataclass(frozen=True)
class Tick:
    """One virtual second: what ran, what it yielded and what the law said at its end."""

    at: float
    phase: int
    load: dict[str, int]
    k: dict[str, int]
    goodput: float
    best: float
    best_k: dict[str, int]
    verdict: Verdict


@dataclass
class Run:
    """The outcome of a simulation."""

    ticks: list[Tick] = field(default_factory=list)

    def of_phase(self, phase: int) -> list[Tick]:
        return [tick for tick in self.ticks if tick.phase == phase]

    def regret(self, phase: int, settle_s: int = 5) -> float:
        settled = self.of_phase(phase)[settle_s:]
        return 1 - sum(tick.goodput for tick in settled) / sum(tick.best for tick in settled)

    def settled_after_s(self, phase: int, within: float = 0.05) -> int:
        """Seconds until the goodput reached its best but for `within`, and stayed there on average."""
        ticks = self.of_phase(phase)
        good = [tick.goodput >= (1 - within) * tick.best for tick in ticks]
        return next((second for second in range(len(good)) if np.mean(good[second:]) > 0.9 and good[second]), len(good))

    def switches(self, phase: int, settle_s: int = 5) -> int:
        ticks = self.of_phase(phase)[settle_s:]
        return sum(a.k != b.k for a, b in pairwise(ticks))

    @property
    def reasons(self) -> set[Reason]:
        return {tick.verdict.reason for tick in self.ticks}


WANDER_KEPT = math.exp(-1 / 15)  # from a second to the next: a shared machine keeps its pace for some 15 s


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
    pilot: Pilot | None = None,
    start: Schedule | None = None,
    static_k: int = 3,
    is_scraped: Callable[[int], bool] = lambda _: True,
    noise: float = 0.03,
    wander: float = 0.0,
    max_num_seqs: int = 64,
    reply_tokens: float = REPLY_TOKENS,
) -> Run:
    """Play `phases`; `wander` is by how much (standard deviation) the machine grows slower and faster for a while.

    `later` is a second from which on another policy is in force.
    """
    policy = policy or Policy(model=MODEL)
    fleet = [
        Engine(
            f"engine-{index}",
            np.random.default_rng([seed, index]),
            step_s=step_s,
            static_k=static_k,
            noise=noise,
            reply_tokens=reply_tokens,
        )
        for index in range(engines)
    ]
    pilot = pilot or Pilot(tuning)
    truth = {"code": CODE, "chat": CHAT, "json": JSON, DEFAULT_CLASS: CHAT}
    schedule = start
    run = Run()
    second, pace, weather = 0, 0.0, np.random.default_rng([seed, 99])
    pilot.observe(engine.observe(0.0) for engine in fleet)
    for index, phase in enumerate(phases):
        truth = {**truth, **phase.acceptance}
        load = {name: count for name, count in phase.load.items() if count}
        best, best_k = oracle(load, truth, step_s, reply_tokens) if load else (0.0, {})
        for _ in range(phase.seconds):
            if disturb:
                disturb(second, fleet)
            pace = WANDER_KEPT * pace + weather.normal(0, wander * math.sqrt(1 - WANDER_KEPT**2))
            slowdown = phase.slowdown * math.exp(pace)
            n = sum(load.values())
            k = {name: fleet[0].k_of(schedule, name, n) for name in load}
            for engine in fleet:
                engine.run(1.0, load, truth, schedule, slowdown)
            second += 1
            if later is not None and second == later[0]:
                policy = later[1]
            if is_scraped(second):
                pilot.observe(engine.observe(float(second)) for engine in fleet)
            facts = Facts(MODEL, POOL, policy, K_MAX, static_k, max_num_seqs, schedule)
            verdict = pilot.steer(facts, float(second))
            goodput = true_goodput(load, truth, k, step_s, reply_tokens) / slowdown if load else 0.0
            run.ticks.append(Tick(second, index, load, k, goodput, best / slowdown, best_k, verdict))
            schedule = Schedule(MODEL, POOL, second, float(second), 15.0, verdict.probe_ratio, verdict.publish)
    return run

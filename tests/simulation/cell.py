"""One load on one plant: the control law's K and its throughput beside each single K. Virtual time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specpilot.policy.model_policy import Policy
from tests.simulation.engine import K_MAX, MODEL, Engine, uniform
from tests.simulation.gpu_plants import GpuPlant
from tests.simulation.loop import simulate
from tests.simulation.traffic import Phase, Source

SETTLE_S = 15
"""Unmeasured seconds of the load at the begin, in which the law learns the step times."""
STATIC_SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Play:
    """The duration of each arm, the mean length of a reply, and the seed of all draws."""

    seconds: int
    reply_tokens: float
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """Output tokens per second of the law and of each single K, and the mean K that the law gave each source."""

    in_flight: int
    adaptive: float
    single: Mapping[int, float]
    k: Sequence[float]

    def over(self, k: int) -> float:
        """Return the law's throughput over that of `k` for all."""
        return self.adaptive / self.single[k]

    @property
    def best_k(self) -> int:
        """The single K that yields most."""
        return max(self.single, key=lambda k: self.single[k])


def played(plant: GpuPlant, sources: Sequence[Source], play: Play) -> Result:
    """Return the result of `sources` on `plant`."""
    in_flight = round(sum(source.running for source in sources))
    adaptive, k = _adaptive(plant, sources, in_flight, play)
    single = {each: _single(plant, sources, each, play) for each in range(K_MAX + 1)}
    return Result(in_flight, adaptive, single, k)


def _adaptive(plant: GpuPlant, sources: Sequence[Source], in_flight: int, play: Play) -> tuple[float, list[float]]:
    def settled(second: int, fleet: list[Engine]) -> None:
        if second == SETTLE_S:
            fleet[0].by_source[:] = 0

    run = simulate(
        [Phase(SETTLE_S + play.seconds, sources)],
        policy=Policy(MODEL, control_group_ratio=0.0),
        seed=play.seed,
        step_s=plant.step_s,
        catch_up_s=plant.catch_up_s,
        disturb=settled,
        static_k=K_MAX,
        max_num_seqs=in_flight,
        reply_tokens=play.reply_tokens,
    )
    [engine] = run.fleet
    return run.throughput(0, SETTLE_S), [float(item) for item in engine.by_source[:, 1] / engine.by_source[:, 0]]


def _single(plant: GpuPlant, sources: Sequence[Source], k: int, play: Play) -> float:
    """Return the throughput of `k` for all requests, without a law."""
    rng = np.random.default_rng([play.seed, k])
    engine = Engine("engine", rng, step_s=plant.step_s, catch_up_s=plant.catch_up_s, reply_tokens=play.reply_tokens)
    engine.run(STATIC_SETTLE_S, sources, uniform(k))
    return sum(engine.run(1.0, sources, uniform(k)) for _ in range(play.seconds)) / play.seconds

"""What a single K for all yields in a phase of a simulation: the oracle that the law is compared with."""

from functools import cache

from specpilot.bench.simulation.engine import K_MAX, uniform
from specpilot.bench.simulation.loop import simulate
from specpilot.bench.simulation.step_times import StepTime, cpu_step_s
from specpilot.bench.simulation.traffic import Phase

SECONDS = 12
"""Seconds that are played. A single K has nothing to learn, so it needs less time than the law."""

START_S = 3
"""Seconds before them, in which the requests come to different parts of their replies."""


@cache
def _single_k(phase_text: str, k: int, step_s: StepTime, seed: int, seconds: int, engines: int) -> float:
    """What a single K for all yields in a phase, tokens per second."""
    phase = _PHASES[phase_text]
    fixed = Phase(seconds + START_S, phase.sources, phase.queue, phase.slowdown, phase.of_engine)
    run = simulate([fixed], start=uniform(k), is_steered=False, seed=seed + 1000, step_s=step_s, engines=engines)
    return run.throughput(0, settle_s=START_S)


_PHASES: dict[str, Phase] = {}


def best_single_k(
    phase: Phase, *, step_s: StepTime = cpu_step_s, seed: int = 0, seconds: int = SECONDS, engines: int = 1
) -> tuple[float, int]:
    """Return the best throughput of any single K for all in a phase, and that K."""
    found = {
        k: of_single_k(phase, k, step_s=step_s, seed=seed, seconds=seconds, engines=engines) for k in range(K_MAX + 1)
    }
    best = max(found, key=lambda k: found[k])
    return found[best], best


def of_single_k(
    phase: Phase, k: int, *, step_s: StepTime = cpu_step_s, seed: int = 0, seconds: int = SECONDS, engines: int = 1
) -> float:
    """Return what `k` for all yields in a phase."""
    text = repr(phase)
    _PHASES[text] = phase
    return _single_k(text, k, step_s, seed, seconds, engines)

"""What a single K for all yields in a phase of a simulation: the oracle that the law is compared with.

It is a constant of plant and phase, and a fifth of all the seconds that closed loops play. So `single_k.json` has the
known values. The environment variable SINGLE_K says what to do with it: `read` (default) uses a value without playing;
`check` plays all the same, and fails where the table is off (`make test-all`); `write` plays and writes the values.
"""

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.engine import K_MAX
from tests.simulation.loop import simulate, uniform
from tests.simulation.step_times import StepTime, cpu_step_s
from tests.simulation.traffic import Phase

SECONDS = 12
"""Seconds that are played. A single K has nothing to learn, so it needs less time than the law."""

START_S = 3
"""Seconds before them, in which the requests come to different parts of their replies."""

TABLE = Path(__file__).with_name("single_k.json")
_USE = os.environ.get("SINGLE_K", "read")
_SEED = 1000  # other draws than those of the runs that are compared with it


def best_single_k(phase: Phase, **how: Any) -> tuple[float, int]:
    """Return the best throughput of any single K for all in a phase, and that K; `how` is that of `of_single_k`."""
    found = {k: of_single_k(phase, k, **how) for k in range(K_MAX + 1)}
    best = max(found, key=lambda k: found[k])
    return found[best], best


def of_single_k(
    phase: Phase, k: int, *, step_s: StepTime = cpu_step_s, seed: int = 0, seconds: int = SECONDS, **options: Any
) -> float:
    """Return what `k` for all yields in a phase, tokens per second; `options` are those of `simulate`."""
    fixed = Phase(seconds + START_S, phase.sources, phase.slowdown)
    name = getattr(step_s, "__name__", "")
    key = f"{name} K={k} seed={seed} {fixed} {options}"
    known = _known().get(key)
    if known is not None and _USE == "read":
        return known

    def played() -> float:
        if key not in _PLAYED:
            run = simulate([fixed], start=uniform(k), is_steered=False, seed=seed + _SEED, step_s=step_s, **options)
            _PLAYED[key] = run.throughput(0, settle_s=START_S)
        return _PLAYED[key]

    if _USE == "write":
        values = json.loads(TABLE.read_text()) | {key: round(played(), 2)}
        TABLE.write_text(json.dumps(dict(sorted(values.items())), indent=0) + "\n")
    elif _USE == "check":
        assert played() == pytest.approx(known or 0.0, rel=0.01), f"run these tests with SINGLE_K=write: {key}"
    return played()


_PLAYED: dict[str, float] = {}


@cache
def _known() -> dict[str, float]:
    return dict(json.loads(TABLE.read_text()))

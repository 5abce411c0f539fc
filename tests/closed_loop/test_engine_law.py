"""Engines that choose K themselves, in virtual time: no controller, no schedule."""

import numpy as np
import pytest

from specpilot.policy.model_policy import ClassPolicy, Policy
from tests.closed_loop.single_k import best_single_k
from tests.simulation.engine import MODEL
from tests.simulation.loop import Run, simulate
from tests.simulation.step_times import demo_pair_step_s
from tests.simulation.traffic import Phase, Source

SETTLE_S = 3


def played(phases: list[Phase], seed: int = 0, **options: object) -> Run:
    return simulate(phases, seed=seed, adapts=True, **options)  # type: ignore[arg-type]


def test_without_labels_it_beats_the_best_single_k_of_a_mixed_load() -> None:
    phase = Phase(20, [Source("json", 8), Source("code", 8)])
    reached = np.mean([played([phase], seed, step_s=demo_pair_step_s).throughput(0, SETTLE_S) for seed in range(2)])
    assert reached >= 1.1 * best_single_k(phase, step_s=demo_pair_step_s)[0]


@pytest.mark.parametrize("kind", ["json", "code_hot"])
def test_where_one_k_is_right_for_all_it_loses_little(kind: str) -> None:
    phase = Phase(20, [Source(kind, 8)])
    reached = played([phase], step_s=demo_pair_step_s).throughput(0, SETTLE_S)
    assert reached >= 0.95 * best_single_k(phase, step_s=demo_pair_step_s)[0]


def test_it_follows_traffic_that_turns_within_seconds() -> None:
    """Where nothing was verified for a second, a probe waits for its own time alone."""
    phases = [Phase(8, [Source(kind, 12)]) for kind in ("code_hot", "json", "code_hot")]
    runs = [played(phases, seed, step_s=demo_pair_step_s) for seed in range(3)]
    for phase in (1, 2):
        settled = np.mean([run.throughput(phase, settle_s=5) for run in runs])
        early = [second.throughput for run in runs for second in run.of_phase(phase)[2:5]]
        assert np.mean(early) >= 0.75 * settled
    for run in runs:
        rates = [second.throughput for second in run.of_phase(1)]
        assert max(rates[:4]) >= 0.8 * np.mean(rates[5:]), "found after more than three seconds"


def test_under_guidance_an_engine_delivers_what_it_does_alone() -> None:
    phase = Phase(20, [Source("json", 8, "json"), Source("code", 8, "code")])
    guided = Policy(MODEL, control_group_ratio=0.0, classes={"json": ClassPolicy(), "code": ClassPolicy()})
    run = simulate([phase], policy=guided, step_s=demo_pair_step_s)
    alone = played([phase], policy=guided, step_s=demo_pair_step_s)
    assert run.throughput(0, SETTLE_S) >= 0.97 * alone.throughput(0, SETTLE_S)

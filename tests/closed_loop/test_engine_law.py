"""Engines that choose K themselves, in virtual time: no controller, no schedule."""

import numpy as np
import pytest

from specpilot.policy.model_policy import ClassPolicy, Policy
from tests.closed_loop.single_k import best_single_k
from tests.simulation.engine import MODEL
from tests.simulation.loop import Run, simulate
from tests.simulation.step_times import demo_pair_step_s, gpu_step_s
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


def test_engines_with_unlike_traffic_are_each_served() -> None:
    """One table for a pool would serve neither."""
    phase = Phase(15, [Source("json", 8)], of_engine={"engine-1": [Source("code_hot", 8)]})
    run = played([phase], step_s=gpu_step_s, engines=2)
    for engine_id, kind in (("engine-0", "json"), ("engine-1", "code_hot")):
        reached = np.mean([second.by_engine[engine_id] for second in run.seconds[SETTLE_S:]])
        assert reached >= 0.93 * best_single_k(Phase(15, [Source(kind, 8)]), step_s=gpu_step_s)[0]


def test_bounds_and_pins_hold() -> None:
    policy = Policy(MODEL, classes={"chat": ClassPolicy(k_max=2), "json": ClassPolicy(pin=4)})
    run = played([Phase(10, [Source("json", 4, "json"), Source("json", 4, "chat")])], policy=policy)
    decodes, k = run.fleet[0].by_source.T
    assert k[0] / decodes[0] == pytest.approx(4.0, abs=0.3)  # fewer where a reply is about to end, more never
    assert k[1] / decodes[1] <= 2.0 + 1e-9


def test_under_guidance_an_engine_delivers_what_it_does_alone_within_the_policys_bounds() -> None:
    phase = Phase(20, [Source("json", 8, "json"), Source("code", 8, "code")])
    guided = Policy(MODEL, control_group_ratio=0.0, classes={"json": ClassPolicy(), "code": ClassPolicy()})
    run = simulate([phase], policy=guided, step_s=demo_pair_step_s)
    alone = played([phase], policy=guided, step_s=demo_pair_step_s)
    assert run.throughput(0, SETTLE_S) >= 0.97 * alone.throughput(0, SETTLE_S)
    bounded = Policy(MODEL, control_group_ratio=0.0, classes={"json": ClassPolicy(k_max=2)})
    run = simulate([phase], policy=bounded, step_s=demo_pair_step_s)
    decodes, k = run.fleet[0].by_source.T
    assert k[0] / decodes[0] <= 2.0 + 1e-9

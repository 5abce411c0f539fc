"""What the law yields on the plant, in true tokens per second: against single Ks, over phases, and how fast."""

import numpy as np
import pytest

from specpilot.policy.model_policy import Policy
from tests.closed_loop.single_k import best_single_k, of_single_k
from tests.simulation.engine import MODEL
from tests.simulation.loop import simulate, uniform
from tests.simulation.step_times import StepTime, cpu_step_s, demo_pair_step_s, gpu_step_s
from tests.simulation.traffic import ACCEPTANCE, Phase, Source

SETTLE_S = 8
STATIC_K = 3
MIXED = [
    Phase(30, [Source("json", 4), Source("code", 12)]),
    Phase(30, [Source("json", 8), Source("code", 8)]),
    Phase(30, [Source(kind, 4) for kind in ACCEPTANCE]),
    Phase(30, [Source("json", 2), Source("chat_hot", 22)]),
    Phase(30, [Source("json", 8)]),
    Phase(30, [Source("json", 4, turns_to="code"), Source("code", 4, turns_to="json")]),
]
PLAIN = Policy(MODEL, control_group_ratio=0.0)


def ratios(step_s: StepTime, seed: int) -> tuple[list[float], list[float]]:
    """By phase: over the best single K of the phase, and over the better of K = 0 and the static K."""
    run = simulate(MIXED, step_s=step_s, seed=seed)
    over_oracle, over_both = [], []
    for index, phase in enumerate(MIXED):
        throughput = run.throughput(index, SETTLE_S)
        over_oracle.append(throughput / best_single_k(phase, step_s=step_s)[0])
        over_both.append(throughput / max(of_single_k(phase, k, step_s=step_s) for k in (0, STATIC_K)))
    return over_oracle, over_both


@pytest.mark.extended("loop: labels")
@pytest.mark.parametrize(
    "step_s", [cpu_step_s, pytest.param(gpu_step_s, marks=pytest.mark.extended("loop: regret on a GPU"))]
)
def test_without_labels_it_beats_the_best_single_k_of_each_phase(step_s: StepTime) -> None:
    runs = [ratios(step_s, seed) for seed in range(2)]
    over_oracle = np.mean([item[0] for item in runs], axis=0)
    over_both = np.mean([item[1] for item in runs], axis=0)
    assert float(np.exp(np.log(over_oracle).mean())) >= 1.03, over_oracle
    assert over_both.min() >= 0.96, over_both


def test_labels_add_next_to_nothing() -> None:
    labelled = [Phase(40, [Source("json", 8, "json"), Source("code", 8, "code")])]
    unlabelled = [Phase(40, [Source("json", 8), Source("code", 8)])]
    policy = Policy(MODEL, control_group_ratio=0.0, classes={"json": {}, "code": {}})  # type: ignore[dict-item]
    with_labels = np.mean([simulate(labelled, policy=policy, seed=seed).throughput(0, SETTLE_S) for seed in range(3)])
    without = np.mean([simulate(unlabelled, seed=seed).throughput(0, SETTLE_S) for seed in range(3)])
    assert without / with_labels >= 0.97


def test_probes_are_few() -> None:
    phase = Phase(40, [Source("code_hot", 16)])
    run = simulate([phase])
    assert 0 < run.probe_ratio <= 1.05 * PLAIN.probe_ratio
    none = simulate([phase], policy=Policy(MODEL, control_group_ratio=0.0, probe_ratio=0.0))
    assert run.throughput(0, SETTLE_S) >= 0.96 * none.throughput(0, SETTLE_S)


def test_steps_that_prefill_are_priced() -> None:
    """Every step prefills; the pool learns of its cost and chooses all the same."""
    phase = Phase(40, [Source("json", 8, prompt_tokens=400)])
    run = simulate([phase])
    newest = run.seconds[-1].result
    assert newest.evidence["step_s"] < 0.9 / newest.evidence["steps"] * 8
    assert newest.evidence["steps"] > 0
    assert run.throughput(0, SETTLE_S) >= 0.97 * best_single_k(phase)[0]


def test_a_few_predictable_requests_among_many_are_found_without_labels() -> None:
    """After traffic in which nothing drafted all new requests begin in one band, whose acceptance is the mixture's."""
    phases = [Phase(5, [Source("code", 3)]), Phase(15, [Source("json", 3), Source("code", 9)])]
    reached = np.mean([simulate(phases, seed=seed).throughput(1, settle_s=5) for seed in range(6)])
    assert reached >= 1.05 * of_single_k(phases[1], 0)


@pytest.mark.extended("loop: found where nothing drafts")
@pytest.mark.parametrize("sources", [[("json", 8), ("code", 8)], [("json", 2), ("chat_hot", 4)]])
def test_predictable_requests_are_found_where_nothing_drafts(sources: list[tuple[str, int]]) -> None:
    """Short replies without labels: all have ended before a probe of one after the other has told them apart."""
    phases = [
        Phase(14, [Source("chat_hot", 32)]),
        Phase(14, [Source(kind, running) for kind, running in sources]),
    ]
    told = {"step_s": demo_pair_step_s, "reply_tokens": 75.0, "max_num_seqs": 32}
    reached = np.mean([simulate(phases, seed=seed, **told).throughput(1, settle_s=5) for seed in range(4)])  # type: ignore[arg-type]
    undrafted = np.mean(
        [
            simulate(phases[1:], seed=seed, start=uniform(0), is_steered=False, **told).throughput(0)  # type: ignore[arg-type]
            for seed in range(4)
        ]
    )
    assert reached >= 1.12 * undrafted

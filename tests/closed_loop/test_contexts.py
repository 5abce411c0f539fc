"""Requests of 100,000 tokens beside short ones, on machines where a context costs time: each gets a K of its own."""

from typing import Any

import numpy as np
import pytest

from tests.closed_loop.single_k import of_single_k
from tests.simulation.context_plants import B200Latent, CpuContext, H200Context, UnsplitContext
from tests.simulation.h200_plant import FULL, H200Plant, graphs
from tests.simulation.loop import simulate
from tests.simulation.plant import Plant
from tests.simulation.traffic import LongSource, Phase, Source

SETTLE_S = 8
GRAPHS = graphs(FULL, largest=1024)
H200: dict[str, Any] = {"graphs": GRAPHS}
MTP: dict[str, Any] = {"k_max": 3, "is_parallel": False, "least_width": 0}
COMMON: dict[str, Any] = {"noise": 0.01, "reply_tokens": 400.0}


def load(short: int, long: int, acceptance: float, of_long: float) -> Phase:
    return Phase(25, [Source(acceptance, short, prompt_tokens=500), LongSource(of_long, long)])


@pytest.mark.parametrize(
    ("plant", "options", "phase", "best_k", "least"),
    [
        (B200Latent(), MTP, load(15, 1, 0.75, 0.75), 3, 1.15),
        pytest.param(CpuContext(), {}, load(12, 4, 0.9, 0.9), 2, 1.0, marks=pytest.mark.extended("loop: contexts")),
    ],
    ids=["latent attention", "processor"],
)
def test_long_requests_get_a_smaller_k_than_short_ones_beside_them(
    plant: Plant, options: dict[str, Any], phase: Phase, best_k: int, least: float
) -> None:
    """`best_k` is the best single K of the load. A long request is as predictable as the short ones."""
    told = {"plant": plant, **options, **COMMON}
    runs = [simulate([phase], seed=seed, adapts=True, **told) for seed in range(2)]
    for run in runs:
        decodes, k = run.fleet[0].by_source.T
        of_short, of_long = k / decodes
        assert of_long < 0.2 * of_short
    reached = np.mean([run.throughput(0, SETTLE_S) for run in runs])
    assert reached >= least * of_single_k(phase, best_k, **told)


@pytest.mark.extended("loop: contexts")
def test_where_a_context_is_read_once_for_all_tokens_long_requests_draft_like_short_ones() -> None:
    phase, told = load(15, 1, 0.75, 0.75), {"plant": H200Context(H200Plant(GRAPHS)), **H200, **COMMON}
    run = simulate([phase], adapts=True, **told)
    decodes, k = run.fleet[0].by_source.T
    assert (k / decodes).min() > 5.0
    assert run.throughput(0, SETTLE_S) >= 0.95 * of_single_k(phase, 7, **told)


def test_where_verifying_a_long_context_is_slow_nothing_is_drafted_while_it_runs() -> None:
    """Also for the short ones: one draft in the step slows the kernel down for all."""
    phase = load(15, 1, 0.75, 0.75)
    told = {"plant": UnsplitContext(H200Plant(GRAPHS)), **H200, **COMMON}
    run = simulate([Phase(12, phase.sources[:1]), phase], adapts=True, **told)
    decodes, k = run.fleet[0].by_source.T
    assert k.sum() < 0.3 * decodes.sum()
    assert run.throughput(1, SETTLE_S) >= 0.95 * of_single_k(phase, 0, **told)

"""Goodput, requests within their goals per second, on mixed loads with goals that no single K keeps together."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.closed_loop.test_latency_goals import SETTLE_S, Played, classes, played
from tests.simulation.h200_plant import FULL, H200Plant, graphs
from tests.simulation.traffic import Phase, Source

ENDS_S, SEEDS = 40, 2


class Load(NamedTuple):
    """Requests that run by class, goals on the 95th percentile of their TPOT (ms), and the best single K by goodput."""

    running: Mapping[str, int]
    goals: Mapping[str, float]
    single_k: int
    machine: Mapping[str, Any]


_GRAPHS = graphs(FULL, largest=1024)
CPU: Mapping[str, Any] = {}
H200: Mapping[str, Any] = {"plant": H200Plant(_GRAPHS), "graphs": _GRAPHS, "max_num_seqs": 128, "noise": 0.005}
OF_VLLM: Mapping[str, Any] = {**H200, "plant": H200Plant(graphs()), "graphs": graphs()}
"""With vLLM's default graphs: a step with a prompt leaves its FULL graph, and most steps have one."""
LOADS = (
    Load({"chat": 4, "json": 12}, {"chat": 8.0, "json": 3.8}, 7, CPU),
    Load({"chat": 6, "code": 5, "json": 5}, {"chat": 8.0, "code": 9.0, "json": 3.5}, 0, CPU),
    Load({"chat": 16, "json": 48}, {"chat": 6.0, "json": 2.3}, 4, H200),
    Load({"chat": 24, "code": 20, "json": 20}, {"chat": 6.0, "code": 7.0, "json": 2.2}, 3, H200),
    Load({"chat": 16, "json": 48}, {"chat": 7.0, "json": 2.6}, 6, OF_VLLM),
)


def of_load(load: Load, k: int | None, seed: int) -> Played:
    """Play a load with goals, or with one K for all."""
    goals = {name: item if k is None else replace(item, pin=k) for name, item in classes(**load.goals).items()}
    sources = [Source(name, count, name) for name, count in load.running.items()]
    return played([Phase(ENDS_S, sources)], goals, seed, **load.machine)


def requests_per_s(runs: Sequence[Played]) -> tuple[float, float]:
    """Return the requests per second within their goals and beyond them."""
    within, beyond = np.mean([run.grown(SETTLE_S, ENDS_S) for run in runs], axis=0) / (ENDS_S - SETTLE_S)
    return float(within), float(beyond)


@pytest.mark.extended("loop: goodput")
@pytest.mark.parametrize("load", LOADS, ids=lambda load: f"{load.running}, {load.goals}")
def test_goodput_is_more_than_that_of_the_best_single_k_and_fewer_requests_miss_their_goal(load: Load) -> None:
    arms = [[of_load(load, k, seed) for seed in range(SEEDS)] for k in (None, load.single_k)]
    (within, beyond), (of_k, missed) = (requests_per_s(runs) for runs in arms)
    assert within >= 1.15 * of_k
    assert beyond / (within + beyond) <= 0.7 * missed / (of_k + missed)
    tokens, of_single = (np.mean([run.throughput(SETTLE_S, ENDS_S) for run in runs]) for runs in arms)
    assert tokens >= 0.95 * of_single

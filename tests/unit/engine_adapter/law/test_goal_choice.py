"""The choice of K with latency goals against the best of all choices, found by trying them."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from specpilot.engine_adapter.law.goal_choice import GoalChooser
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.step_worth import (
    Group,
    goals_factor,
    keeps_slos,
    step_of,
    steps_of,
    worth_of_step,
    worth_of_steps,
)
from specpilot.policy.schedule import Objective
from tests.simulation.h200_plant import FULL, graphs
from tests.unit.engine_adapter.law.test_choice import K, choose, drawn, lengths, prices

CHAT, JSON = Group(8, 0, 1.0, 0, K), Group(8, 1, 1.0, 0, K)


def test_estimates_that_are_no_numbers_do_not_keep_the_scheduler() -> None:
    groups = [group._replace(tpot_bound_s=1e-3) for group in (CHAT, JSON)]
    al = np.full((8, K + 1), np.nan)
    assert GoalChooser(groups, al, prices(), Objective.THROUGHPUT).best([0, 0]) == [0, 0]


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("in_force", [None, graphs(FULL)], ids=["none", "full"])
def test_it_is_close_to_the_best_of_all(objective: Objective, in_force: Graphs | None) -> None:
    draw, ratios = random.Random(8), {"best": list[float](), "near": list[float](), "fastest": list[float]()}
    for _ in range(100):
        groups, al, priced = drawn(draw, in_force)
        plain_s = priced.plain_s(sum(group.decodes for group in groups))
        groups = [group._replace(tpot_bound_s=draw.choice((0.0, 0.6, 0.9, 1.5)) * plain_s) for group in groups]
        every = np.array([*itertools.product(*(range(group.low, group.high + 1) for group in groups))])
        steps = steps_of(groups, al, priced, every)
        most, kept = worth_of_steps(groups, *steps, objective).max(), goals_factor(groups, *steps)
        chooser, start = GoalChooser(groups, al, priced, objective), choose(groups, al, priced, objective)
        fastest = chooser.fastest(start)
        found, near = chooser.best(start, fastest), chooser.nearby(start)
        for name, ks in (("best", found), ("near", near)):
            assert all(group.low <= k <= group.high for group, k in zip(groups, ks, strict=True))
            ratios[name].append(worth_of_step(groups, step_of(groups, al, priced, ks), objective) / most)
        ratios["fastest"].append(
            goals_factor(groups, *steps_of(groups, al, priced, np.array([fastest])))[0] / kept.max()
        )
    assert np.mean(ratios["best"]) >= 0.998
    assert min(ratios["best"]) >= 0.98
    assert np.mean(ratios["near"]) >= 0.98
    assert np.mean(ratios["fastest"]) >= 0.998


def test_a_goal_within_reach_is_kept_at_less_throughput() -> None:
    al, priced = lengths(0.3, 0.95), prices(token=2e-4)
    free = choose([CHAT, JSON], al, priced)
    bound = [CHAT._replace(tpot_bound_s=0.0095), JSON]
    kept = GoalChooser(bound, al, priced, Objective.THROUGHPUT).best(free)
    assert keeps_slos(bound, step_of(bound, al, priced, kept))
    assert not keeps_slos(bound, step_of(bound, al, priced, free))
    assert sum(kept) < sum(free)


def test_a_goal_out_of_reach_costs_the_others_nothing() -> None:
    al, priced = lengths(0.05, 0.95), prices()
    hopeless = [CHAT._replace(tpot_bound_s=2e-3), JSON._replace(tpot_bound_s=2.6e-3)]
    found = GoalChooser(hopeless, al, priced, Objective.THROUGHPUT).best([0, 0])
    assert found == choose([CHAT, JSON], al, priced)
    assert keeps_slos(hopeless[1:], step_of(hopeless, al, priced, found)._replace(lengths=al[[1], found[1:]]))


def test_where_decodes_need_one_k_it_is_the_best_of_these() -> None:
    draw = random.Random(6)
    for _ in range(30):
        groups, al, priced = drawn(draw, replace(graphs(lengths=(1, 2, 3, 5)), need_one_k=True))
        plain_s = priced.plain_s(sum(group.decodes for group in groups))
        groups = [group._replace(tpot_bound_s=draw.choice((0.6, 0.9)) * plain_s) for group in groups]
        each = [[min(max(k, group.low), group.high) for group in groups] for k in range(K + 1)]
        chooser = GoalChooser(groups, al, priced, Objective.THROUGHPUT)
        best = max(worth_of_step(groups, step_of(groups, al, priced, ks)) for ks in each)
        for found in (chooser.best([0] * len(groups)), chooser.nearby([0] * len(groups))):
            assert worth_of_step(groups, step_of(groups, al, priced, found)) == pytest.approx(best)
        assert chooser.fastest(each[0]) in each

"""What the choice of K maximises, and what explains it: the worth of a step, and that of a draft position."""

import random

import numpy as np
import pytest

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.step_worth import Group, Step, steps_of, worth_of, worth_of_step
from tests.simulation.h200_plant import FULL, graphs
from tests.unit.engine_adapter.law.test_choice import K, choose, drawn, lengths, prices, rate_of


def test_the_worth_of_a_step_is_its_rate_times_what_each_goal_leaves() -> None:
    """Of chat's goal one of three requests is within its bound by far, the others are at it; JSON misses its goal."""
    chat, other, json = Group(2, 0, 1.0, 0, K, 4e-3), Group(1, 1, 1.0, 0, K, 4e-3), Group(1, 1, 3.0, 0, K, 1e-3)
    groups = [chat, other, json, Group(6, 1, 3.0, 0, K), Group(0, 0, 1.0, 0, K, 1e-3)]
    step = Step(4e-3, np.array([1.0, 4.0, 2.0, 2.0, 1.0]))
    rate = (2 + 4 + 3 * 2 + 6 * 3 * 2) / 4e-3
    of_chat, of_json = 0.1 + 0.9 * (1 + 2 / 2) / 3, 0.1
    assert worth_of_step(groups, step) == pytest.approx(rate * (of_chat * of_json) ** 0.5**0.5, rel=1e-3)
    assert worth_of_step([chat, other], step._replace(lengths=step.lengths[:2])) == pytest.approx(6 / 4e-3 * of_chat)
    with_prompts = step._replace(prompts_s=4e-3)  # chat's groups are at twice their bound, and at half of it
    assert worth_of_step([chat, other], with_prompts._replace(lengths=step.lengths[:2])) == pytest.approx(
        6 / 4e-3 * (0.1 + 0.9 / 3), rel=1e-3
    )
    unbound = [group._replace(tpot_bound_s=0.0) for group in groups]
    assert worth_of_step(unbound, with_prompts) == pytest.approx(rate)


@pytest.mark.parametrize("in_force", [None, graphs(lengths=(1, 2, 3, 5)), graphs(FULL)])
@pytest.mark.parametrize("least_width", [None, 0, 1])
def test_the_seconds_of_many_steps_are_those_of_each(in_force: Graphs | None, least_width: int | None) -> None:
    draw = random.Random(7)
    for _ in range(50):
        groups, al, priced = drawn(draw, in_force, least_width)
        groups.append(groups[0]._replace(decodes=0))  # it widens no step
        n = sum(group.decodes for group in groups)
        ks = [[draw.randrange(K + 1) for _ in groups] for _ in range(5)] + [[k] * len(groups) for k in (0, K)]
        seconds, by_group, _ = steps_of(groups, al, priced, np.array(ks))
        for at, row in enumerate(ks):
            counts = [(group.decodes, k) for group, k in zip(groups, row, strict=True) if group.decodes]
            width, drafted = max(k for _, k in counts), sum(count for count, k in counts if k)
            m = n + sum(count * k for count, k in counts)
            alone = priced.step_s(n, m, priced.slots(n, width, drafted), width, is_uniform=m == n * (1 + width))
            assert seconds[at] == pytest.approx(alone + (n - drafted) * drafted * priced.catch_up_s(n) / n**2)
            assert by_group[at].tolist() == [al[group.band, k] for group, k in zip(groups, row, strict=True)]


def test_a_position_that_is_taken_is_worth_more_than_it_costs_and_the_next_one_less() -> None:
    """Where one position alone decides: no graphs, no bounds; the first position also pays for the drafter."""
    draw, compared = random.Random(2), 0
    for _ in range(200):
        groups, al, priced = drawn(draw, None)
        groups = [group._replace(low=0, high=K) for group in groups]
        ks = choose(groups, al, priced)
        best = rate_of(groups, al, priced, ks)
        for at, positions in enumerate(worth_of(groups, al, priced, ks)):
            assert [item.position for item in positions] == [k for k in (ks[at], ks[at] + 1) if 1 <= k <= K]
            for item in positions:
                other = [*ks[:at], item.position - (item.position == ks[at]), *ks[at + 1 :]]
                changed = rate_of(groups, al, priced, other)
                if abs(changed / best - 1) < 1e-3:
                    continue  # a draw
                pays = item.tokens > item.cost_tokens
                assert pays == (changed < best if item.position == ks[at] else changed > best)
                compared += 1
    assert compared > 300


def test_the_worth_of_a_position_is_its_survival_by_weight_and_its_cost_is_time_at_the_rate() -> None:
    al, priced = lengths(0.8), prices(base=9e-3, drafter=1e-3, slot=0.0, token=1e-4)
    [[last, following]] = worth_of([Group(10, 0, 2.0, 0, K)], al, priced, [2])
    assert (last.position, following.position) == (2, 3)
    assert (last.tokens, following.tokens) == (pytest.approx(2 * 0.8**2), pytest.approx(2 * 0.8**3))
    step_s, tokens = 9e-3 + 1e-3 + 30 * 1e-4, 10 * 2.0 * (1 + 0.8 + 0.64)
    assert following.cost_tokens == pytest.approx(10 * 1e-4 * tokens / step_s / 10)
    none = Group(0, 0, 1.0, 0, K)
    assert worth_of([none, Group(10, 0, 2.0, 0, K)], al, priced, [K, 2])[0] == []

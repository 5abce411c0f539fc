"""What the choice of K maximises, and what explains it: the worth of a step, and that of a draft position."""

import random

import numpy as np
import pytest

from specpilot.engine_adapter.law.step_worth import Group, step_of, worth_of, worth_of_step
from tests.unit.engine_adapter.law.test_choice import K, choose, drawn, lengths, prices, rate_of


def test_the_worth_of_a_step_is_its_rate_less_the_price_of_what_exceeds_its_bound() -> None:
    """Two thirds of a class exceed their bound by a tenth."""
    groups = [Group(4, 0, 1.0, 0, K, 4e-3), Group(2, 1, 1.0, 0, K, 4e-3), Group(6, 1, 3.0, 0, K)]
    step = step_of(groups, lengths(0.0, 0.5), prices(base=4.4e-3, token=0.0), [0, 0, 0])
    rate = (4 + 2 + 6 * 3) / 4.4e-3
    assert worth_of_step(groups, step, price=2.0) == pytest.approx(rate * 1.1**-2)
    assert worth_of_step(groups, step._replace(lengths=np.array([1.0, 1.1, 1.0])), price=2.0) == pytest.approx(
        (rate + 2 * 0.1 / 4.4e-3) * 1.1 ** (-2 * 4 / 6)
    )
    hopeless = [group._replace(hope=0.5) for group in groups]
    assert worth_of_step(hopeless, step, price=2.0) == pytest.approx(rate / 1.1)


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

"""The choice, compared with all tables."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specpilot.controller.estimation.acceptance import ModelAcceptance
from specpilot.controller.estimation.step_cost import KNOTS, StepCost
from specpilot.controller.law.choice import Choice, Group, Setting, Stream
from specpilot.policy.graphs import Graphs
from specpilot.policy.types import Objective

K_MAX = 3


def linear(
    base: float = 2e-3, token: float = 1e-4, slot: float = 5e-5, drafter: float = 3e-4, left: float = 0.0
) -> StepCost:
    heights = token * np.append(KNOTS, 1e7)
    return StepCost(base, 0.0, drafter, slot, 0.0, 0.0, 0.0, 0.0, heights, left_s=left)


def setting(parts: dict[int, float], cost: StepCost | None = None, groups: list[Group] | None = None) -> Setting:
    streams = [Stream(row, band, row if groups else 0, share, None) for row, (band, share) in enumerate(parts.items())]
    return Setting(
        streams=streams,
        groups=groups or [Group()],
        lengths=ModelAcceptance().lengths(K_MAX),
        low=np.zeros(len(parts), dtype=np.int64),
        high=np.full(len(parts), K_MAX),
        bands=np.array(list(parts)),
        cost=cost or linear(),
    )


def every(rows: int) -> list[tuple[int, ...]]:
    return list(product(range(K_MAX + 1), repeat=rows))


def best_score(choice: Choice, n: np.ndarray, rows: int) -> np.ndarray:
    return np.max([choice.evaluate(n, np.tile(k, (len(n), 1))).score for k in every(rows)], axis=0)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.05, 1.0), min_size=3, max_size=3),
    st.floats(0, 5e-3),
    st.floats(0, 5e-4),
    st.floats(0, 3e-4),
    st.floats(0, 2e-3),
)
def test_it_is_close_to_the_best_of_all_tables(
    shares: list[float], base: float, token: float, slot: float, drafter: float
) -> None:
    whole = sum(shares)
    parts = {band: share / whole for band, share in zip((1, 4, 7), shares, strict=True)}
    choice = Choice(setting(parts, linear(base + 1e-5, token + 1e-6, slot, drafter)))
    n = np.array([1.0, 2.0, 8.0, 32.0])
    found = choice.evaluate(n, choice.best(n, np.zeros((4, 3), dtype=np.int64))).score
    assert (found >= 0.97 * best_score(choice, n, 3)).all()


def test_a_band_is_solved_alone_where_work_is_given_and_t_is_linear() -> None:
    """K_b = argmin (base / n + verification + slots) / AL_b(K), whatever the mix."""
    cost, n = linear(drafter=0.0), 8.0
    lengths = ModelAcceptance().lengths(K_MAX)
    k = np.arange(K_MAX + 1)
    for shares in ((0.8, 0.2), (0.2, 0.8)):
        choice = Choice(replace(setting({2: shares[0], 7: shares[1]}, cost), answer_ratio=1.0))
        found = choice.best(np.array([n]), np.zeros((1, 2), dtype=np.int64))[0]
        width = found.max()
        for row, band in enumerate((2, 7)):
            per_token = (2e-3 / n + 1e-4 * (1 + k) + 5e-5 * np.where(k > 0, np.maximum(k, width), 0)) / lengths[band]
            assert found[row] == per_token.argmin()


def test_slots_are_those_of_the_steps_width_for_those_drafted_for_only() -> None:
    """Compared with steps that are drawn one by one."""
    parts = {1: 0.3, 4: 0.4, 7: 0.3}
    choice = Choice(setting(parts, linear(base=0.0, token=0.0, slot=1.0, drafter=0.0)))
    k, n = np.array([0, 1, 3]), 5
    lengths = ModelAcceptance().lengths(K_MAX)
    decodes = np.array(
        [part / lengths[band, depth] ** 0.5 for (band, part), depth in zip(parts.items(), k, strict=True)]
    )
    drawn = k[np.random.default_rng(1).choice(3, (200_000, n), p=decodes / decodes.sum())]
    slots = ((drawn > 0).sum(axis=1) * drawn.max(axis=1)).mean()
    assert float(choice.evaluate(np.array([float(n)]), k[None]).step_s[0]) == pytest.approx(slots, rel=0.02)


def test_bounds_hold_and_what_is_not_better_stays() -> None:
    bounded = replace(setting({1: 0.5, 7: 0.5}), low=np.array([1, 0]), high=np.array([2, 1]))
    found = Choice(bounded).best(np.array([4.0]), np.array([[0, 3]]))
    assert (found >= bounded.low).all()
    assert (found <= bounded.high).all()
    flat = setting({1: 0.5, 7: 0.5}, linear(base=1e-3, token=0.0, slot=0.0, drafter=0.0))
    assert Choice(flat).best(np.array([4.0]), np.array([[3, 3]])).tolist() == [[3, 3]]


def test_a_bound_on_latency_holds_for_the_low_band() -> None:
    free = setting({1: 0.5, 7: 0.5})
    n = np.array([16.0])
    wide = Choice(free).best(n, np.zeros((1, 2), dtype=np.int64))
    slow = Choice(free).evaluate(n, wide).step_s[0] / ModelAcceptance().lengths(K_MAX)[1, wide[0, 0]]
    streams = [replace(stream, itl_slo_s=float(slow) * 0.9) for stream in free.streams]
    bounded = Choice(replace(free, streams=streams))
    found = bounded.best(n, wide)
    assert bounded.evaluate(n, found).score[0] > 0
    assert bounded.evaluate(n, wide).score[0] < 0


def test_a_weight_favours_what_it_is_for() -> None:
    n, start = np.array([32.0]), np.zeros((1, 2), dtype=np.int64)
    cost = linear(base=1e-3, slot=2e-4)
    plain = [Group(0.5, 1.0), Group(0.5, 1.0)]
    heavy = [Group(0.5, 1.0), Group(0.5, 20.0)]
    one = {5: 1.0, 6: 1.0}
    assert (
        Choice(setting(one, cost, heavy)).best(n, start)[0, 1] >= Choice(setting(one, cost, plain)).best(n, start)[0, 1]
    )


def test_what_prefilling_alone_takes_is_no_matter_of_k() -> None:
    n = np.array([8.0])
    plain = setting({4: 0.5, 7: 0.5})
    prefilling = replace(plain, prefill=((0.5, 0.0), (0.5, 400.0)))
    k = np.array([[1, 3]])
    alone, beside = (float(Choice(item).evaluate(n, k).step_s[0]) for item in (plain, prefilling))
    assert beside == pytest.approx(alone, rel=1e-6)  # verification is linear here


def test_latency_is_the_mean_time_of_a_token() -> None:
    groups = [Group(0.5), Group(0.5)]
    latency = replace(setting({1: 1.0, 7: 1.0}, groups=groups), objective=Objective.LATENCY)
    n, k = np.array([8.0]), np.array([[1, 3]])
    found = Choice(latency).evaluate(n, k)
    lengths = ModelAcceptance().lengths(K_MAX)
    mean = float(found.step_s[0]) * (0.5 / lengths[1, 1] + 0.5 / lengths[7, 3])
    assert float(found.score[0]) == pytest.approx(1 / mean)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8),
    st.floats(0, 3e-3),
    st.floats(0, 6e-3),
    st.lists(st.integers(0, K_MAX), min_size=8, max_size=8).map(sorted),
)
def test_with_graphs_no_band_has_less_than_a_lower_one_and_no_such_table_at_hand_is_better(
    shares: list[float], piecewise_s: float, graphless_s: float, in_force: list[int]
) -> None:
    sizes = (1, 2, 4, 8, 16, 24, 32, 48, 64)
    graphs = Graphs("FULL_AND_PIECEWISE", sizes, {1: sizes, 1 + K_MAX: (4, 8, 16, 24, 32, 48, 64)}, sizes)
    cost = replace(linear(), piecewise_s=piecewise_s, graphless_s=graphless_s, graphs=graphs)
    choice = Choice(setting({band: share / sum(shares) for band, share in enumerate(shares)}, cost))
    n = np.array([1.0, 2.0, 7.0, 16.0, 17.0, 40.0])
    before = np.tile(in_force, (len(n), 1))
    found = choice.best(n, before)
    assert (np.diff(found, axis=1) >= 0).all()
    score = choice.evaluate(n, found).score
    for table in (before, *(np.full((len(n), 8), k) for k in range(K_MAX + 1))):
        assert (score >= (1 - 1e-9) * choice.evaluate(n, table).score).all()


def test_rows_without_traffic_are_prepared_for_it_and_the_others_stay() -> None:
    with_traffic = replace(setting({1: 1.0}), low=np.zeros(3, dtype=np.int64), high=np.array([7, 7, 7]))
    choice = Choice(replace(with_traffic, bands=np.array([1, 7, -1])))
    n = np.array([2.0, 4.0])
    before = np.array([[2, 0, 5], [2, 0, 5]])
    found = choice.prepared(n, before, 0.1)
    alone = Choice(setting({7: 1.0})).best(n, before[:, :1])[:, 0]
    assert (alone > 0).all()
    assert found.tolist() == [[2, k, 5] for k in alone]  # the row without a band is for unknown rows
    assert choice.prepared(n, found, 0.1).tolist() == found.tolist()
    assert choice.prepared(n, before, 100.0).tolist() == before.tolist()


def test_k_changes_along_n_where_it_pays_and_nowhere_else() -> None:
    """A cost with stairs makes the best K change back and forth, for less than its own uncertainty."""
    stairs = np.cumsum(
        1e-4 * np.diff(np.append(KNOTS, 1e7), prepend=0.0) * np.tile([1.2, 0.8], len(KNOTS))[: len(KNOTS) + 1]
    )
    choice = Choice(setting({1: 0.3, 4: 0.3, 7: 0.4}, replace(linear(), verify_s=stairs)))
    n = np.arange(1.0, 65.0)
    best = choice.best(n, np.zeros((64, 3), dtype=np.int64))
    even = choice.even(n, best, 0.015)

    def changes(k: np.ndarray) -> int:
        return int((np.diff(k, axis=0) != 0).any(axis=1).sum())

    loss = 1 - choice.evaluate(n, even).score / choice.evaluate(n, best).score
    assert changes(even) <= changes(best) / 3
    assert loss.max() <= 0.015 + 1e-9
    assert np.array_equal(choice.even(n, best, 0.0), best)


def test_ranges_along_n_keep_an_slo() -> None:
    """A K that breaks a bound does not replace one that keeps it, however small the loss of score."""
    bounded = setting({1: 0.5, 7: 0.5})
    streams = [replace(item, itl_slo_s=6e-3) for item in bounded.streams]
    choice = Choice(replace(bounded, streams=streams))
    n = np.arange(1.0, 65.0)
    best = choice.best(n, np.zeros((64, 2), dtype=np.int64))
    even = choice.even(n, best, 0.2)
    kept = choice.evaluate(n, best).score > 0
    assert 0 < kept.sum() < 64
    assert np.array_equal(choice.evaluate(n, even).score > 0, kept)


def test_rows_without_traffic_are_not_evened() -> None:
    """No score shows their loss: they stay as `prepared` sets them."""
    found = setting({0: 1.0, 4: 0.0, 7: 0.0})
    choice = Choice(replace(found, streams=found.streams[:1]))
    n = np.arange(1.0, 65.0)
    prepared = choice.prepared(n, np.zeros((64, 3), dtype=np.int64), 0.1)
    even = choice.even(n, choice.best(n, prepared), 0.02)
    assert len(set(prepared[:, 2].tolist())) > 1
    assert np.array_equal(even[:, 1:], prepared[:, 1:])

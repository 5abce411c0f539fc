"""The choice of K against the best of all choices, found by trying them."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specpilot.engine_adapter.law.choice import Chooser
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.prices import KNOTS, PARTS, Coefficients, Prices, StepExtras
from specpilot.engine_adapter.law.step_worth import Group, step_of, steps_of, worth_of_step, worth_of_steps
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.policy.schedule import Objective
from tests.simulation.h200_plant import FULL, graphs
from tests.support.k_tables import table
from tests.support.planning import decodes

K = 4


def lengths(*acceptance: float, k_max: int = K) -> np.ndarray:
    """AL by K of bands with these conditional acceptances."""
    return np.array([[sum(a**i for i in range(k + 1)) for k in range(k_max + 1)] for a in acceptance])


def prices(
    most: int = 512,
    in_force: Graphs | None = None,
    left_out_s: float = 0.0,
    least_width: int | None = None,
    narrowest: int = 1,
    **parts: float,
) -> Prices:
    """Prices of a small machine: 5 ms, 0.05 ms a token, unless something else is said."""
    known = {"base": 5e-3, "drafter": 1e-3, "slot": 2e-5, "read": 2.6e-5, "reads": 1e-3} | parts
    token_s = known.pop("token", 5e-5)
    parts_s = tuple(known.get(name, 0.0) for name in PARTS)
    slopes = (token_s,) * len(KNOTS)
    coefficients = Coefficients(parts_s, slopes)
    return Prices(coefficients, most, in_force, StepExtras(), left_out_s, least_width, narrowest)


def choose(
    groups: Sequence[Group],
    al: np.ndarray,
    costs: Prices,
    objective: Objective = Objective.THROUGHPUT,
    near_width: int | None = None,
) -> list[int]:
    return Chooser(groups, al, costs, objective).choose([group.decodes for group in groups], near_width)


def drawn(
    draw: random.Random, in_force: Graphs | None, least_width: int | None = None, narrowest: int = 1
) -> tuple[list[Group], np.ndarray, Prices]:
    """A random setting: groups, acceptance, prices."""
    slopes = sorted(draw.uniform(0, 1.5e-4) for _ in KNOTS)
    parts = {
        "base": draw.uniform(2e-3, 1e-2), "drafter": draw.uniform(3e-4, 3e-3), "read": 2.6e-5, "reads": 1.5e-3,
        "slot": draw.uniform(0, 8e-5), "drafting_decode": draw.uniform(0, 1.5e-4),
        "piecewise": draw.uniform(0, 6e-3) if in_force else 0.0,
    }  # fmt: skip
    if narrowest == 1 and parts["drafter"] > 2e-3:  # a sequential drafter, whose first pass costs more than the others
        parts["pass"] = 1e-3
    coefficients = Coefficients(tuple(parts.get(name, 0.0) for name in PARTS), tuple(slopes))
    groups = []
    for band in range(draw.randrange(1, 5)):
        low = draw.choice((0, 0, 0, 1))
        high = draw.choice((K, K, K, max(low, 2)))
        groups.append(Group(draw.randrange(1, 30), band, draw.choice((0.5, 1.0, 1.0, 3.0)), low, high))
    acceptance = [draw.uniform(0.05, 0.98) for _ in groups]
    left_out_s = draw.choice((0.0, 1e-4)) if least_width is None else 0.0
    priced = Prices(coefficients, 1024, in_force, StepExtras(), left_out_s, least_width, narrowest)
    return groups, lengths(*acceptance), priced


def test_bounds_hold_where_a_position_is_worth_nothing_at_all() -> None:
    """After thousands of rejected drafts a survival vanishes in rounding: such a position ties with forbidden ones."""
    draw, k_max = random.Random(4), 7
    for _ in range(200):
        al = lengths(draw.uniform(0.5, 0.99), draw.uniform(0.5, 0.99), 1e-7, k_max=k_max)
        high = draw.choice((0, 1, 2))
        groups = [Group(draw.choice((1, 9)), 0, 1.0, 0, high), Group(draw.choice((0, 4)), 1, 2.0, 0, k_max)]
        groups.append(Group(draw.choice((0, 1, 9)), 2, 1.0, 0, k_max))
        priced = prices(base=5e-2, slot=0.0, drafter=1e-4, token=draw.choice((1e-7, 1e-5)))
        found = choose(groups, al, priced, near_width=draw.choice((None, 1, 3)))
        assert all(group.low <= k <= group.high for group, k in zip(groups, found, strict=True)), (groups, found)


def rate_of(groups: Sequence[Group], al: np.ndarray, priced: Prices, ks: Sequence[int]) -> float:
    """The weighted tokens per second of these K by group."""
    return worth_of_step(groups, step_of(groups, al, priced, ks))


@pytest.mark.parametrize("objective", Objective)
def test_a_chooser_that_is_kept_chooses_as_a_new_one(objective: Objective) -> None:
    draw = random.Random(2)
    for _ in range(60):
        groups, al, priced = drawn(draw, draw.choice((None, graphs(FULL))))
        kept = Chooser(groups, al, priced, objective)
        for _ in range(5):
            now = [group._replace(decodes=draw.choice((0, 2, 20))) for group in groups]
            now[0] = now[0]._replace(decodes=1)
            near = draw.choice((None, 1, K))
            found = kept.choose([group.decodes for group in now], near)
            assert found == choose(now, al, priced, objective, near)


@pytest.mark.parametrize("positions", [1, 20, 1000])
def test_a_choice_of_some_widths_at_a_time_is_the_same(positions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpilot.engine_adapter.law.choice.POSITIONS_AT_ONCE", positions)
    draw = random.Random(5)
    for _ in range(100):
        groups, al, priced = drawn(draw, draw.choice((None, graphs(FULL))))
        decodes, near = [group.decodes for group in groups], draw.choice((None, 1, K))
        objective, parts = draw.choice([*Objective]), list[int]()
        chooser = Chooser(groups, al, priced, objective)
        found = chooser.choose(decodes, near, lambda parts=parts: parts.append(1))
        assert found == choose(groups, al, priced, objective, near)
        assert parts or all(group.low == group.high for group in groups)


@pytest.mark.parametrize(
    "in_force", [None, graphs(lengths=(1, 2, 3, 5)), graphs(FULL)], ids=["none", "piecewise", "full"]
)
@pytest.mark.parametrize(("least_width", "narrowest"), [(None, 1), (0, 1), (1, 1), (None, K), (0, K), (K, K)])
def test_it_is_within_two_percent_of_the_best_of_all(
    in_force: Graphs | None, least_width: int | None, narrowest: int
) -> None:
    draw, ratios = random.Random(1), []
    for at in range(300):
        groups, al, priced = drawn(draw, in_force, least_width, narrowest)
        allowed = [range(group.low, group.high + 1) for group in groups]
        objective = [*Objective][at % 2]
        found = choose(groups, al, priced, objective)
        assert all(k in own for k, own in zip(found, allowed, strict=True))
        every = steps_of(groups, al, priced, np.array([*itertools.product(*allowed)]))
        best = worth_of_steps(groups, *every, objective).max()
        ratios.append(worth_of_step(groups, step_of(groups, al, priced, found), objective) / best)
    is_plain = least_width is None and narrowest == 1
    assert min(ratios) >= (0.98 if is_plain else 0.96)  # one position fewer may fit into a smaller graph
    assert np.mean(ratios) >= 0.999


@pytest.mark.parametrize(
    ("rows", "least_width", "narrowest"), [(0, 0, 1), (0, 1, 1), (4096, 0, 1), (4096, 0, K), (0, 0, K), (0, K, K)]
)
def test_a_step_is_priced_with_the_slots_that_the_planner_lays_out(rows: int, least_width: int, narrowest: int) -> None:
    """A drafter that runs in every step has slots for all decodes, also for those with K = 0; a block has K_max."""
    planner, al = Planner(K, rows, least_width=least_width, narrowest=narrowest), lengths(0.9, 0.3)
    passes = {"pass": 7e-4} if narrowest == 1 else {}  # a block has none
    priced = prices(least_width=planner.catch_up.width_of_all, narrowest=narrowest, **passes)
    for k in range(K + 1):
        states = decodes(*["json"] * 3, *["code"] * 5)
        plan = planner.plan(states, table(default=0, json=k))
        groups = [Group(3, 0, 1.0, 0, K), Group(5, 1, 1.0, 0, K)]
        seconds = step_of(groups, al, priced, [k, 0]).seconds
        assert seconds == pytest.approx(priced.step_s(8, 8 + 3 * k, plan.slots, plan.width, is_uniform=k == 0))


def test_bounds_hold_also_where_they_do_not_pay() -> None:
    groups = [Group(4, 0, 1.0, 2, 4), Group(4, 1, 1.0, 0, 1), Group(4, 1, 1.0, 3, 3)]
    low, high, pinned = choose(groups, lengths(0.05, 0.99), prices())
    assert (low, high, pinned) == (2, 1, 3)


def test_a_larger_weight_draws_positions_to_its_group() -> None:
    al = lengths(0.6, 0.75)

    def of_weight(weight: float) -> int:
        return choose([Group(16, 0, weight, 0, K), Group(16, 1, 1.0, 0, K)], al, prices(token=2e-4))[0]

    assert of_weight(0.01) < of_weight(10.0)


def test_leaving_out_has_a_price() -> None:
    """A single step would leave a few requests out, which then catch up in a later one."""
    groups, al = [Group(30, 1, 1.0, 0, K), Group(2, 0, 1.0, 0, K)], lengths(0.1, 0.9)
    found = [choose(groups, al, prices(left_out_s=left_out_s, drafter=6e-3, token=1e-4)) for left_out_s in (0.0, 2e-4)]
    assert found == [[K, 0], [K, 1]]


def test_one_k_for_all_wins_where_a_mix_would_lose_its_graph() -> None:
    """60 ms for a piecewise step: a uniform K keeps the FULL graph."""
    groups, al = [Group(8, 0, 1.0, 0, K), Group(8, 1, 1.0, 0, K)], lengths(0.4, 0.95)
    mixed = choose(groups, al, prices())
    assert len(set(mixed)) == 2
    uniform = choose(groups, al, prices(in_force=graphs(lengths=(1, 5)), piecewise=6e-2))
    assert len(set(uniform)) == 1


@pytest.mark.parametrize("objective", Objective)
def test_where_decodes_need_one_k_it_is_the_best_of_those_within_the_bounds_of_each_group(objective: Objective) -> None:
    draw = random.Random(6)
    for _ in range(100):
        in_force = replace(graphs(lengths=(1, 2, 3, 5)), need_one_k=True)
        groups, al, priced = drawn(draw, in_force, draw.choice((None, 0)))
        groups.append(groups[0]._replace(decodes=0))  # for a decode that joins it
        each = [[min(max(k, group.low), group.high) for group in groups] for k in range(K + 1)]
        found = choose(groups, al, priced, objective, near_width=draw.choice((None, 1)))
        assert found in each
        if objective is Objective.THROUGHPUT:
            best = max(rate_of(groups, al, priced, ks) for ks in each)
            assert rate_of(groups, al, priced, found) == pytest.approx(best)


def test_near_the_best_width_a_quick_choice_is_the_same() -> None:
    draw = random.Random(3)
    for _ in range(100):
        groups, al, priced = drawn(draw, None)
        best = choose(groups, al, priced)
        assert choose(groups, al, priced, near_width=max(best)) == best
        quick = choose(groups, al, priced, near_width=1)
        assert max(quick) <= max(2, *(group.low for group in groups))
        assert all(group.low <= k <= group.high for group, k in zip(groups, quick, strict=True))


def test_a_quick_choice_compares_no_drafter_wider_than_the_deepest_draft() -> None:
    """Slots of a drafter of width 6 do not pay for drafts of one token; those of width 1 do."""
    priced, al = prices(slot=3e-4), lengths(0.95)
    drafted = 0
    for n in range(1, 33):
        groups = [Group(n, 0, 1.0, 0, 1)]
        found = choose(groups, al, priced)
        assert choose(groups, al, priced, near_width=K) == found, n
        drafted += found[0]
    assert drafted


@pytest.mark.parametrize("in_force", [None, graphs(FULL)], ids=["none", "full"])
def test_a_group_without_decodes_changes_nothing_and_has_the_k_of_its_like(in_force: Graphs | None) -> None:
    draw = random.Random(2)
    for _ in range(100):
        groups, al, priced = drawn(draw, in_force)
        alone = choose(groups, al, priced)
        empty = [group._replace(decodes=0, tpot_bound_s=1e-9) for group in groups]
        found = choose([*empty, *groups], al, priced)
        assert found[len(groups) :] == alone
        for k, other, group in zip(alone, found, groups, strict=False):
            assert group.low <= other <= group.high
            # within a block of positions that are worth it only together, a padded step may end before the block does
            assert other == k or (in_force and other > k)


@pytest.mark.parametrize("k_max", [1, 2, 3])
def test_a_group_without_decodes_has_the_k_that_would_pay_for_a_decode_that_joins_it(k_max: int) -> None:
    """All positions of a better band come before its own, and taking them does not change the step."""
    groups, al = (
        [Group(count, band, 1.0, 0, k_max) for band, count in enumerate((8, 0, 0))],
        lengths(0.98, 0.9, 0.02, k_max=k_max),
    )
    assert choose(groups, al, prices()) == [k_max, k_max, 0]
    assert choose(groups, al, prices(), Objective.LATENCY) == [k_max, k_max, 0]


def test_a_group_without_decodes_does_not_widen_the_step_by_its_lower_bound() -> None:
    """As the group of a pinned class that has no traffic."""
    draw = random.Random(5)
    for _ in range(100):
        groups, al, priced = drawn(draw, None)
        pinned = Group(0, 0, 1.0, K, K)
        assert choose([pinned, *groups], al, priced) == [K, *choose(groups, al, priced)]
        with_pinned = step_of([pinned, *groups], al, priced, [K, *[0] * len(groups)])
        assert with_pinned.seconds == step_of(groups, al, priced, [0] * len(groups)).seconds


def test_a_group_without_decodes_does_not_widen_a_quick_choice_by_its_upper_bound() -> None:
    draw = random.Random(6)
    for _ in range(200):
        groups, al, priced = drawn(draw, None)
        bound = [group._replace(low=0, high=2) for group in groups]
        found = choose([Group(0, 0, 1.0, 0, K), *bound], al, priced, near_width=K)
        assert found[1:] == choose(bound, al, priced, near_width=K)


@pytest.mark.parametrize("k_max", [0, 1])
def test_the_smallest_engines_have_a_choice_too(k_max: int) -> None:
    assert choose([Group(1, 0, 1.0, 0, k_max)], lengths(0.99, k_max=k_max), prices()) == [k_max]


@pytest.mark.parametrize("in_force", [None, graphs(FULL)], ids=["none", "full"])
@pytest.mark.parametrize("least_width", [None, 0])
def test_with_contexts_of_different_price_it_is_within_two_percent_of_the_best_of_all(
    in_force: Graphs | None, least_width: int | None
) -> None:
    draw, ratios, unlike = random.Random(9), [], 0
    for _ in range(200):
        groups, al, priced = drawn(draw, in_force, least_width)
        groups = [group._replace(extra_token_s=draw.choice((-1e-5, 0.0, 2e-4, 2e-3))) for group in groups]
        allowed = [range(group.low, group.high + 1) for group in groups]
        found = choose(groups, al, priced)
        assert all(k in own for k, own in zip(found, allowed, strict=True))
        best = max(rate_of(groups, al, priced, ks) for ks in itertools.product(*allowed))
        ratios.append(rate_of(groups, al, priced, found) / best)
        unlike += found != choose([group._replace(extra_token_s=0.0) for group in groups], al, priced)
    assert min(ratios) >= (0.98 if least_width is None else 0.96)
    assert np.mean(ratios) >= 0.999
    assert unlike > 50


def test_a_request_that_is_alike_but_for_its_context_gets_a_smaller_k() -> None:
    groups = [Group(15, 0, 1.0, 0, K), Group(1, 0, 1.0, 0, K, extra_token_s=2e-3)]
    assert choose(groups, lengths(0.8), prices()) == [K, 0]

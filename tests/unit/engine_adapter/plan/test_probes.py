"""Case 5 of the planner: which requests are probed, when and how deep; test_probe_budget.py has what it costs."""

import pytest

from specpilot.engine_adapter.plan.step_room import StepRoom
from specpilot.policy.bands import BANDS
from tests.support.k_tables import table
from tests.support.planning import K_MAX, ROWS, UP, accept, decodes, outcome
from tests.support.probe_prices import OFTEN, Planner


def test_a_request_without_verified_drafts_is_probed_regularly_as_deep_as_others_are_drafted_for() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", "chat")
    accept(states, 0.95, 0.05)
    depths = []
    for _ in range(3 * OFTEN):
        planner.plan(states, table(1.0, default=UP))
        depths.append(states[1].k)
        if states[1].k:
            outcome(states[1], 0)
    probed = [step for step, depth in enumerate(depths) if depth]
    gap = probed[1] - probed[0]
    assert 1 < gap < OFTEN
    assert probed == list(range(probed[0], 3 * OFTEN, gap))
    assert set(depths) == {0, 7}


@pytest.mark.parametrize(("rows", "probed"), [(0, [True] * 3), (ROWS, [True, False, False])])
def test_where_all_need_one_k_all_are_probed_together_unless_they_would_have_to_catch_up(
    rows: int, probed: list[bool]
) -> None:
    planner, states = Planner(K_MAX, rows, one_k=True), decodes(*["chat"] * 3)
    accept(states, *[0.05] * 3)
    for state in states[1:]:
        state.drafted_at = 20 * OFTEN  # only the first one is due
    while not any(state.k for state in states):
        planner.plan(states, table(0.05, default=UP))
    assert [state.k > 0 for state in states] == probed
    assert len({state.k for state in states} - {0}) == 1


def test_while_probes_are_accepted_whole_the_next_follows_at_once_up_to_the_highest_band() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", "chat")
    accept(states, 0.95, 0.1)  # band 1: K is 0 there and in all above
    k = table(1.0, default=[7] + [0] * 7, json=7)
    depths = []
    for _ in range(OFTEN):
        planner.plan(states, k)
        depths.append(states[1].k)
        if states[1].k:
            outcome(states[1], states[1].k)
    first = depths.index(7)
    in_a_row = depths[first:].index(0)
    assert in_a_row >= 2
    assert depths[first + in_a_row : first + in_a_row + 10] == [0] * 10
    assert states[1].acceptance.band == BANDS - 1


def test_accepted_probes_of_a_request_that_became_predictable_end_in_a_scheduled_k() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", "chat")
    accept(states, 0.95, 0.05)
    steps = 0
    while states[1].chosen_k == 0:
        planner.plan(states, table(1.0, default=UP))
        if states[1].k:
            outcome(states[1], states[1].k)
        steps += 1
    assert steps < 10


@pytest.mark.parametrize(("accepted", "is_refused"), [(0, False), (1, True)])
def test_a_probe_that_is_rejected_or_refused_is_not_followed(accepted: int, *, is_refused: bool) -> None:
    (state,) = decodes("chat")
    state.note(1, accepted, is_probe=True, is_refused=is_refused)
    assert not state.needs_follow_up


def test_no_probe_is_deeper_than_the_largest_k_of_its_classs_rows() -> None:
    """A class bounded to K 2 has no row above it, whatever K_max is."""
    planner, states = Planner(K_MAX, ROWS), decodes("json", "chat")
    depths = set()
    for _ in range(OFTEN):
        accept(states, 0.95, 0.0)
        planner.plan(states, table(1.0, default=[0] * 7 + [2], json=7))
        depths.add(states[1].k)
    assert depths == {0, 2}


def test_probes_go_no_deeper_than_a_ceiling_and_at_0_there_are_none() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", "chat", "chat")
    states[1].ceiling, states[2].ceiling = 3, 0
    depths: list[set[int]] = [set(), set(), set()]
    for _ in range(64):
        accept(states, 0.95, 0.0, 0.0)
        planner.plan(states, table(1.0, default=UP))
        for state, found in zip(states, depths, strict=True):
            found.add(state.k)
            if state.k:
                outcome(state, state.k)
    assert depths == [{7}, {3}, {0}]


@pytest.mark.parametrize(("positions", "waiting", "width"), [(1, 0, 4), (58, 0, 3), (63, 0, 1), (1, 40, 0)])
def test_probes_go_no_deeper_than_fits(positions: int, waiting: int, width: int) -> None:
    planner, states = Planner(K_MAX, ROWS, room=StepRoom(64, 64, is_parallel=True)), decodes("chat", "chat")
    states[0].needs_follow_up, states[1].positions = True, positions
    states[0].drafted_at = states[1].drafted_at = 0
    plan = planner.plan(states, table(1.0, default=[0] * (BANDS - 1) + [7]), waiting=waiting)
    assert (plan.width, planner.next_width) == (width, 0)


def test_a_probe_does_not_widen_a_drafter_that_always_runs() -> None:
    """Each request would get more slots for it, and nothing would pay for them."""
    planner, states = Planner(K_MAX, ROWS, least_width=1), decodes("chat", "chat")
    depths = set[int]()
    for _ in range(OFTEN):
        accept(states, 0.0, 0.0)
        planner.plan(states, table(0.5, default=UP))
        depths |= {state.k for state in states}
    assert depths == {0, 1}


@pytest.mark.parametrize(
    "k",
    [table(1.0, default=0, json=7), table(1.0, default=UP, json=7, chat=0), table(0.0, default=UP, json=7)],
    ids=["one row", "one row of the class", "ratio 0"],
)
def test_a_class_with_one_row_for_all_bands_is_pinned_and_a_ratio_of_0_switches_probes_off(k: object) -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", "chat")
    accept(states, 0.95, 0.05)
    for _ in range(128):
        planner.plan(states, k)
        assert [state.k for state in states] == [7, 0]


def test_there_are_no_probes_while_their_prices_are_unknown() -> None:
    planner, states = Planner(K_MAX, ROWS, prices=None), decodes("json", "chat")
    accept(states, 0.95, 0.05)
    for _ in range(OFTEN):
        planner.plan(states, table(1.0, default=UP))
        assert [state.k for state in states] == [7, 0]

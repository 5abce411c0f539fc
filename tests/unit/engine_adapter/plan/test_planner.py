"""Cases 1 to 4 of the planner; the others are in test_probes.py, test_probe_budget.py and test_catch_up.py."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.plan.planner import Planner as PlainPlanner
from specpilot.engine_adapter.plan.speculation_control import KTable, Source
from specpilot.engine_adapter.plan.step_room import StepRoom
from specpilot.policy.bands import BANDS
from tests.support.k_tables import table
from tests.support.planning import K_MAX, ROWS, UP, accept, decodes, request
from tests.support.probe_prices import Planner


def test_two_classes_in_one_batch_get_their_own_k_and_the_drafter_the_larger_width() -> None:
    states = decodes("code", "chat")
    plan = Planner(K_MAX, ROWS).plan(states, table(default=0, code=5, chat=2))
    assert [state.k for state in states] == [5, 2]
    assert (plan.width, plan.slots) == (5, 10)


def test_k_follows_the_band_and_the_band_follows_the_outcomes() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("chat", "chat")
    accept(states, 0.95, 0.1)
    planner.plan(states, table(default=UP))
    assert [(state.k, state.band) for state in states] == [(7, 7), (0, 1)]
    for _ in range(3):
        states[0].note(7, 0, is_probe=False, is_refused=False)
    for _ in range(4):
        states[1].note(3, 3, is_probe=False, is_refused=False)
    planner.plan(states, table(default=UP))
    assert [(state.k, state.band) for state in states] == [(3, 5), (3, 5)]


def test_an_engine_that_cannot_speculate_never_drafts() -> None:
    states = decodes("chat")
    assert PlainPlanner(0, ROWS).plan(states, table(default=0)).width == 0
    assert states[0].k == 0


def test_where_vllm_cannot_draft_k_is_0_whatever_the_schedule_says() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("chat")
    seven = table(0.5, default=7)
    assert planner.plan(states, seven, can_draft=False).width == 0
    assert states[0].k == 0
    assert planner.plan(states, seven).width == 7


def test_a_ceiling_cuts_the_schedules_k_and_the_width_follows() -> None:
    states = decodes("code", "code", "chat")
    states[0].ceiling, states[2].ceiling = 2, 0
    assert Planner(K_MAX, ROWS).plan(states[::2], table(default=4, code=5)).width == 2
    assert [(state.k, state.chosen_k) for state in states[::2]] == [(2, 2), (0, 0)]
    assert Planner(K_MAX, ROWS).plan(states, table(default=4, code=5)).width == 5
    assert [state.k for state in states] == [2, 5, 0]
    assert Planner(K_MAX, ROWS).plan(states[2:], table(default=4)).width == 0


def test_k_is_cut_so_that_all_running_requests_fit_into_the_next_step() -> None:
    """Also those that prefill, and those that had no token in this one: 2 n K positions at most."""
    room = StepRoom(64, 64, is_parallel=True)
    planner, states, chunk = Planner(K_MAX, ROWS, room=room), decodes(*["chat"] * 6), request("chunk")
    assert planner.plan(states, table(default=7)).width == 64 // (2 * 6)
    assert {(state.k, state.chosen_k) for state in states} == {(5, 5)}
    assert planner.plan(states, table(default=7), prefilling=[chunk]).width == 64 // (2 * 7)
    assert planner.plan(states, table(default=7), prefilling=[chunk], waiting=9).width == 64 // (2 * 16)
    assert planner.plan(states, table(default=7), waiting=60).width == 0
    assert planner.plan(states, table(default=2)).width == 2


def test_drafts_are_no_wider_than_fits_beside_the_step_and_the_next_keeps_room_for_them() -> None:
    planner, states = Planner(K_MAX, ROWS, room=StepRoom(64, 64, is_parallel=True)), decodes("chat", "chat")
    states[1].positions = 57
    plan = planner.plan(states, table(default=7))
    assert (plan.width, plan.slots, planner.next_width) == (4, 8, 7)
    assert [(state.k, state.chosen_k) for state in states] == [(4, 7), (4, 7)]
    states[1].positions = 63
    assert planner.plan(states, table(default=7)).width == 1
    states[1].positions = 1
    assert planner.plan(states, table(default=7)).width == 7


@given(
    st.integers(1, 40),
    st.integers(1, 20),
    st.lists(
        st.tuples(
            st.integers(1, 6), st.booleans(), st.integers(0, 2), st.integers(0, 7), st.booleans(), st.integers(0, 7)
        ),
        max_size=60,
    ),
    st.floats(0, 1),
)
def test_every_draft_comes_from_a_whole_cache_and_the_rows_never_overflow(
    limit: int, per_step: int, steps: list[tuple[int, bool, int, int, bool, int]], probe_ratio: float
) -> None:
    """Replay the worker's rows, and check that every draft sees all positions before it."""
    planner, states = Planner(K_MAX, limit, per_step), decodes(*["chat", "code"] * 3)
    states[4].ceiling, states[5].ceiling = 0, 2
    rows = {state.request_id: 0 for state in states}
    for running, has_prefill, code, chat, can_draft, accepted in steps:
        batch, prefilling = states[:running], states[running:] if has_prefill else []
        for state in prefilling:
            if state.decoding:  # preempted
                state.restart()
                rows[state.request_id] = 0
        for state in (*batch, *prefilling):
            state.decoding = state in batch
            state.positions = 9 if state in prefilling else 1 + state.k
        k = table(probe_ratio, default=0, code=code, chat=[chat * (band > 4) for band in range(BANDS)])
        plan = planner.plan(batch, k, can_draft=can_draft, prefilling=prefilling)
        assert can_draft or plan.width == 0
        assert set(plan.catch_up) <= {name for name, count in rows.items() if count}
        rows.update(dict.fromkeys(plan.catch_up, 0))
        for state in (*batch, *prefilling):
            name = state.request_id
            assert not (state.positions > 1 and rows[name]), "its new positions would be read before its rows"
            assert state.k <= min(plan.width, state.ceiling)
            assert not (state.k and rows[name])
            if plan.width == 0 or name in plan.left_out:
                assert plan.width == 0 or state.positions == 1
                rows[name] += 1
            else:
                assert not rows[name], "the drafter would run over positions that follow a hole"
        drafted = [state for state in (*batch, *prefilling) if state.request_id not in plan.left_out]
        assert plan.slots == plan.width * len(drafted)
        assert plan.width == max((state.k for state in batch), default=0)
        in_step = sum(rows[state.request_id] for state in (*batch, *prefilling))
        assert in_step <= max(limit, len(states))
        assert [state.backlog for state in states] == list(rows.values())
        for state in batch:
            if state.k:
                state.note(state.k, min(state.k, accepted), is_probe=state.k > state.chosen_k, is_refused=False)


@pytest.mark.parametrize("k_of_last", [(7, 0), (7, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0, 7)])
def test_the_law_hears_of_the_rows_that_really_catch_up(k_of_last: tuple[int, ...]) -> None:
    """A request that verifies a draft in the step that leaves it out has no row of this step."""
    states, reported, read = decodes(*(["chat"] * 4)), [0], 0
    chosen = [7, 7, 7, 0]
    law: Any = SimpleNamespace(k_of=lambda _: list(chosen), note_plan=lambda *counts: reported.append(counts[2]))
    by_law, planner = KTable(Source.LAW, {"default": (3,) * BANDS}, 0.0, {}, law), Planner(K_MAX, ROWS)
    for step in range(40):
        chosen[3] = k_of_last[step % len(k_of_last)]
        read += planner.plan(states, by_law).read
        for state in states:
            state.positions = 1 + state.k
    assert sum(reported) == read

"""Case 6 of the planner: backlogs, requests that are left out, deferred prompts."""

import pytest

from specpilot.engine_adapter.plan.step_plan import StepPlan
from tests.support.k_tables import table
from tests.support.planning import K_MAX, ROWS, UP, accept, backlogs, decode, decodes, plan_at_0, prompt, request
from tests.support.probe_prices import Planner

SHORT, LONG = 9, 400
"""Tokens of a prompt that is deferred where nothing is drafted, and of one that is not."""


# A. Steps that draft


def test_a_request_at_k_0_takes_no_slots_where_others_are_drafted_for() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("code", "chat", "chat")
    for step in range(1, 6):
        plan = planner.plan(states, table(default=0, code=5))
        assert (plan.slots, plan.left_out, plan.read) == (5, ("1", "2"), 0)
        assert backlogs(states) == [0, step, step]
    plan = planner.plan(states, table(default=2, code=5))
    assert (plan.slots, plan.catch_up, plan.left_out, plan.read) == (15, ("1", "2"), (), 10)
    assert backlogs(states) == [0, 0, 0]


def test_a_request_with_several_positions_in_the_step_is_never_left_out() -> None:
    """A prompt, the rest of a prompt, and verified drafts."""
    planner, states, chunk = Planner(K_MAX, ROWS), decodes("code", "chat", "chat"), request("chunk")
    states[1].positions, chunk.positions = 8, 30
    k = table(default=0, code=3)
    assert planner.plan(states, k, prefilling=[chunk]).left_out == ("2",)
    assert backlogs([*states, chunk]) == [0, 0, 1, 0]
    chunk.positions = 1
    assert planner.plan(states[:1], k, prefilling=[chunk]).left_out == ("chunk",)


def test_the_drafter_stops_at_once_and_requests_catch_up_when_k_rises() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("chat", "chat")
    plan = plan_at_0(planner, states, 20)
    assert (plan.width, plan.read, backlogs(states)) == (0, 0, [20, 20])
    plan = planner.plan(states, table(default=4))
    assert (plan.width, plan.catch_up, plan.read) == (4, ("0", "1"), 40)
    assert [(state.k, state.backlog) for state in states] == [(4, 0), (4, 0)]
    assert planner.plan(states, table(default=4)).read == 0


def test_a_long_backlog_is_spread_over_steps_and_a_postponed_request_is_not_drafted_for() -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=10), decodes("chat", "chat", "chat")
    plan_at_0(planner, states[:1], 2)
    plan_at_0(planner, states[:2], 1)
    plan_at_0(planner, states, 5)
    assert backlogs(states) == [8, 6, 5]
    drafted = []
    for _ in range(3):
        plan = planner.plan(states, table(default=4))
        drafted.append([state.k for state in states])
        assert [state.chosen_k for state in states] == [4, 4, 4]
        assert plan.read <= 10
        assert set(plan.left_out) == {state.request_id for state in states if state.k == 0}
    assert drafted == [[0, 0, 4], [0, 4, 4], [4, 4, 4]]  # smallest backlog first


def test_a_postponed_request_does_not_make_the_step_wider() -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=4), decodes("code", "chat")
    plan_at_0(planner, states[:1], 3)
    plan_at_0(planner, states)
    plan = planner.plan(states, table(default=2, code=7))
    assert (plan.width, plan.slots, plan.left_out) == (2, 2, ("0",))


def test_backlogs_of_requests_that_are_left_out_stay_within_their_bounds() -> None:
    planner, states = Planner(K_MAX, backlog_rows=10, catch_up_rows=4), decodes("code", "chat", "chat")
    k = table(default=0, code=3)
    caught_up = set[str]()
    for _ in range(20):
        plan = planner.plan(states, k)
        caught_up |= set(plan.catch_up)
        assert sum(backlogs(states)) <= 10
        assert plan.left_out == ("1", "2")
    assert caught_up == {"1", "2"}


# B. Steps that draft nothing


def test_prompts_and_verified_drafts_are_read_at_k_0_except_their_last_position() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("chat", "chat")
    plan_at_0(planner, states[:1], 5)
    states[1].positions = 9
    assert plan_at_0(planner, states).read == 8
    assert backlogs(states) == [6, 1]


def test_a_short_prompt_is_held_where_nothing_is_drafted_and_a_long_one_is_read() -> None:
    planner, states = Planner(K_MAX, ROWS), [prompt("short", SHORT), prompt("long", LONG)]
    plan = plan_at_0(planner, states)
    assert (plan.deferred, plan.read) == (("short",), LONG - 1)
    assert backlogs(states) == [SHORT, 1]
    decode(states)
    plan = planner.plan(states, table(default=2))
    assert (set(plan.catch_up), plan.read) == ({"short", "long"}, SHORT + 1)


def test_where_something_is_drafted_a_prompt_goes_through_the_drafter_with_it() -> None:
    planner, states = Planner(K_MAX, ROWS), [prompt("short", SHORT), request("other", "code")]
    plan = planner.plan(states, table(default=0, code=2))
    assert (plan.deferred, plan.slots) == ((), 4)
    assert backlogs(states) == [0, 0]


def test_many_held_prompts_go_through_the_drafter_together_in_the_next_step() -> None:
    for prompts, is_enough in ((2, False), (40, True)):
        planner, states = Planner(K_MAX, ROWS), [prompt(str(number), SHORT) for number in range(prompts)]
        plan_at_0(planner, states)
        decode(states)
        plan = plan_at_0(planner, states)
        assert len(plan.catch_up) == prompts * is_enough
        assert backlogs(states) == [1 if is_enough else SHORT + 1] * prompts


def test_a_held_prompt_waits_for_a_bounded_number_of_steps_and_the_steps_until_then_repeat() -> None:
    planner, states = Planner(K_MAX, ROWS), [prompt("only", SHORT)]
    plan_at_0(planner, states)
    decode(states)
    plan_at_0(planner, states)
    ahead = planner.identical_steps_ahead(states, table(default=0))
    assert 1 < ahead < 100
    planner.skip_steps(states, table(default=0), ahead)
    plan = plan_at_0(planner, states)
    assert (plan.catch_up, plan.read) == (("only",), SHORT + 1 + ahead)
    assert plan_at_0(planner, states).catch_up == ()


def test_prompts_are_held_only_within_half_of_the_memory_for_rows() -> None:
    planner, states = Planner(K_MAX, backlog_rows=40), [prompt("first", 15), prompt("second", 15)]
    assert plan_at_0(planner, states).deferred == ("first",)


def test_a_prompt_in_chunks_catches_up_before_its_next_chunk_is_read() -> None:
    planner, (state,) = Planner(K_MAX, ROWS), decodes("chat")
    state.positions = 30
    plan = planner.plan([], table(default=0), prefilling=[state])
    assert (plan.catch_up, plan.read) == ((), 29)
    plan = planner.plan([], table(default=0), prefilling=[state])
    assert (plan.catch_up, plan.read) == (("0",), 30)
    plan = planner.plan([state], table(default=3))
    assert (plan.catch_up, plan.read) == (("0",), 1)


def test_where_vllm_cannot_draft_every_request_leaves_a_position() -> None:
    planner, states, chunk = Planner(K_MAX, ROWS), decodes("chat"), [request("chunk")]
    seven = table(probe_ratio=0.5, default=7)
    planner.plan(states, seven, can_draft=False)
    assert backlogs(states) == [1]
    states[0].positions = chunk[0].positions = 8
    plan = planner.plan(states, seven, can_draft=False, prefilling=chunk)
    assert (plan.catch_up, plan.read) == (("0",), 15)
    assert backlogs([*states, *chunk]) == [1, 1]
    assert planner.plan(states, seven).catch_up == ("0",)


# C. Bounds


def test_the_largest_backlog_catches_up_before_more_rows_wait_than_there_is_memory_for() -> None:
    planner, states = Planner(K_MAX, backlog_rows=10, catch_up_rows=4), decodes("chat", "chat", "chat")
    plan_at_0(planner, states[:1], 2)
    assert plan_at_0(planner, states, 2).catch_up == ()
    assert backlogs(states) == [4, 2, 2]
    assert plan_at_0(planner, states).catch_up == ("0",)
    assert backlogs(states) == [1, 3, 3]


def test_no_backlog_grows_beyond_one_step() -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=8), decodes("chat", "chat")
    plan_at_0(planner, states[:1], 5)
    assert plan_at_0(planner, states, 3).catch_up == ()
    assert plan_at_0(planner, states).catch_up == ("0",)
    assert backlogs(states) == [1, 4]


def test_a_backlog_of_one_step_is_read_although_others_catch_up_too() -> None:
    """Otherwise it grows while in each step another request's K rises."""
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=8), decodes("chat", *["json"] * 4)
    plan_at_0(planner, states[:1], 8)
    for state in states[1:]:
        state.backlog = 2
        assert state.request_id in planner.plan([states[0], state], table(default=0, json=3)).catch_up
        assert states[0].backlog <= 8


def test_where_k_rises_for_many_with_full_backlogs_a_step_reads_no_more_than_one_of_them() -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=64), decodes(*["chat"] * 8)
    for state in states:
        state.backlog = 64
    plans = [planner.plan(states, table(default=4)) for _ in range(10)]
    assert max(plan.read for plan in plans) <= 64 + 10
    assert [state.k for state in states] == [4] * 8


def test_of_requests_with_equal_backlogs_one_a_step_catches_up_while_the_others_grow() -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=8), decodes("chat", "chat", "chat")
    plan_at_0(planner, states, 8)
    plans = [plan_at_0(planner, states) for _ in states]
    assert [(plan.catch_up, plan.read) for plan in plans] == [(("0",), 8), (("1",), 9), (("2",), 10)]


def test_the_rows_of_requests_that_ended_do_not_count() -> None:
    planner = Planner(K_MAX, backlog_rows=10)
    plan_at_0(planner, decodes("chat"), 9)
    assert plan_at_0(planner, decodes("chat"), 10).catch_up == ()


def test_drafts_for_requests_at_k_0_do_not_postpone_a_scheduled_draft() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", *["chat"] * 4)
    accept(states, 0.95, *[0.05] * 4)
    for state, backlog in zip(states, (1000, 45, 45, 45, 45), strict=True):
        state.backlog = backlog
    planner.plan(states, table(0.005, default=UP))
    assert [state.k for state in states] == [7, 0, 0, 0, 0]


# A drafter that may not fall behind


def test_a_drafter_that_may_not_fall_behind_runs_in_every_step_and_catches_up_at_once() -> None:
    planner, states = Planner(K_MAX, backlog_rows=0, least_width=1), decodes("chat")
    for _ in range(5):
        plan = plan_at_0(planner, states)
        assert (plan.width, plan.left_out) == (1, ())
    assert planner.plan(states, table(default=5)).width == 5
    assert planner.plan(states, table(default=5), can_draft=False).width == 0
    assert planner.plan(states, table(default=5), can_draft=False).catch_up == ("0",)
    plan = plan_at_0(planner, states)
    assert (plan.width, plan.catch_up) == (1, ("0",))


def test_a_drafter_that_reads_every_step_itself_has_no_backlog_and_no_least_width() -> None:
    planner, states = Planner(K_MAX, backlog_rows=0), decodes("chat", "chat")
    for _ in range(5):
        assert plan_at_0(planner, states) == StepPlan(0)
    assert planner.plan([prompt("short", SHORT), *states], table(default=0)) == StepPlan(0)
    planner.skip_steps(states, table(default=0), planner.identical_steps_ahead(states, table(default=0)))
    plan = planner.plan(states, table(default=5))
    assert (plan.width, plan.slots, plan.catch_up, plan.left_out) == (5, 10, (), ())
    states[0].stated_ceiling = states[0].ceiling = 0
    plan = planner.plan(states, table(default=5))
    assert ([state.k for state in states], plan.slots, plan.left_out) == ([0, 5], 10, ())


def test_a_block_is_as_wide_at_any_k_and_only_requests_with_k_above_0_have_one() -> None:
    planner, states = Planner(K_MAX, ROWS, narrowest=K_MAX), decodes("code", "chat", "chat")
    plan = planner.plan(states, table(default=0, code=2))
    assert [state.k for state in states] == [2, 0, 0]
    assert (plan.width, plan.slots, plan.left_out) == (K_MAX, K_MAX, ("1", "2"))
    plan = plan_at_0(planner, states)
    assert (plan.width, plan.slots, backlogs(states)) == (0, 0, [1, 2, 2])
    plan = planner.plan(states, table(default=1))
    assert (plan.width, plan.slots, plan.catch_up) == (K_MAX, 3 * K_MAX, ("0", "1", "2"))


def test_a_drafter_that_may_not_fall_behind_holds_no_prompt() -> None:
    planner = Planner(K_MAX, backlog_rows=0, least_width=1)
    plan = planner.plan([prompt("short", SHORT)], table(default=0), can_draft=False)
    assert (plan.deferred, plan.read) == ((), SHORT - 1)


@pytest.mark.parametrize("least", [1, K_MAX])
def test_a_rank_in_lockstep_drafts_in_every_step_and_reads_nothing_late(least: int) -> None:
    planner, states = Planner(K_MAX, backlog_rows=0, least_width=least, in_lockstep=True), decodes("chat", "chat")
    for can_draft in (True, False, True):
        plan = planner.plan([*states, prompt("short", SHORT)], table(default=0), can_draft=can_draft)
        assert plan == StepPlan(least, plan.slots)
        assert backlogs(states) == [0, 0]
    assert planner.plan(states, table(default=2)).width == max(2, least)

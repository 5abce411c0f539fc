from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.evidence.acceptance import kind_of
from specpilot.engine_adapter.plan.catch_up import HELD_PROMPT, HELD_STEPS, HELD_TOGETHER
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.probes import FIRST_DRAFT_ROWS, PROBE_AFTER, PROMPT_SHARE, SEQUENTIAL_PROBE
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.plan.token_budget import TokenBudget
from specpilot.policy.bands import BANDS, band_of
from tests.support.k_tables import by_load, table
from tests.support.probe_prices import DEMO, Planner

K_MAX = 7
ROWS = 4096
DRAFTING_STEP, VERIFYING_STEP, POSITION_STEP, TOKEN_STEP = DEMO


def decoding(*classes: str) -> list[DraftState]:
    return [state(str(number), name) for number, name in enumerate(classes)]


def state(name: str, traffic_class: str) -> DraftState:
    return DraftState(name, kind_of(traffic_class, 0.0, is_structured=False))


def run_dark(planner: Planner, states: list[DraftState], steps: int) -> StepPlan:
    plan = StepPlan(0)
    for _ in range(steps):
        plan = planner.plan(states, table(default=0))
    return plan


def backlogs(states: list[DraftState]) -> list[int]:
    return [state.backlog for state in states]


def test_two_classes_in_one_batch_get_their_own_k_and_the_drafter_the_larger_width() -> None:
    states = decoding("code", "chat")
    plan = Planner(K_MAX, ROWS).plan(states, table(default=0, code=5, chat=2))
    assert [state.k for state in states] == [5, 2]
    assert plan == StepPlan(5, slots=10)


def test_a_request_at_k_0_takes_no_slots_where_others_are_drafted_for() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("code", "chat", "chat")
    for step in range(1, 6):
        assert planner.plan(states, table(default=0, code=5)) == StepPlan(5, 5, left_out=("1", "2"))
        assert backlogs(states) == [0, step, step]
    assert planner.plan(states, table(default=2, code=5)) == StepPlan(5, 15, ("1", "2"), read=10)
    assert backlogs(states) == [0, 0, 0]


def test_a_request_that_comes_with_several_positions_is_in_the_drafters_batch_whatever_its_k() -> None:
    """A prompt, what it has left to prefill, and verified drafts."""
    planner, states, chunk = Planner(K_MAX, ROWS), decoding("code", "chat", "chat"), state("chunk", "chat")
    states[1].positions, chunk.positions = 8, 30
    k = table(default=0, code=3)
    assert planner.plan(states, k, prefilling=[chunk]) == StepPlan(3, 9, left_out=("2",))
    assert backlogs([*states, chunk]) == [0, 0, 1, 0]
    chunk.positions = 1
    assert planner.plan(states[:1], k, prefilling=[chunk]) == StepPlan(3, 3, left_out=("chunk",))


def test_who_waits_to_catch_up_does_not_make_the_step_wider() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=4), decoding("code", "chat")
    run_dark(planner, states[:1], 3)
    run_dark(planner, states, 1)
    assert planner.plan(states, table(default=2, code=7)) == StepPlan(2, 2, ("1",), ("0",), read=1)


def test_rows_of_those_left_out_stay_within_their_bounds_too() -> None:
    planner, states = Planner(K_MAX, rows=10, rows_per_step=4), decoding("code", "chat", "chat")
    k = table(default=0, code=3)
    plans = [planner.plan(states, k) for _ in range(6)]
    assert [plan.catch_up for plan in plans] == [(), (), (), (), ("1",), ("2",)]
    assert [plan.left_out for plan in plans] == [("1", "2")] * 6
    assert backlogs(states) == [0, 2, 1]


def test_the_drafter_stops_at_once_and_catches_up_when_k_rises() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    assert run_dark(planner, states, 20) == StepPlan(width=0)
    assert backlogs(states) == [20, 20]
    assert planner.plan(states, table(default=4)) == StepPlan(4, 8, ("0", "1"), read=40)
    assert [(state.k, state.backlog) for state in states] == [(4, 0), (4, 0)]
    assert planner.plan(states, table(default=4)) == StepPlan(4, 8)


def test_prompts_and_verified_drafts_are_read_at_k_0_but_for_their_last_position() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    run_dark(planner, states[:1], 5)
    states[1].positions = 9
    assert planner.plan(states, table(default=0)) == StepPlan(0, read=8)
    assert backlogs(states) == [6, 1]


def prompt(name: str, tokens: int) -> DraftState:
    made = state(name, "chat")
    made.positions, made.is_text_prompt = tokens, True
    return made


def decode(states: list[DraftState]) -> None:
    """From now on each request has one token a step."""
    for item in states:
        item.positions, item.is_text_prompt = 1, False


def test_a_short_prompt_waits_as_rows_where_nothing_is_drafted_and_a_long_one_does_not() -> None:
    planner, states = Planner(K_MAX, ROWS), [prompt("short", HELD_PROMPT), prompt("long", HELD_PROMPT + 1)]
    plan = planner.plan(states, table(default=0))
    assert plan == StepPlan(0, read=HELD_PROMPT, held=("short",))
    assert backlogs(states) == [HELD_PROMPT, 1]
    decode(states)
    assert planner.plan(states, table(default=2)) == StepPlan(2, 4, ("long", "short"), read=HELD_PROMPT + 1)


def test_where_something_is_drafted_a_prompt_goes_through_the_drafter_with_it() -> None:
    planner, states = Planner(K_MAX, ROWS), [prompt("short", 9), state("other", "code")]
    assert planner.plan(states, table(default=0, code=2)) == StepPlan(2, 4)
    assert backlogs(states) == [0, 0]


def test_held_prompts_go_through_the_drafter_together_when_they_are_enough() -> None:
    planner, states = Planner(K_MAX, ROWS), list[DraftState]()
    caught_up = []
    for number in range(HELD_TOGETHER + 1):
        states.append(prompt(str(number), 9))
        caught_up.append(planner.plan(states, table(default=0)).catch_up)
        decode(states)
    assert caught_up[:-1] == [()] * HELD_TOGETHER
    assert caught_up[-1] == tuple(map(str, range(HELD_TOGETHER)))
    assert backlogs(states) == [1] * HELD_TOGETHER + [9]


def test_a_held_prompt_waits_for_a_bounded_number_of_steps() -> None:
    planner, states = Planner(K_MAX, ROWS), [prompt("only", 9)]
    planner.plan(states, table(default=0))
    decode(states)
    plans = [planner.plan(states, table(default=0)) for _ in range(HELD_STEPS + 1)]
    assert [bool(plan.catch_up) for plan in plans] == [False] * (HELD_STEPS - 1) + [True, False]
    assert plans[HELD_STEPS - 1] == StepPlan(0, 0, ("only",), read=9 + HELD_STEPS - 1)


def test_the_steps_until_a_held_prompt_is_due_are_the_most_that_repeat() -> None:
    planner, states = Planner(K_MAX, ROWS), [prompt("only", 9)]
    planner.plan(states, table(default=0))
    decode(states)
    planner.plan(states, table(default=0))
    ahead = planner.identical_steps_ahead(states, table(default=0))
    assert ahead == HELD_STEPS - 2
    planner.skip_steps(states, table(default=0), ahead)
    assert planner.plan(states, table(default=0)).catch_up == ("only",)


def test_prompts_are_held_only_within_half_of_the_memory_for_rows() -> None:
    planner, states = Planner(K_MAX, rows=40), [prompt("first", 15), prompt("second", 15)]
    assert planner.plan(states, table(default=0)) == StepPlan(0, read=14, held=("first",))


def test_a_drafter_that_runs_in_every_step_holds_no_prompt() -> None:
    planner = Planner(K_MAX, rows=0, least_width=1)
    assert planner.plan([prompt("short", 9)], table(default=0), can_draft=False) == StepPlan(0, read=8)


def test_a_prompt_in_chunks_reads_what_the_chunk_before_left_first() -> None:
    planner, (state,) = Planner(K_MAX, ROWS), decoding("chat")
    state.positions = 30
    assert planner.plan([], table(default=0), prefilling=[state]) == StepPlan(0, read=29)
    assert planner.plan([], table(default=0), prefilling=[state]) == StepPlan(0, 0, ("0",), read=30)
    assert planner.plan([state], table(default=3)) == StepPlan(3, 3, ("0",), read=1)


def test_those_with_most_rows_catch_up_before_more_wait_than_may() -> None:
    planner, states = Planner(K_MAX, rows=10, rows_per_step=4), decoding("chat", "chat", "chat")
    run_dark(planner, states[:1], 2)
    assert run_dark(planner, states, 2) == StepPlan(0)
    assert backlogs(states) == [4, 2, 2]
    assert run_dark(planner, states, 1) == StepPlan(0, 0, ("0",), read=4)
    assert backlogs(states) == [1, 3, 3]


def test_no_request_leaves_more_than_one_step_can_catch_up_with() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=8), decoding("chat", "chat")
    run_dark(planner, states[:1], 5)
    assert run_dark(planner, states, 3) == StepPlan(0)
    assert run_dark(planner, states, 1) == StepPlan(0, 0, ("0",), read=8)
    assert backlogs(states) == [1, 4]


def test_of_requests_that_leave_as_many_one_a_step_catches_up_while_the_others_rows_grow() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=8), decoding("chat", "chat", "chat")
    run_dark(planner, states, 8)
    assert [run_dark(planner, states, 1) for _ in states] == [
        StepPlan(0, 0, ("0",), read=8),
        StepPlan(0, 0, ("1",), read=9),
        StepPlan(0, 0, ("2",), read=10),
    ]
    run_dark(planner, states, 5)
    assert backlogs(states) == [8, 7, 6]
    assert [planner.plan(states, table(default=4)) for _ in states] == [
        StepPlan(4, 4, ("2",), ("0", "1"), read=6),
        StepPlan(4, 8, ("1",), ("0",), read=8),
        StepPlan(4, 12, ("0",), read=10),
    ]


def test_a_long_backlog_is_spread_over_steps_and_who_waits_is_not_drafted_for() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=10), decoding("chat", "chat", "chat")
    run_dark(planner, states[:1], 2)
    run_dark(planner, states[:2], 1)
    run_dark(planner, states, 5)
    assert backlogs(states) == [8, 6, 5]
    assert planner.plan(states, table(default=4)) == StepPlan(4, 4, ("2",), ("0", "1"), read=5)
    assert [(state.k, state.scheduled_k, state.backlog) for state in states] == [(0, 4, 9), (0, 4, 7), (4, 4, 0)]
    assert planner.plan(states, table(default=4)) == StepPlan(4, 8, ("1",), ("0",), read=7)
    assert planner.plan(states, table(default=4)) == StepPlan(4, 12, ("0",), read=10)
    assert [(state.k, state.backlog) for state in states] == [(4, 0)] * 3


def test_the_rows_of_requests_that_ended_count_no_more() -> None:
    planner = Planner(K_MAX, rows=10)
    run_dark(planner, decoding("chat"), 9)
    assert run_dark(planner, decoding("chat"), 10) == StepPlan(0)


def test_a_drafter_that_may_not_fall_behind_runs_in_every_step() -> None:
    planner, states = Planner(K_MAX, rows=0, least_width=1), decoding("chat")
    assert run_dark(planner, states, 5) == StepPlan(1, 1)
    assert planner.plan(states, table(default=5)) == StepPlan(5, 5)
    assert planner.plan(states, table(default=5), can_draft=False) == StepPlan(0)
    assert planner.plan(states, table(default=5), can_draft=False) == StepPlan(0, 0, ("0",), read=1)
    assert run_dark(planner, states, 1) == StepPlan(1, 1, ("0",), read=1)


def test_where_vllm_cannot_draft_everyone_leaves_a_position() -> None:
    planner, states, chunk = Planner(K_MAX, ROWS), decoding("chat"), [state("chunk", "chat")]
    seven = table(probe_ratio=0.5, default=7)
    assert planner.plan(states, seven, can_draft=False) == StepPlan(0)
    assert (states[0].k, states[0].backlog) == (0, 1)
    states[0].positions = chunk[0].positions = 8
    assert planner.plan(states, seven, can_draft=False, prefilling=chunk) == StepPlan(0, 0, ("0",), read=15)
    assert backlogs([*states, *chunk]) == [1, 1]
    assert planner.plan(states, seven) == StepPlan(7, 7, ("0",), read=1)


def test_a_preempted_request_starts_anew() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat")
    run_dark(planner, states, 3)
    states[0].restart()
    assert states[0].backlog == 0


def test_an_engine_that_cannot_speculate_never_drafts() -> None:
    planner, states = Planner(0, ROWS), decoding("chat")
    assert planner.plan(states, table(default=0)) == StepPlan(0)


UP = [0, 0, 0, 0, 0, 3, 5, 7]
"""K by band: only who is accepted often is drafted for."""


def lying(states: list[DraftState], *acceptances: float) -> None:
    """Let the requests' own acceptance be so."""
    for one, acceptance in zip(states, acceptances, strict=True):
        own = one.acceptance
        own.accepts, own.trials, own.band = 10 * acceptance, 10.0, band_of(acceptance)


def test_k_goes_by_the_band_and_the_band_by_what_was_accepted() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    lying(states, 0.95, 0.1)
    assert planner.plan(states, table(default=UP)) == StepPlan(7, 7, left_out=("1",))
    assert [(one.k, one.band) for one in states] == [(7, 7), (0, 1)]
    for _ in range(3):
        states[0].note(7, 0, is_probe=False, is_refused=False)
    for _ in range(4):
        states[1].note(3, 3, is_probe=False, is_refused=False)
    planner.plan(states, table(default=UP))
    assert [(one.k, one.band) for one in states] == [(3, 5), (3, 5)]


def probes(states: list[DraftState]) -> list[int]:
    return [one.k for one in states if one.k > one.scheduled_k]


def test_who_was_not_verified_for_some_steps_is_probed_as_deep_as_others_are_drafted_for() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("json", "chat")
    lying(states, 0.95, 0.05)
    k, found = table(1.0, default=UP), []
    for _ in range(3 * PROBE_AFTER):
        planner.plan(states, k)
        found.append(states[1].k)
        if states[1].k:
            states[1].note(states[1].k, 0, is_probe=True, is_refused=False)
    probed = [step for step, depth in enumerate(found) if depth]
    assert probed == [probed[0] + PROBE_AFTER * number for number in range(len(probed))]
    assert len(probed) >= 2
    assert set(found) == {0, 7}


def test_while_probes_are_accepted_whole_the_next_follows_at_once_up_to_the_highest_band() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("json", "chat")
    lying(states, 0.95, 0.1)  # band 1: K is 0 there and in all above
    found = []
    in_force = table(1.0, default=[7] + [0] * 7, json=7)
    for _ in range(2 * PROBE_AFTER):
        planner.plan(states, in_force)
        one = states[1]
        found.append(one.k)
        if one.k:
            one.note(one.k, one.k, is_probe=True, is_refused=False)
    begin = found.index(7)
    followed = found[begin:].index(0)
    assert followed >= 2
    assert found[begin + followed : begin + followed + PROBE_AFTER - 1] == [0] * (PROBE_AFTER - 1)
    assert states[1].acceptance.band == BANDS - 1


def test_no_probe_is_deeper_than_the_largest_k_of_its_classs_rows() -> None:
    """A class bounded to K 2 has no row above it, whatever K_max is."""
    planner, states = Planner(K_MAX, ROWS), decoding("json", "chat")
    found = set()
    for _ in range(PROBE_AFTER + 8):
        lying(states, 0.95, 0.0)
        planner.plan(states, table(1.0, default=[0] * 7 + [2], json=7))
        found.add(states[1].k)
    assert found == {0, 2}


def test_an_accepted_probe_of_a_request_that_became_predictable_ends_in_its_own_k() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("json", "chat")
    lying(states, 0.95, 0.05)
    steps = 0
    while states[1].scheduled_k == 0:
        planner.plan(states, table(1.0, default=UP))
        if states[1].k:
            states[1].note(states[1].k, states[1].k, is_probe=True, is_refused=False)
        steps += 1
    assert steps < 10


def test_a_probe_that_is_rejected_or_refused_is_not_followed() -> None:
    for accepted, is_refused in ((0, False), (1, True)):
        (one,) = decoding("chat")
        one.note(1, accepted, is_probe=True, is_refused=is_refused)
        assert not one.needs_follow_up


def test_where_nothing_drafts_a_step_for_probes_alone_waits_until_its_time_is_earned_twice() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat", "chat")
    lying(states, 0.0, 0.0, 0.0)
    ratio, found, spent, together = 0.1, [], 0.0, 0
    for step in range(1, 201):
        before = backlogs(states)
        plan = planner.plan(states, table(ratio, default=UP))
        if plan.width:
            found.append(step)
            spent += DRAFTING_STEP
            for one, backlog in zip(states, before, strict=True):
                if one.k:
                    together += 1
                    spent += (backlog + 1 + 2 * SEQUENTIAL_PROBE) * POSITION_STEP + SEQUENTIAL_PROBE * TOKEN_STEP
                    one.note(one.k, 0, is_probe=True, is_refused=False)
    assert spent <= ratio * 200
    assert found[0] == pytest.approx(2 * DRAFTING_STEP / ratio, abs=1)
    assert len(found) >= 5
    assert together == 3 * len(found)  # they share what the step takes longer


def test_where_nothing_drafts_a_request_is_probed_as_its_prompt_is_read_for_less() -> None:
    """The drafter runs over the prompt in any case, and what it is to catch up with is nothing."""
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    run_dark(planner, states, 300)  # too much to read for the others to join it
    lying(states, 0.0, 0.0)
    ratio = 0.1
    steps = int(2 * VERIFYING_STEP / ratio) + 1
    assert all(planner.plan(states, table(ratio, default=UP)).width == 0 for _ in range(steps - 1))
    new = state("new", "chat")
    new.positions = 40
    lying([new], 0.0)
    plan = planner.plan([*states, new], table(ratio, default=UP))
    assert (plan.width, plan.left_out, plan.catch_up) == (SEQUENTIAL_PROBE, ("0", "1"), ())
    assert [one.k for one in (*states, new)] == [0, 0, SEQUENTIAL_PROBE]


def test_requests_that_arrive_all_the_time_leave_some_probes_to_those_that_run() -> None:
    """Text that turns while it is written is found by nothing else."""
    planner, running = Planner(K_MAX, ROWS), decoding("chat", "chat")
    lying(running, 0.0, 0.0)
    ratio, taken = 0.02, {"prompts": 0, "running": 0}
    for step in range(4000):
        new = state(f"new {step}", "chat")
        new.positions = 40 if step % 10 == 0 else 1
        lying([new], 0.0)
        planner.plan([*running, new], table(ratio, default=UP))
        taken["prompts"] += new.k > 0
        for one in running:
            if one.k:
                taken["running"] += 1
                one.note(one.k, 0, is_probe=True, is_refused=False)
    assert taken["running"] >= 10
    own = (1 + 2 * SEQUENTIAL_PROBE) * POSITION_STEP + SEQUENTIAL_PROBE * TOKEN_STEP
    assert taken["prompts"] >= 0.5 * PROMPT_SHARE * 4000 * ratio / (VERIFYING_STEP + own)


def test_probes_take_their_share_of_the_time_and_whom_they_cost_least_first() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("json", *["chat"] * 7)
    ratio, steps, taken = 0.02, 2000, 0.0
    lying(states, 0.95, *[0.05] * 7)
    for one in states:
        one.drafted_at = 0  # its first draft was made
    probed: set[str] = set()
    for _ in range(steps):
        before = {one.request_id: one.backlog for one in states}
        plan = planner.plan(states, table(ratio, default=UP))
        for one in states[1:]:
            if one.k:
                probed.add(one.request_id)
                taken += (before[one.request_id] + 1 + 2 * plan.width) * POSITION_STEP + one.k * TOKEN_STEP
                one.note(one.k, 0, is_probe=True, is_refused=False)
    assert 0.8 * ratio * steps < taken <= ratio * steps
    assert probed


def test_a_first_draft_is_outside_of_the_budget_where_something_is_drafted() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("json", "chat", "chat")
    lying(states, 0.95, 0.05, 0.05)
    states[2].backlog = FIRST_DRAFT_ROWS + 1
    in_force = table(1e-9, default=UP)
    planner.plan(states, in_force)
    assert [one.k for one in states] == [7, 7, 0]  # who has many rows waits for its turn in the budget
    for _ in range(100):
        planner.plan(states, in_force)
        assert [one.k for one in states] == [7, 0, 0]  # once each


def test_where_nothing_drafts_a_first_draft_is_charged_to_the_budget() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    lying(states, 0.05, 0.05)
    assert all(planner.plan(states, table(1e-9, default=UP)).width == 0 for _ in range(100))


def test_first_drafts_take_a_step_of_time_at_most_in_one_step() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("json", *["chat"] * 100)
    lying(states, 0.95, *[0.05] * 100)
    at_once = []
    while any(one.drafted_at is None for one in states):
        planner.plan(states, table(1e-9, default=UP))
        at_once.append(sum(one.k > 0 for one in states[1:]))
    assert max(at_once) * ((1 + 2 * 7) * POSITION_STEP + 7 * TOKEN_STEP) <= 1.0
    assert sum(at_once) == 100


@pytest.mark.parametrize("needs_follow_up", [True, False])
def test_a_probe_that_waits_for_others_to_catch_up_is_made_later_and_charged_once(*, needs_follow_up: bool) -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=20), decoding("json", "chat")
    in_force = table(0.1, default=[0] * 7 + [2], json=7)
    lying(states, 0.95, 0.1)
    states[1].drafted_at = 0
    planner.idle(0.1, 5.0)
    run_dark(planner, states, PROBE_AFTER)
    states[0].backlog, states[1].backlog = 15, 18
    states[1].needs_follow_up = needs_follow_up
    before = planner.probes.budget
    planner.plan(states, in_force)
    assert [one.k for one in states] == [7, 0]
    assert planner.probes.budget == pytest.approx(before + 0.1)
    planner.plan(states, in_force)
    assert [one.k for one in states] == [7, 2]
    assert planner.probes.budget == pytest.approx(before + 0.2 - (19 + 1 + 2 * 7) * POSITION_STEP - 2 * TOKEN_STEP)
    assert not states[1].needs_follow_up


def test_a_probe_at_k_0_reads_no_more_rows_than_a_step_takes() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=100), decoding(*["chat"] * 8)
    lying(states, *[0.0] * 8)
    plans = [planner.plan(states, table(1.0, default=UP)) for _ in range(64)]
    assert max(plan.read for plan in plans) <= 100
    assert any(plan.width for plan in plans)


def test_follow_ups_wait_while_the_debt_is_as_large_as_the_budget_may_grow() -> None:
    """Requests come and go, each drafted for once outside of the budget, and most of these drafts are accepted."""
    planner, (always,) = Planner(K_MAX, ROWS), decoding("json")
    lying([always], 0.95)
    in_force, others = table(0.005, default=[0] * 7 + [2]), [state(str(number), "chat") for number in range(31)]
    random, ages = Random(1), [0] * 31
    lying(others, *[0.5] * 31)
    least = 0.0
    for _ in range(5000):
        planner.plan([always, *others], in_force)
        least = min(least, planner.probes.budget)
        for at, one in enumerate(others):
            ages[at] += 1
            if one.k:
                accepted = next((step for step in range(one.k) if random.random() > 0.7), one.k)
                one.note(one.k, accepted, is_probe=one.k > one.scheduled_k, is_refused=False)
            if ages[at] > 75:
                others[at], ages[at] = state("new", "chat"), 0
                lying([one], 0.5)
    assert -2 * planner.probes.limit < least < 0


def test_a_ratio_as_small_as_may_be_and_requests_that_were_never_verified() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    lying(states, 0.0, 0.0)
    planner.plan(states, table(5e-324, default=UP))
    assert planner.identical_steps_ahead(states, table(5e-324, default=UP)) > 0
    planner.probes.budget = planner.probes.limit
    assert planner.identical_steps_ahead(states, table(0.01, default=UP)) == 0  # one of them is due at once


def test_a_drafter_that_runs_in_every_step_probes_as_deep_as_any_where_nothing_else_drafts() -> None:
    planner, states = Planner(K_MAX, ROWS, least_width=1), decoding("chat", "chat")
    found = set()
    for _ in range(2 * PROBE_AFTER):
        lying(states, 0.0, 0.0)
        planner.plan(states, table(0.5, default=UP))
        found |= {one.k for one in states}
    assert found == {0, SEQUENTIAL_PROBE}


def test_a_class_with_one_row_for_all_bands_is_pinned_and_a_ratio_of_0_switches_probes_off() -> None:
    for k in (table(1.0, default=0, json=7), table(1.0, default=UP, json=7, chat=0), table(0.0, default=UP, json=7)):
        planner, states = Planner(K_MAX, ROWS), decoding("json", "chat")
        lying(states, 0.95, 0.05)
        for _ in range(128):
            planner.plan(states, k)
            assert [one.k for one in states] == [7, 0]


def test_a_ceiling_cuts_the_schedules_k_and_the_width_follows() -> None:
    states = decoding("code", "code", "chat")
    states[0].ceiling, states[2].ceiling = 2, 0
    plan = Planner(K_MAX, ROWS).plan(states[::2], table(default=4, code=5))
    assert [(one.k, one.scheduled_k) for one in states[::2]] == [(2, 2), (0, 0)]
    assert plan == StepPlan(2, slots=2, left_out=("2",))
    assert Planner(K_MAX, ROWS).plan(states, table(default=4, code=5)).width == 5
    assert [one.k for one in states] == [2, 5, 0]
    assert Planner(K_MAX, ROWS).plan(states[2:], table(default=4)) == StepPlan(0)


def test_probes_go_no_deeper_than_a_ceiling_and_at_0_there_are_none() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("json", "chat", "chat")
    states[1].ceiling, states[2].ceiling = 3, 0
    deep: list[set[int]] = [set(), set(), set()]
    for _ in range(64):
        lying(states, 0.95, 0.0, 0.0)
        planner.plan(states, table(1.0, default=UP))
        for one, found in zip(states, deep, strict=True):
            found.add(one.k)
            if one.k:
                one.note(one.k, one.k, is_probe=one.k > one.scheduled_k, is_refused=False)
    assert deep == [{7}, {3}, {0}]


def test_probes_do_not_pile_up_where_there_is_nothing_to_probe() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=64), decoding("chat", "chat")
    lying(states, 0.95, 0.95)
    for _ in range(500):
        planner.plan(states, table(0.5, default=UP))
    lying(states, 0.95, 0.0)
    found = 0
    for _ in range(4 * PROBE_AFTER):
        planner.plan(states, table(0.001, default=UP))
        found += states[1].k > 0
    each = (1 + 2 * 7) * POSITION_STEP + 7 * TOKEN_STEP
    assert 1 <= found <= (DRAFTING_STEP + 64 * POSITION_STEP + each) // each


@given(
    st.integers(0, 40),
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
    """Replay what the worker would hold, and what it would have to do for every draft to see all before it."""
    planner, states = Planner(K_MAX, limit, per_step), decoding(*["chat", "code"] * 3)
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
            assert not (state.positions > 1 and rows[name]), "its new positions would be read before what waits"
            assert state.k <= min(plan.width, state.ceiling)
            assert not (state.k and rows[name])
            if plan.width == 0 or name in plan.left_out:
                assert plan.width == 0 or state.positions == 1
                rows[name] += 1
            else:
                assert not rows[name], "the drafter would run over what comes after a hole"
        drafted = [state for state in (*batch, *prefilling) if state.request_id not in plan.left_out]
        assert plan.slots == plan.width * len(drafted)
        assert plan.width == max((state.k for state in batch), default=0)
        here = sum(rows[state.request_id] for state in (*batch, *prefilling))
        assert here <= max(limit, len(states))
        assert [state.backlog for state in states] == list(rows.values())
        for state in batch:
            if state.k:
                state.note(state.k, min(state.k, accepted), is_probe=state.k > state.scheduled_k, is_refused=False)


def test_k_is_cut_so_that_all_who_run_fit_into_the_next_step() -> None:
    """Also those that prefill, and those that had no token in this one: 2 n K positions at most."""
    room = TokenBudget(64, 64, is_parallel=True)
    planner, states, chunk = Planner(K_MAX, ROWS, room=room), decoding(*["chat"] * 6), state("chunk", "chat")
    assert planner.plan(states, table(default=7)).width == 64 // (2 * 6)
    assert {(state.k, state.scheduled_k) for state in states} == {(5, 5)}
    assert planner.plan(states, table(default=7), prefilling=[chunk]).width == 64 // (2 * 7)
    assert planner.plan(states, table(default=7), prefilling=[chunk], waiting=9).width == 64 // (2 * 16)
    assert planner.plan(states, table(default=7), waiting=60).width == 0
    assert planner.plan(states, table(default=2)).width == 2


def test_who_has_no_token_in_a_step_counts_as_a_running_decode() -> None:
    k_by_load = by_load(7, 7, 7, 2)
    states = decoding("chat", "chat")
    assert Planner(K_MAX, ROWS).plan(states, k_by_load).width == 7
    assert Planner(K_MAX, ROWS).plan(states, k_by_load, waiting=2).width == 2


def test_drafts_are_no_wider_than_fits_beside_the_step_and_the_next_keeps_room_for_them() -> None:
    planner, states = Planner(K_MAX, ROWS, room=TokenBudget(64, 64, is_parallel=True)), decoding("chat", "chat")
    states[1].positions = 57
    plan = planner.plan(states, table(default=7))
    assert (plan.width, plan.slots, planner.next_width) == (4, 8, 7)
    assert [(state.k, state.scheduled_k) for state in states] == [(4, 7), (4, 7)]
    states[1].positions = 63
    assert planner.plan(states, table(default=7)).width == 1
    states[1].positions = 1
    assert planner.plan(states, table(default=7)).width == 7


def test_probes_go_no_deeper_than_fits() -> None:
    probed = table(1.0, default=[0] * (BANDS - 1) + [7])
    for positions, waiting, width in ((1, 0, 4), (58, 0, 3), (63, 0, 1), (1, 40, 0)):
        planner, states = Planner(K_MAX, ROWS, room=TokenBudget(64, 64, is_parallel=True)), decoding("chat", "chat")
        states[0].needs_follow_up, states[1].positions = True, positions
        states[0].drafted_at = states[1].drafted_at = 0
        plan = planner.plan(states, probed, waiting=waiting)
        assert (plan.width, planner.next_width) == (width, 0)

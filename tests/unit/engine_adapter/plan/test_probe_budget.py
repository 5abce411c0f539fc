"""Case 5 of the planner: what a probe costs, what earns it, and how much of the time probes take."""

import math
from random import Random

import pytest

from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.probes import PROBE_AFTER
from tests.support.k_tables import table
from tests.support.planning import K_MAX, ROWS, UP, accept, backlogs, decodes, outcome, plan_at_0, request
from tests.support.probe_prices import DEMO, OFTEN, Planner

DRAFTING_STEP, VERIFYING_STEP, POSITION_STEP, TOKEN_STEP = DEMO[:4]


def cost(backlog: int, width: int, k: int) -> float:
    """Return the steps' worth of time of a probe beside the fixed cost of its step."""
    return (backlog + 1 + 2 * width) * POSITION_STEP + k * TOKEN_STEP


def test_where_nothing_drafts_a_step_for_probes_alone_waits_until_its_fixed_cost_is_earned_twice() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("chat", "chat", "chat")
    accept(states, 0.0, 0.0, 0.0)
    ratio, probing_steps, spent, probes = 0.1, [], 0.0, 0
    for step in range(1, 201):
        before = backlogs(states)
        plan = planner.plan(states, table(ratio, default=UP))
        if plan.width:
            probing_steps.append(step)
            spent += DRAFTING_STEP
            for state, backlog in zip(states, before, strict=True):
                if state.k:
                    probes += 1
                    spent += cost(backlog, plan.width, state.k)
                    outcome(state, 0)
    assert spent <= ratio * 200
    assert probing_steps[0] == PROBE_AFTER * math.ceil(2 * DRAFTING_STEP / ratio / PROBE_AFTER)
    assert len(probing_steps) >= 5
    assert probes == 3 * len(probing_steps)  # they share the fixed cost


def test_after_a_second_without_drafts_a_probe_waits_for_its_own_cost_alone() -> None:
    """Requests of another kind that arrive are found then, and not when the cost of a probe is earned twice."""
    second, ratio = 50, 0.02
    planner, states = Planner(K_MAX, ROWS, prices=DEMO._replace(steps_per_s=second)), decodes("chat", "chat")
    accept(states, 0.0, 0.0)
    probed_at: list[int] = []
    for step in range(1, 1001):
        repeats = planner.identical_steps_ahead(states, table(ratio, default=UP))
        plan = planner.plan(states, table(ratio, default=UP))
        assert not (repeats and plan.width), "no step that repeats the last one probes"
        if plan.width:
            probed_at.append(step)
            for state in states:
                if state.k:
                    outcome(state, 0)
        assert planner.probes.budget >= 0.0
    assert DRAFTING_STEP / ratio < probed_at[0] < 1.8 * DRAFTING_STEP / ratio
    assert len(probed_at) >= 5


def test_where_nothing_drafts_a_request_is_probed_for_less_as_its_prompt_is_read() -> None:
    """The drafter runs over the prompt in any case, and the request has no backlog."""
    planner, states = Planner(K_MAX, ROWS), decodes("chat", "chat")
    plan_at_0(planner, states, 300)  # too many rows for the others to join it
    accept(states, 0.0, 0.0)
    ratio = 0.1
    steps = int(2 * VERIFYING_STEP / ratio) + 1
    assert all(planner.plan(states, table(ratio, default=UP)).width == 0 for _ in range(steps - 1))
    new = request("new")
    new.positions = 40
    accept([new], 0.0)
    plan = planner.plan([*states, new], table(ratio, default=UP))
    assert (plan.left_out, plan.catch_up) == (("0", "1"), ())
    assert [state.k for state in (*states, new)] == [0, 0, plan.width]


def test_steady_arrivals_leave_some_probes_to_running_requests() -> None:
    """Text that changes while it is written is found by nothing else."""
    planner, running = Planner(K_MAX, ROWS), decodes("chat", "chat")
    accept(running, 0.0, 0.0)
    prompts = others = 0
    for step in range(8000):
        new = request(f"new {step}")
        new.positions = 40 if step % 10 == 0 else 1
        accept([new], 0.0)
        planner.plan([*running, new], table(0.005, default=UP))
        prompts += new.k > 0
        for state in running:
            if state.k:
                others += 1
                outcome(state, 0)
    assert min(prompts, others) >= 10


def test_probes_take_their_share_of_the_time() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", *["chat"] * 7)
    ratio, steps, spent = 0.02, 2000, 0.0
    accept(states, 0.95, *[0.05] * 7)
    for state in states:
        state.drafted_at = 0  # its first draft was made
    for _ in range(steps):
        before = backlogs(states)
        plan = planner.plan(states, table(ratio, default=UP))
        for state, backlog in zip(states[1:], before[1:], strict=True):
            if state.k:
                spent += cost(backlog, plan.width, state.k)
                outcome(state, 0)
    assert 0.8 * ratio * steps < spent <= ratio * steps


def test_idle_time_earns_as_much_as_busy_time() -> None:
    waits = []
    for idle_steps in (0.0, 2.0 * PROBE_AFTER):
        planner, states = Planner(K_MAX, ROWS), decodes("chat")
        accept(states, 0.0)
        plan_at_0(planner, states)
        planner.idle(0.1, idle_steps)
        waits.append(next(step for step in range(200) if planner.plan(states, table(0.1, default=UP)).width))
    assert waits[0] - waits[1] == 2 * PROBE_AFTER


def test_the_budget_does_not_pile_up_where_there_is_nothing_to_probe() -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=64), decodes("chat", "chat")
    accept(states, 0.95, 0.95)
    for _ in range(500):
        planner.plan(states, table(0.5, default=UP))
    accept(states, 0.95, 0.0)
    probes = 0
    for _ in range(64):
        planner.plan(states, table(0.001, default=UP))
        probes += states[1].k > 0
    assert 1 <= probes <= (DRAFTING_STEP + cost(64, 7, 7)) // cost(0, 7, 7)


def test_a_first_draft_is_free_where_something_is_drafted_and_its_backlog_is_small() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", "chat", "chat")
    accept(states, 0.95, 0.05, 0.05)
    states[2].backlog = 150
    k = table(1e-9, default=UP)
    planner.plan(states, k)
    assert [state.k for state in states] == [7, 7, 0]
    for _ in range(100):
        planner.plan(states, k)
        assert [state.k for state in states] == [7, 0, 0]  # once each


def test_where_nothing_drafts_a_first_draft_is_charged_to_the_budget() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("chat", "chat")
    accept(states, 0.05, 0.05)
    assert all(planner.plan(states, table(1e-9, default=UP)).width == 0 for _ in range(100))


def test_free_first_drafts_take_a_step_of_time_at_most_in_one_step() -> None:
    planner, states = Planner(K_MAX, ROWS), decodes("json", *["chat"] * 100)
    accept(states, 0.95, *[0.05] * 100)
    at_once = []
    while any(state.drafted_at is None for state in states):
        planner.plan(states, table(1e-9, default=UP))
        at_once.append(sum(state.k > 0 for state in states[1:]))
    assert max(at_once) * cost(0, 7, 7) <= 1.0
    assert sum(at_once) == 100


@pytest.mark.parametrize("needs_follow_up", [True, False])
def test_a_probe_that_the_step_postpones_is_made_later_and_charged_once(*, needs_follow_up: bool) -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=20), decodes("json", "chat")
    k = table(0.1, default=[0] * 7 + [2], json=7)
    accept(states, 0.95, 0.1)
    states[1].drafted_at = 0
    planner.idle(0.1, 5.0)
    plan_at_0(planner, states, OFTEN)
    states[0].backlog, states[1].backlog = 15, 18
    states[1].needs_follow_up = needs_follow_up
    before = planner.probes.budget
    planner.plan(states, k)
    assert [state.k for state in states] == [7, 0]
    assert planner.probes.budget == pytest.approx(before + 0.1)
    planner.plan(states, k)
    assert [state.k for state in states] == [7, 2]
    assert planner.probes.budget == pytest.approx(before + 0.2 - cost(19, 7, 2))
    assert not states[1].needs_follow_up


def test_probes_read_no_more_rows_than_a_step_takes() -> None:
    planner, states = Planner(K_MAX, ROWS, catch_up_rows=100), decodes(*["chat"] * 8)
    accept(states, *[0.0] * 8)
    plans = [planner.plan(states, table(1.0, default=UP)) for _ in range(64)]
    assert max(plan.read for plan in plans) <= 100
    assert any(plan.width for plan in plans)


def test_follow_ups_wait_while_the_debt_is_three_steps_that_draft() -> None:
    """Requests come and go, each has one free draft, and most of these drafts are accepted."""
    planner, (always,) = Planner(K_MAX, ROWS), decodes("json")
    accept([always], 0.95)
    others: list[DraftState] = [request(str(number)) for number in range(31)]
    random, ages = Random(1), [0] * 31
    accept(others, *[0.5] * 31)
    least = 0.0
    for _ in range(5000):
        planner.plan([always, *others], table(0.005, default=[0] * 7 + [2]))
        least = min(least, planner.probes.budget)
        for place, state in enumerate(others):
            ages[place] += 1
            if state.k:
                outcome(state, next((token for token in range(state.k) if random.random() > 0.7), state.k))
            if ages[place] > 75:
                new = request("new")
                accept([new], 0.5)
                others[place], ages[place] = new, 0
    assert -4 * DRAFTING_STEP - 1 < least < 0


def test_a_drafter_that_must_run_in_every_step_makes_no_probe_free() -> None:
    """Its width is above 0 although no request has a draft, so that of the first drafts alone would be verified."""
    planner, states = Planner(K_MAX, ROWS, least_width=1), decodes("chat", "chat")
    accept(states, 0.05, 0.05)
    for _ in range(100):
        planner.plan(states, table(1e-9, default=UP))
        assert [state.k for state in states] == [0, 0]
    ratio, steps, spent = 0.05, 400, 0.0
    for _ in range(steps):
        plan = planner.plan(states, table(ratio, default=UP))
        probes = [state for state in states if state.k]
        spent += bool(probes) * VERIFYING_STEP + sum(cost(0, plan.width, state.k) for state in probes)
        for state in probes:
            outcome(state, 0)
    assert 0.5 * ratio * steps < spent <= ratio * steps

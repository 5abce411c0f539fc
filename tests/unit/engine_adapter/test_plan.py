from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.apply import KTable, Source
from engine_adapter.plan import DraftState, Planner, StepPlan

K_MAX = 7
ROWS = 4096


def table(probe_ratio: float = 0.0, **k: int) -> KTable:
    return KTable(Source.SCHEDULE, {name: (value,) for name, value in k.items()}, probe_ratio)


def decoding(*classes: str) -> list[DraftState]:
    return [DraftState(str(number), name) for number, name in enumerate(classes)]


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
    assert plan == StepPlan(width=5)


def test_the_drafter_stops_at_once_and_catches_up_when_k_rises() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    assert run_dark(planner, states, 20) == StepPlan(width=0)
    assert backlogs(states) == [20, 20]
    assert planner.plan(states, table(default=4)) == StepPlan(4, ("0", "1"), read=40)
    assert [(state.k, state.backlog) for state in states] == [(4, 0), (4, 0)]
    assert planner.plan(states, table(default=4)) == StepPlan(4)


def test_prompts_and_verified_drafts_are_read_at_k_0_but_for_their_last_position() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    run_dark(planner, states[:1], 5)
    states[1].positions = 9
    assert planner.plan(states, table(default=0)) == StepPlan(0, read=8)
    assert backlogs(states) == [6, 1]


def test_a_prompt_in_chunks_reads_what_the_chunk_before_left_first() -> None:
    planner, (state,) = Planner(K_MAX, ROWS), decoding("chat")
    state.positions = 30
    assert planner.plan([], table(default=0), prefilling=[state]) == StepPlan(0, read=29)
    assert planner.plan([], table(default=0), prefilling=[state]) == StepPlan(0, ("0",), read=30)
    assert planner.plan([state], table(default=3)) == StepPlan(3, ("0",), read=1)


def test_those_with_most_rows_catch_up_before_more_wait_than_may() -> None:
    planner, states = Planner(K_MAX, rows=10, rows_per_step=4), decoding("chat", "chat", "chat")
    run_dark(planner, states[:1], 2)
    assert run_dark(planner, states, 2) == StepPlan(0)
    assert backlogs(states) == [4, 2, 2]
    assert run_dark(planner, states, 1) == StepPlan(0, ("0",), read=4)
    assert backlogs(states) == [1, 3, 3]


def test_no_request_leaves_more_than_one_step_can_catch_up_with() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=8), decoding("chat", "chat")
    run_dark(planner, states[:1], 5)
    assert run_dark(planner, states, 3) == StepPlan(0)
    assert run_dark(planner, states, 1) == StepPlan(0, ("0",), read=8)
    assert backlogs(states) == [1, 4]


def test_of_requests_that_leave_as_many_one_a_step_catches_up_while_the_others_rows_grow() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=8), decoding("chat", "chat", "chat")
    run_dark(planner, states, 8)
    assert [run_dark(planner, states, 1) for _ in states] == [
        StepPlan(0, ("0",), read=8),
        StepPlan(0, ("1",), read=9),
        StepPlan(0, ("2",), read=10),
    ]
    run_dark(planner, states, 5)
    assert backlogs(states) == [8, 7, 6]
    assert [planner.plan(states, table(default=4)) for _ in states] == [
        StepPlan(4, ("2",), read=6),
        StepPlan(4, ("1",), read=8),
        StepPlan(4, ("0",), read=10),
    ]


def test_a_long_backlog_is_spread_over_steps_and_who_waits_is_not_drafted_for() -> None:
    planner, states = Planner(K_MAX, ROWS, rows_per_step=10), decoding("chat", "chat", "chat")
    run_dark(planner, states[:1], 2)
    run_dark(planner, states[:2], 1)
    run_dark(planner, states, 5)
    assert backlogs(states) == [8, 6, 5]
    assert planner.plan(states, table(default=4)) == StepPlan(4, ("2",), read=5)
    assert [(state.k, state.due, state.backlog) for state in states] == [(0, 4, 9), (0, 4, 7), (4, 4, 0)]
    assert planner.plan(states, table(default=4)) == StepPlan(4, ("1",), read=7)
    assert planner.plan(states, table(default=4)) == StepPlan(4, ("0",), read=10)
    assert [(state.k, state.backlog) for state in states] == [(4, 0)] * 3


def test_the_rows_of_requests_that_ended_count_no_more() -> None:
    planner = Planner(K_MAX, rows=10)
    run_dark(planner, decoding("chat"), 9)
    assert run_dark(planner, decoding("chat"), 10) == StepPlan(0)


def test_a_drafter_that_may_not_fall_behind_runs_in_every_step() -> None:
    planner, states = Planner(K_MAX, rows=0, least_width=1), decoding("chat")
    assert run_dark(planner, states, 5) == StepPlan(1)
    assert planner.plan(states, table(default=5)) == StepPlan(5)
    assert planner.plan(states, table(default=5), can_draft=False) == StepPlan(0)
    assert planner.plan(states, table(default=5), can_draft=False) == StepPlan(0, ("0",), read=1)
    assert run_dark(planner, states, 1) == StepPlan(1, ("0",), read=1)


def test_where_vllm_cannot_draft_everyone_leaves_a_position() -> None:
    planner, states, chunk = Planner(K_MAX, ROWS), decoding("chat"), [DraftState("chunk", "chat")]
    seven = table(probe_ratio=0.5, default=7)
    assert planner.plan(states, seven, can_draft=False) == StepPlan(0)
    assert (states[0].k, states[0].backlog) == (0, 1)
    states[0].positions = chunk[0].positions = 8
    assert planner.plan(states, seven, can_draft=False, prefilling=chunk) == StepPlan(0, ("0",), read=15)
    assert backlogs([*states, *chunk]) == [1, 1]
    assert planner.plan(states, seven) == StepPlan(7, ("0",), read=1)


def test_a_preempted_request_starts_anew() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat")
    run_dark(planner, states, 3)
    states[0].restart()
    assert states[0].backlog == 0


def test_an_engine_that_cannot_speculate_never_drafts() -> None:
    planner, states = Planner(0, ROWS), decoding("chat")
    assert planner.plan(states, table(default=0)) == StepPlan(0)


def test_probe_steps_take_their_share_and_verify_everything_to_k_max() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("code", "chat")
    probes = 0
    for _ in range(1000):
        plan = planner.plan(states, table(probe_ratio=0.02, default=3))
        if any(state.k > state.due for state in states):
            probes += 1
            assert plan.width == K_MAX
            assert [state.k for state in states] == [K_MAX, K_MAX]
            assert [state.due for state in states] == [3, 3]
        else:
            assert [state.k for state in states] == [3, 3]
    assert 19 <= probes <= 20


def test_nothing_is_probed_where_every_class_is_at_k_max() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("code")
    for _ in range(50):
        assert planner.plan(states, table(0.5, default=K_MAX)) == StepPlan(K_MAX)
        assert states[0].due == K_MAX


def test_at_k_0_running_requests_are_probed_too() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat")
    plans = [planner.plan(states, table(0.02, default=0)) for _ in range(1000)]
    assert 19 <= sum((plan.width, plan.catch_up) == (K_MAX, ("0",)) for plan in plans) <= 20
    assert plans.count(StepPlan(0)) >= 980


def test_a_probe_at_k_0_takes_whom_little_has_to_be_caught_up_for() -> None:
    """Four rows for each position of the drafts: three requests, 8 positions each."""
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat", "chat")
    run_dark(planner, states[:1], 15)
    run_dark(planner, states[:2], 8)
    run_dark(planner, states, 42)
    assert backlogs(states) == [65, 50, 42]
    planner.plan(states, table(0.999, default=0))
    assert planner.plan(states, table(0.999, default=0)) == StepPlan(K_MAX, ("2", "1"), read=94)
    assert [(state.k, state.due) for state in states] == [(0, 0), (K_MAX, 0), (K_MAX, 0)]
    assert backlogs(states) == [67, 0, 0]


def test_a_probe_at_k_0_takes_one_request_at_least() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    run_dark(planner, states[:1], 50)
    run_dark(planner, states, 99)
    planner.plan(states, table(0.999, default=0))
    assert planner.plan(states, table(0.999, default=0)) == StepPlan(K_MAX, ("1",), read=100)
    assert [state.k for state in states] == [0, K_MAX]


def test_probes_do_not_pile_up_where_there_is_nothing_to_probe() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("code")
    for _ in range(500):
        planner.plan(states, table(0.1, default=K_MAX))
    probes = sum(planner.plan(states, table(0.1, default=2)).width == K_MAX for _ in range(10))
    assert probes <= 2


@given(
    st.integers(0, 40),
    st.integers(1, 20),
    st.lists(
        st.tuples(st.integers(1, 6), st.booleans(), st.integers(0, 2), st.integers(0, 7), st.booleans()), max_size=60
    ),
    st.floats(0, 0.3),
)
def test_every_draft_comes_from_a_whole_cache_and_the_rows_never_overflow(
    limit: int, per_step: int, steps: list[tuple[int, bool, int, int, bool]], probe_ratio: float
) -> None:
    """Replay what the worker would hold, and what it would have to do for every draft to see all before it."""
    planner, states = Planner(K_MAX, limit, per_step), decoding(*["chat", "code"] * 3)
    rows = {state.request_id: 0 for state in states}
    for running, has_prefill, code, chat, can_draft in steps:
        batch, prefilling = states[:running], states[running:] if has_prefill else []
        for state in prefilling:
            if state.decoding:  # preempted
                state.restart()
                rows[state.request_id] = 0
        for state in (*batch, *prefilling):
            state.decoding = state in batch
            state.positions = 9 if state in prefilling else 1 + state.k
        k = table(probe_ratio, default=0, code=code, chat=chat)
        plan = planner.plan(batch, k, can_draft=can_draft, prefilling=prefilling)
        assert plan.width <= (K_MAX if can_draft else 0)
        assert set(plan.catch_up) <= {name for name, count in rows.items() if count}
        rows.update(dict.fromkeys(plan.catch_up, 0))
        for state in (*batch, *prefilling):
            name = state.request_id
            assert not (state.positions > 1 and rows[name]), "its new positions would be read before what waits"
            assert state.k <= plan.width
            assert not (state.k and rows[name])
            if plan.width == 0 or rows[name]:
                rows[name] += 1
        if plan.width == 0:
            here = sum(rows[state.request_id] for state in (*batch, *prefilling))
            assert here <= max(limit, len(states))
        assert [state.backlog for state in states] == list(rows.values())

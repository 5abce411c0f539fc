import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.apply import KTable, Source
from engine_adapter.plan import DraftState, Planner, StepPlan, row_limit

K_MAX = 7
ROWS = 4096


def table(probe_ratio: float = 0.0, **k: int) -> KTable:
    return KTable(Source.SCHEDULE, {name: (value,) for name, value in k.items()}, probe_ratio)


def decoding(*classes: str) -> list[DraftState]:
    return [DraftState(name) for name in classes]


def run_dark(planner: Planner, states: list[DraftState], dark: KTable, steps: int) -> StepPlan:
    plan = StepPlan(0)
    for _ in range(steps):
        plan = planner.plan(states, dark, is_plain=True)
    return plan


def test_two_classes_in_one_batch_get_their_own_k_and_the_drafter_the_larger_width() -> None:
    states = decoding("code", "chat")
    plan = Planner(K_MAX, ROWS).plan(states, table(default=0, code=5, chat=2), is_plain=False)
    assert [state.k for state in states] == [5, 2]
    assert plan == StepPlan(width=5)


def test_the_drafter_stops_at_once_and_catches_up_when_k_rises() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat", "chat")
    assert run_dark(planner, states, table(default=0), 20) == StepPlan(width=0)
    assert [state.backlog for state in states] == [20, 20]
    assert planner.plan(states, table(default=4), is_plain=True) == StepPlan(width=4, has_backlog=True)
    assert [(state.k, state.backlog) for state in states] == [(4, 0), (4, 0)]


@pytest.mark.parametrize("has_need", [False, True])
def test_a_step_that_prefills_or_verifies_always_runs_the_drafter(has_need: bool) -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat")
    k = 3 if has_need else 0
    assert planner.plan(states, table(default=k), is_plain=False) == StepPlan(max(k, 1))


def test_the_drafter_catches_up_before_the_rows_are_full() -> None:
    planner, states = Planner(K_MAX, rows=10), decoding("chat", "chat", "chat")
    widths = [planner.plan(states, table(default=0), is_plain=True) for _ in range(8)]
    assert widths == [StepPlan(0)] * 3 + [StepPlan(1, has_backlog=True)] + [StepPlan(0)] * 3 + [StepPlan(1, True)]


def test_without_rows_the_drafter_always_runs() -> None:
    planner, states = Planner(K_MAX, rows=0), decoding("chat")
    assert run_dark(planner, states, table(default=0), 5) == StepPlan(1)


def test_rows_of_requests_that_ended_take_room_until_the_drafter_runs() -> None:
    planner = Planner(K_MAX, rows=10)
    run_dark(planner, decoding("chat"), table(default=0), 9)
    newcomer = decoding("chat")
    assert run_dark(planner, newcomer, table(default=0), 1) == StepPlan(0)
    assert run_dark(planner, newcomer, table(default=0), 1) == StepPlan(1, has_backlog=True)
    assert newcomer[0].backlog == 0


def test_where_vllm_cannot_draft_plain_steps_wait_and_others_leave_one_position() -> None:
    planner, states, chunk = Planner(K_MAX, ROWS), decoding("chat"), decoding("chat")
    seven = table(probe_ratio=0.5, default=7)
    assert planner.plan(states, seven, is_plain=True, can_draft=False) == StepPlan(0)
    assert (states[0].k, states[0].backlog) == (0, 1)
    unable = planner.plan(states, seven, is_plain=False, can_draft=False, prefilling=chunk)
    assert unable == StepPlan(1, has_backlog=True)
    assert [(state.k, state.backlog) for state in (*states, *chunk)] == [(0, 1), (0, 1)]
    assert planner.plan(states, seven, is_plain=True) == StepPlan(7, has_backlog=True)
    assert states[0].backlog == 0


def test_where_vllm_cannot_draft_the_drafter_catches_up_before_the_rows_are_full() -> None:
    planner, states = Planner(K_MAX, rows=10), decoding("chat", "chat", "chat")
    plans = [planner.plan(states, table(default=7), is_plain=True, can_draft=False) for _ in range(8)]
    caught_up = StepPlan(1, has_backlog=True)
    assert plans == [StepPlan(0)] * 3 + [caught_up] + [StepPlan(0)] * 2 + [caught_up, StepPlan(0)]
    assert [state.backlog for state in states] == [2, 2, 2]


def test_a_preempted_request_starts_anew() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat")
    run_dark(planner, states, table(default=0), 3)
    states[0].restart()
    assert states[0].backlog == 0


def test_an_engine_that_cannot_speculate_never_drafts() -> None:
    planner, states = Planner(0, ROWS), decoding("chat")
    assert planner.plan(states, table(default=0), is_plain=False) == StepPlan(0)


def test_probe_steps_take_their_share_and_verify_everything_to_k_max() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("code", "chat")
    probes = 0
    for _ in range(1000):
        plan = planner.plan(states, table(probe_ratio=0.02, default=3), is_plain=False)
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
        assert planner.plan(states, table(0.5, default=K_MAX), is_plain=False) == StepPlan(K_MAX)
        assert states[0].due == K_MAX


def test_at_k_0_running_requests_are_probed_too() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("chat")
    dark = table(probe_ratio=0.02, default=0)
    plans = [planner.plan(states, dark, is_plain=True) for _ in range(1000)]
    assert 19 <= plans.count(StepPlan(K_MAX, has_backlog=True)) <= 20
    assert plans.count(StepPlan(0)) >= 980


def test_probes_do_not_pile_up_where_there_is_nothing_to_probe() -> None:
    planner, states = Planner(K_MAX, ROWS), decoding("code")
    for _ in range(500):
        planner.plan(states, table(0.1, default=K_MAX), is_plain=False)
    probes = sum(planner.plan(states, table(0.1, default=2), is_plain=False).width == K_MAX for _ in range(10))
    assert probes <= 2


@given(
    st.integers(0, 40),
    st.lists(
        st.tuples(st.integers(1, 6), st.booleans(), st.integers(0, 2), st.integers(0, 7), st.booleans()), max_size=60
    ),
    st.floats(0, 0.3),
)
def test_every_draft_comes_from_a_whole_cache_and_the_rows_never_overflow(
    limit: int, steps: list[tuple[int, bool, int, int, bool]], probe_ratio: float
) -> None:
    """Replay what the worker would hold: rows of steps without drafts, gone when the drafter runs."""
    planner, states = Planner(K_MAX, limit), decoding(*["chat", "code"] * 3)
    rows = dict.fromkeys(states, 0)
    held, has_drafts = 0, False
    for running, has_prefill, code, chat, can_draft in steps:
        batch, prefilling = states[:running], states[running:] if has_prefill else []
        is_plain = not has_prefill and not has_drafts
        k = table(probe_ratio, default=0, code=code, chat=chat)
        plan = planner.plan(batch, k, is_plain=is_plain, can_draft=can_draft, prefilling=prefilling)
        assert max(state.k for state in batch) <= (plan.width if can_draft else 0)
        assert plan.width <= K_MAX
        assert plan.has_backlog == (plan.width > 0 and held > 0)
        if plan.width:
            held = 0
            rows.update(dict.fromkeys([*batch, *prefilling], 0))
        else:
            assert is_plain
        if not (plan.width and can_draft):
            held += running + len(prefilling)
            assert held <= max(limit, len(states))
            for state in (*batch, *prefilling):
                rows[state] += 1
        assert [state.backlog for state in states] == [rows[state] for state in states]
        has_drafts = any(state.k for state in batch)


def test_the_rows_that_wait_fit_into_one_pass_of_the_drafter() -> None:
    assert row_limit(2048) == 2048
    assert row_limit(1 << 20) == 4096

from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.apply import KTable, Source
from engine_adapter.plan import CREDIT_LIMIT, DARK_AFTER_STEPS, DraftState, Planner, StepPlan

K_MAX = 7


def table(probe_ratio: float = 0.0, **k: int) -> KTable:
    return KTable(Source.SCHEDULE, {name: (value,) for name, value in k.items()}, probe_ratio)


def decoding(*classes: str) -> list[DraftState]:
    return [DraftState(name) for name in classes]


def run_dark(planner: Planner, states: list[DraftState], dark: KTable, steps: int) -> StepPlan:
    plan = StepPlan(0, is_probe=False)
    for _ in range(steps):
        plan = planner.plan(states, dark, is_prefilling=False)
    return plan


def test_two_classes_in_one_batch_get_their_own_k_and_the_drafter_the_larger_width() -> None:
    states = decoding("code", "chat")
    plan = Planner(K_MAX).plan(states, table(default=0, code=5, chat=2), is_prefilling=False)
    assert [state.k for state in states] == [5, 2]
    assert plan == StepPlan(width=5, is_probe=False)


def test_a_short_spell_of_k_0_keeps_the_draft_cache_whole() -> None:
    planner, states = Planner(K_MAX), decoding("chat", "chat")
    assert run_dark(planner, states, table(default=0), DARK_AFTER_STEPS).width == 1
    assert not any(state.holed for state in states)
    assert planner.plan(states, table(default=4), is_prefilling=False).width == 4
    assert [state.k for state in states] == [4, 4]


def test_a_long_spell_switches_the_drafter_off_and_its_requests_stay_at_k_0() -> None:
    planner, states = Planner(K_MAX), decoding("chat")
    assert run_dark(planner, states, table(default=0), DARK_AFTER_STEPS + 1).width == 0
    assert states[0].holed
    newcomer = DraftState("chat")
    plan = planner.plan([*states, newcomer], table(default=4), is_prefilling=False)
    assert (states[0].k, newcomer.k, plan.width) == (0, 4, 4)


def test_a_preempted_request_speculates_again_after_its_new_prefill() -> None:
    planner, states = Planner(K_MAX), decoding("chat")
    run_dark(planner, states, table(default=0), DARK_AFTER_STEPS + 1)
    states[0].restart()
    planner.plan(states, table(default=4), is_prefilling=True)
    assert states[0].k == 4


def test_a_step_that_prefills_always_runs_the_drafter() -> None:
    planner, states = Planner(K_MAX), decoding("chat")
    run_dark(planner, states, table(default=0), DARK_AFTER_STEPS + 5)
    assert planner.plan(states, table(default=0), is_prefilling=True).width == 1


def test_an_engine_that_cannot_speculate_never_drafts() -> None:
    planner, states = Planner(0), decoding("chat")
    assert planner.plan(states, table(default=0), is_prefilling=True) == StepPlan(0, is_probe=False)


def test_probe_steps_take_their_share_and_verify_everything_to_k_max() -> None:
    planner, states = Planner(K_MAX), decoding("code", "chat")
    probes = 0
    for _ in range(1000):
        plan = planner.plan(states, table(probe_ratio=0.02, default=3), is_prefilling=False)
        if plan.is_probe:
            probes += 1
            assert plan.width == K_MAX
            assert [state.k for state in states] == [K_MAX, K_MAX]
            assert all(state.probing for state in states)
        else:
            assert [state.k for state in states] == [3, 3]
    assert 19 <= probes <= 20


def test_nothing_is_probed_where_every_class_is_at_k_max() -> None:
    planner, states = Planner(K_MAX), decoding("code")
    assert not any(planner.plan(states, table(0.5, default=K_MAX), is_prefilling=False).is_probe for _ in range(50))


def test_while_the_drafter_is_off_credit_is_saved_for_the_next_request() -> None:
    planner, old = Planner(K_MAX), decoding("chat")
    dark = table(probe_ratio=0.02, default=0)
    run_dark(planner, old, table(default=0), DARK_AFTER_STEPS + 1)
    run_dark(planner, old, dark, 2000)
    newcomer = DraftState("chat")
    probes = 0
    for _ in range(40):
        plan = planner.plan([*old, newcomer], dark, is_prefilling=False)
        probes += plan.is_probe
        assert old[0].k == 0
    assert int(CREDIT_LIMIT) <= probes <= int(CREDIT_LIMIT) + 1
    assert newcomer.holed


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["code", "chat"]), min_size=1, max_size=6), st.integers(0, 7), st.integers(0, 7)
        ),
        max_size=60,
    ),
    st.floats(0, 0.5),
)
def test_no_request_ever_asks_for_more_than_the_drafter_lays_out(
    steps: list[tuple[list[str], int, int]], probe_ratio: float
) -> None:
    planner = Planner(K_MAX)
    for classes, code, chat in steps:
        states = decoding(*classes)
        plan = planner.plan(states, table(probe_ratio, default=0, code=code, chat=chat), is_prefilling=False)
        assert max(state.k for state in states) <= plan.width <= K_MAX
        if plan.width == 0:
            assert all(state.holed for state in states)

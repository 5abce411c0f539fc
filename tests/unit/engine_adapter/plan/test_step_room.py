from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.plan.step_room import StepRoom

BUDGETS = st.builds(StepRoom, st.integers(1, 4096), st.integers(1, 4096), is_parallel=st.booleans())


def test_a_parallel_drafter_takes_a_slot_for_each_token_after_the_first() -> None:
    assert [StepRoom(2048, 2048, is_parallel=True).largest_k(n) for n in (1, 146, 147, 256, 1024, 1025)] == [
        1024, 7, 6, 4, 1, 0,
    ]  # fmt: skip
    assert [StepRoom(2048, 2048).largest_k(n) for n in (146, 256, 1024, 1025)] == [13, 7, 1, 0]


@given(BUDGETS, st.integers(1, 2048))
def test_all_fit_at_the_deepest_k_and_not_at_the_next(budget: StepRoom, running: int) -> None:
    def fits(k: int) -> bool:
        slots = max(0, k - 1) if budget.is_parallel else 0
        return running * (1 + k) <= budget.tokens and running * (1 + k + slots) <= budget.positions

    largest_k = budget.largest_k(running)
    assert fits(largest_k) or largest_k == 0  # at 0 as in an engine without speculation, whether that fits or not
    assert not fits(largest_k + 1)


@given(BUDGETS, st.integers(1, 64), st.integers(0, 4096))
def test_what_is_laid_out_fits_beside_the_step(budget: StepRoom, requests: int, tokens: int) -> None:
    width = budget.widest(requests, tokens)
    assert width >= 1
    if budget.is_parallel and tokens <= budget.positions:
        assert tokens + (width - 1) * requests <= budget.positions < tokens + width * requests


def test_a_block_fits_whole_or_not_at_all_and_beside_any_step() -> None:
    room = StepRoom(512, 2048, is_parallel=True, block=16, slots=1)
    assert [room.largest_k(n) for n in (1, 128, 129)] == [511, 3, 0]
    assert StepRoom(2048, 2048, is_parallel=True, block=16, slots=1).largest_k(128) == 14
    assert StepRoom(2048, 2048, is_parallel=True, block=16, slots=15).largest_k(128) == 0
    assert room.widest(128, 512) > 1000


def test_without_a_limit_nothing_is_cut() -> None:
    assert StepRoom().largest_k(1024) > 1000
    assert StepRoom().widest(0, 0) > 1000

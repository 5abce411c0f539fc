"""What vLLM's sampling gets wrong in an engine that speculates, and that the adapter puts it right."""

from types import SimpleNamespace

import torch
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

from specpilot.engine_adapter.vllm.v1 import sampling


class _Budgets:
    """A budget of 3 tokens of thinking, spent, for the request in row 1 of 2."""

    def __init__(self, num_spec_tokens: int) -> None:
        reasoning = SimpleNamespace(reasoning_start_token_ids=[1], reasoning_end_token_ids=[2])
        self.holder = ThinkingBudgetStateHolder(reasoning, 4, num_spec_tokens, torch.device("cpu"), False)
        params = SimpleNamespace(thinking_token_budget=3)
        update = SimpleNamespace(removed=[], added=[(1, params, [9, 1], [5, 6, 7])], moved=[])
        self.holder.sync_batch(update)

    def forced(self) -> list[tuple[int, int]]:
        """Return the rows of a step without drafts that are forced, and the token of each."""
        outputs: list[list[int]] = [[4, 4, 4], [5, 6, 7]]
        self.holder.update_state(outputs, [[], []], repeat_indices=None)
        logits = self.holder.apply_to_logits(torch.zeros(2, 12), predict_bonus_token=False, spec_token_ids=[[], []])
        return [(int(row), int(token)) for row, token in logits.nonzero()]


def test_a_spent_thinking_budget_ends_the_thinking_of_its_own_request_in_a_step_without_drafts() -> None:
    assert _Budgets(0).forced() == [(1, 2)]  # without speculation
    assert _Budgets(7).forced() == [(0, 2)]  # what vLLM does by itself: the day that it does not, this can go
    budgets = _Budgets(7)
    runner = SimpleNamespace(input_batch=SimpleNamespace(thinking_budget_state_holder=budgets.holder))
    with sampling.one_row_each(runner, SimpleNamespace()):  # type: ignore[arg-type]
        assert budgets.holder.in_spec_mode
    with sampling.one_row_each(runner, None):
        assert budgets.forced() == [(1, 2)]
    assert budgets.holder.in_spec_mode
    with sampling.one_row_each(SimpleNamespace(input_batch=SimpleNamespace(thinking_budget_state_holder=None)), None):
        pass

"""What model runner V1's sampling gets wrong in an engine that speculates: thinking budgets.

An engine that speculates finds a request's rows of logits by the drafts of those before it. Where a step has none it
takes the first row for everybody's: the end of one request's thinking would be forced upon another.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.spec_decode.metadata import SpecDecodeMetadata


@contextmanager
def one_row_each(runner: Any, metadata: SpecDecodeMetadata | None) -> Iterator[None]:
    """Let thinking budgets know that each request of the `runner` has one row of logits, if a step verifies nothing.

    `metadata` says what it verifies, `None` for nothing.
    """
    budgets = runner.input_batch.thinking_budget_state_holder if metadata is None else None
    if budgets is None:
        yield
        return
    is_speculating, budgets.in_spec_mode = budgets.in_spec_mode, False
    try:
        yield
    finally:
        budgets.in_spec_mode = is_speculating

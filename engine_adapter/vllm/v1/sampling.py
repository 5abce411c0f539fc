"""A repair of model runner V1's sampling in a speculating engine: thinking budgets.

A speculating engine finds a request's rows of logits by counting the drafts of the requests before it. In a step
without drafts it uses the first row for all requests, so the end of one request's thinking would be forced on another
request.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.spec_decode.metadata import SpecDecodeMetadata


@contextmanager
def one_row_each(runner: Any, metadata: SpecDecodeMetadata | None) -> Iterator[None]:
    """Make thinking budgets use one row of logits for each request of the `runner`, if a step verifies nothing.

    `metadata` describes the drafts to verify, `None`: there are none.
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

"""A step that verifies nothing is laid out as without speculation; what was rejected is read off vLLM's own output."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # vLLM's own, on import

CONFIG = object()


def speculates(drafts: dict[str, list[int]], *, is_hybrid: bool = False) -> bool:
    """Whether a wrapped method of a runner sees an engine that speculates, in a step that verifies `drafts`."""
    from engine_adapter.undrafted import without_speculation  # noqa: PLC0415 - imports vLLM, which takes seconds

    runner = SimpleNamespace(speculative_config=CONFIG, model_config=SimpleNamespace(is_hybrid=is_hybrid))
    seen: list[Any] = []
    wrapped = without_speculation(lambda self, output, tokens: seen.append(self.speculative_config) or tokens)
    assert wrapped(runner, SimpleNamespace(scheduled_spec_decode_tokens=drafts), 7) == 7
    assert runner.speculative_config is CONFIG
    return seen == [CONFIG]


def test_a_step_without_a_draft_is_laid_out_as_without_speculation() -> None:
    assert not speculates({})


def test_a_step_with_a_draft_and_every_step_of_a_hybrid_model_go_vllms_own_way() -> None:
    assert speculates({"a": [5, 6]})
    assert speculates({}, is_hybrid=True)


def test_after_a_failure_in_such_a_step_the_engine_still_speculates() -> None:
    from engine_adapter.undrafted import without_speculation  # noqa: PLC0415 - as above

    def fail(_self: Any, _output: Any) -> None:
        raise MemoryError

    runner = SimpleNamespace(speculative_config=CONFIG, model_config=SimpleNamespace(is_hybrid=False))
    with pytest.raises(MemoryError):
        without_speculation(fail)(runner, SimpleNamespace(scheduled_spec_decode_tokens={}))
    assert runner.speculative_config is CONFIG


def test_rejected_drafts_are_counted_for_each_request() -> None:
    from engine_adapter.undrafted import rejected  # noqa: PLC0415 - imports vLLM, which takes seconds

    sampled = torch.tensor([[5, 6, 7, -1], [8, -1, -1, -1], [9, -1, -1, -1], [1, 2, 3, 4]])
    metadata = SimpleNamespace(
        cu_num_sampled_tokens=torch.tensor([4, 8, 9, 13], dtype=torch.int32)
    )  # drafts: 3, 3, 0, 3
    assert rejected(metadata, sampled).tolist() == [1, 3, 0, 0]

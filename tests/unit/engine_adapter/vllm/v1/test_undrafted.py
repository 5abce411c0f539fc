"""A plain step runs as in an engine without speculation; what was rejected is read off vLLM's own output."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specpilot.engine_adapter.plan.step_plan import PLAN, StepPlan
from specpilot.engine_adapter.vllm.v1 import undrafted
from specpilot.engine_adapter.vllm.v1.undrafted import as_without_speculation

CONFIG = object()


def is_plain(*, is_hybrid: bool = False, **step: Any) -> bool:
    """Whether a step of two decodes at K = 0 for all is plain, except where `step` says otherwise."""
    tokens = {"a": 1, "b": 1}
    output = {
        "scheduled_spec_decode_tokens": {},
        "num_scheduled_tokens": tokens,
        "total_num_scheduled_tokens": 2,
        PLAN: StepPlan(0),
    }
    runner = SimpleNamespace(model_config=SimpleNamespace(is_hybrid=is_hybrid))
    return undrafted.is_plain(runner, SimpleNamespace(**output | step))


@pytest.mark.parametrize(
    "step",
    [
        {PLAN: StepPlan(3, 6)},
        {"scheduled_spec_decode_tokens": {"a": [5]}, "num_scheduled_tokens": {"a": 2}},
        {"num_scheduled_tokens": {"a": 1, "b": 8}, "total_num_scheduled_tokens": 9},
        {PLAN: StepPlan(0, catch_up=("a",))},
        {"is_hybrid": True},
    ],
)
def test_a_step_that_drafts_verifies_prefills_or_catches_up_is_not_nor_is_one_of_a_hybrid_model(
    step: dict[str, Any],
) -> None:
    assert is_plain()
    assert not is_plain(**step)


def test_a_step_of_another_scheduler_is_not_plain() -> None:
    output = SimpleNamespace(
        scheduled_spec_decode_tokens={},
        num_scheduled_tokens={"a": 1},
        total_num_scheduled_tokens=1,
    )
    assert not undrafted.is_plain(SimpleNamespace(), output)
    assert not undrafted.is_undrafted(SimpleNamespace(), output)


def test_a_step_that_prefills_or_catches_up_is_laid_out_as_without_speculation_unless_it_verifies() -> None:
    runner, hybrid = (SimpleNamespace(model_config=SimpleNamespace(is_hybrid=is_hybrid)) for is_hybrid in (False, True))
    plain, drafted = (
        SimpleNamespace(scheduled_spec_decode_tokens=drafts, **{PLAN: StepPlan(0, catch_up=("a",))})
        for drafts in ({}, {"a": [5]})
    )
    assert undrafted.is_undrafted(runner, plain)
    assert not undrafted.is_undrafted(runner, drafted)
    assert not undrafted.is_undrafted(hybrid, plain)


@pytest.mark.parametrize("is_hidden", [True, False])
def test_what_is_run_without_speculation_sees_an_engine_that_has_none(is_hidden: bool) -> None:
    runner = SimpleNamespace(speculative_config=CONFIG)
    seen = as_without_speculation(runner, is_hidden, lambda self, one: (self.speculative_config, one), 1)
    assert seen == (None if is_hidden else CONFIG, 1)
    assert runner.speculative_config is CONFIG


def test_after_a_failure_in_such_a_step_the_engine_still_speculates() -> None:
    def fail(_self: Any) -> None:
        raise MemoryError

    runner = SimpleNamespace(speculative_config=CONFIG)
    with pytest.raises(MemoryError):
        as_without_speculation(runner, True, fail)
    assert runner.speculative_config is CONFIG


def test_rejected_drafts_are_counted_for_each_request() -> None:
    sampled = torch.tensor([[5, 6, 7, -1], [8, -1, -1, -1], [9, -1, -1, -1], [1, 2, 3, 4]])
    metadata = SimpleNamespace(
        cu_num_sampled_tokens=torch.tensor([4, 8, 9, 13], dtype=torch.int32)
    )  # drafts: 3, 3, 0, 3
    assert undrafted.rejected(metadata, sampled).tolist() == [1, 3, 0, 0]

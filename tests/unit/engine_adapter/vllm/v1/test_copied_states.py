"""Which states of a step are copied before the drafter runs, and when prompts' probabilities are read of them."""

import pytest

from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.vllm.v1.backlog import Backlog
from specpilot.engine_adapter.vllm.v1.drafting import Drafting
from specpilot.engine_adapter.vllm.v1.undrafted import reads_ahead
from tests.support.device_apart import Drafter, Step


@pytest.mark.parametrize(("width", "is_plain", "is_ahead"), [(3, False, True), (0, False, False), (0, True, False)])
def test_prompts_probabilities_are_read_after_vllms_own_drafting(
    drafter: Drafter, width: int, *, is_plain: bool, is_ahead: bool
) -> None:
    drafting, step = Drafting(Backlog(drafter)), Step([1, 8, 1, 3] if width else [1] * 4)
    drafting.plan, drafting.is_plain, step.width = StepPlan(width), is_plain, width
    assert not reads_ahead(drafting, step.runner, step.state)
    step.runner.num_prompt_logprobs = {"b": 1}
    assert reads_ahead(drafting, step.runner, step.state) is is_ahead


@pytest.mark.parametrize(
    ("lengths", "largest", "is_copied"),
    [([1, 8, 1, 3], 13, True), ([1, 9, 1, 3], 13, False), ([1] * 4, 13, True), ([1] * 4, None, False)],
)
@pytest.mark.parametrize("has_logprobs", [True, False])
def test_only_what_a_graph_left_is_copied_and_what_prompts_probabilities_are_read_of_too(
    drafter: Drafter, lengths: list[int], largest: int | None, *, is_copied: bool, has_logprobs: bool
) -> None:
    """A step beyond the largest graph leaves its states outside the graphs' pool; an engine without graphs always."""
    drafter.vllm_config.compilation_config.max_cudagraph_capture_size = largest
    state = Step(lengths).state
    found = Backlog(drafter).beyond_passes(state, has_prompt_logprobs=has_logprobs)
    assert (found.aux_hidden_states[0] is not state.aux_hidden_states[0]) is is_copied
    assert (found.hidden_states is not state.hidden_states) is (is_copied and has_logprobs)

"""The repairs of vLLM on CPUs, each by itself; that the text is right is what the tests with real engines say."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specpilot.engine_adapter.vllm.v1.cpu_sampling import (
    expand_batch_to_tokens,
    reach_kernels,
    sampling_with_seeds_of_whole_prompts,
)


def test_each_request_s_value_stands_once_for_each_of_its_tokens() -> None:
    found = expand_batch_to_tokens(torch.tensor([0.5, 0.0, 2.0]), torch.tensor([2, 5, 6]), 6, 0, 1)
    assert found.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0, 2.0]


def test_only_launchers_of_plain_functions_are_given_a_stand_in() -> None:
    def needs_triton() -> None: ...
    def unknown() -> None: ...

    ready = SimpleNamespace(__name__="needs_triton")
    launchers, stand_ins = ModuleType("launchers"), ModuleType("stand_ins")
    vars(stand_ins)["needs_triton"] = stand_in = object()
    vars(launchers).update(
        broken=SimpleNamespace(kernel=needs_triton),
        fine=SimpleNamespace(kernel=ready),
        other=SimpleNamespace(kernel=unknown),
        number=3,
    )
    reach_kernels(launchers, stand_ins)
    found = vars(launchers)
    assert found["broken"].kernel is stand_in
    assert found["fine"].kernel is ready
    assert found["other"].kernel is unknown


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_whose_prompt_goes_on_is_sampled_without_its_generator_and_has_it_back(fails: bool) -> None:
    generators = {index: torch.Generator().manual_seed(index) for index in (0, 2, 3)}
    batch = SimpleNamespace(num_reqs=4, generators=dict(generators))
    is_dropped = np.array([False, True, True, False, True])  # the last is of an earlier, larger batch
    runner = SimpleNamespace(input_batch=batch, discard_request_mask=SimpleNamespace(np=is_dropped))
    seen = []

    def sample_tokens(self: Any, grammar_output: Any) -> Any:
        seen.append(sorted(self.input_batch.generators))
        if fails:
            raise RuntimeError
        return grammar_output

    sample = sampling_with_seeds_of_whole_prompts(sample_tokens)
    if fails:
        with pytest.raises(RuntimeError):
            sample(runner, "a mask")
    else:
        assert sample(runner, "a mask") == "a mask"
    assert seen == [[0, 3]]
    assert batch.generators == generators

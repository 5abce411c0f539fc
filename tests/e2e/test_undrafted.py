"""A step without drafts is laid out as vLLM would lay it out; what was rejected is read off vLLM's own output."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # vLLM's own, on import


@pytest.mark.parametrize("scheduled", [[1], [1, 1, 1], [4, 1, 7, 1], [100, 37]])
def test_the_layout_equals_what_vllm_computes(scheduled: list[int]) -> None:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: PLC0415 - takes seconds, and torch

    from engine_adapter.undrafted import layout  # noqa: PLC0415 - as above

    total = np.cumsum(scheduled, dtype=np.int32)
    runner = SimpleNamespace(
        _arange_scratch=np.arange(256, dtype=np.int64),
        arange_np=np.arange(256, dtype=np.int64),
        _get_cumsum_and_arange=lambda *args, **kwargs: GPUModelRunner._get_cumsum_and_arange(runner, *args, **kwargs),
        device=torch.device("cpu"),
        input_ids=SimpleNamespace(gpu=torch.arange(256, dtype=torch.int32)),
    )
    expected = GPUModelRunner._calc_spec_decode_metadata(runner, np.zeros(len(scheduled), dtype=np.int32), total)
    found = layout(torch.from_numpy(total))
    for field in fields(expected):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if isinstance(theirs, torch.Tensor):
            assert mine.tolist() == theirs.tolist(), field.name
        else:
            assert mine == theirs, field.name
    assert found.max_spec_len == expected.max_spec_len == 0


def test_rejected_drafts_are_counted_for_each_request() -> None:
    from engine_adapter.undrafted import rejected  # noqa: PLC0415 - imports vLLM, which takes seconds

    sampled = torch.tensor([[5, 6, 7, -1], [8, -1, -1, -1], [9, -1, -1, -1], [1, 2, 3, 4]])
    metadata = SimpleNamespace(
        cu_num_sampled_tokens=torch.tensor([4, 8, 9, 13], dtype=torch.int32)
    )  # drafts: 3, 3, 0, 3
    assert rejected(metadata, sampled).tolist() == [1, 3, 0, 0]

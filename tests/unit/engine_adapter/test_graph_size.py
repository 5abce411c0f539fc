"""The size of the largest CUDA graph of an engine that speculates."""

import pytest

from specpilot.engine_adapter.graph_size import capture_size


@pytest.mark.parametrize(
    ("running", "k_max", "size"),
    [
        (None, 7, 1024),
        (256, 7, 1024),
        (100, 7, 800),
        (65, 7, 528),  # vLLM captures multiples of 16 there, and would end at 512 below 520
        (64, 7, None),  # vLLM's own default covers them
        (64, None, 1024),
        (256, 1, None),
    ],
)
def test_graphs_are_captured_for_all_requests_at_k_max_up_to_a_largest_size(
    running: int | None, k_max: int | None, size: int | None
) -> None:
    assert capture_size(running, k_max) == size

import pytest

from specpilot.engine_adapter.graph_flags import CAPTURE_SIZE, capture_size


@pytest.mark.parametrize(
    ("passed", "size"),
    [
        ([], "1024"),
        (["--max-num-seqs", "256"], "1024"),
        (["--max_num_seqs=100"], "800"),
        (["--max-num-seqs", "many"], "1024"),
        (["--max-num-seqs", "32", "--max-num-seqs=100"], "800"),  # argparse takes the last one
        (["--max-num-seqs", "65"], "528"),  # vLLM captures multiples of 16 there, and would end at 512 below 520
        (["--config-format", "hf"], "1024"),
    ],
)
def test_graphs_are_captured_for_all_requests_at_k_max_up_to_a_largest_size(passed: list[str], size: str) -> None:
    assert capture_size(passed, 7) == [CAPTURE_SIZE, size]


@pytest.mark.parametrize(
    "passed",
    [
        ["--max-num-seqs", "64"],  # vLLM's own default covers them
        ["--max-cudagraph-capture-size", "256"],
        ["--max_cudagraph_capture_size=256"],
        ["--cudagraph-capture-sizes", "1", "2"],
        ["--compilation-config", '{"cudagraph_mode": "NONE"}'],
        ["--config", "engine.yaml"],  # flags of a file give way to those of the command line
        ["-O0"],
        ["-cc.max_cudagraph_capture_size=64"],
        ["--enforce-eager"],
    ],
)
def test_an_operators_own_flags_decide(passed: list[str]) -> None:
    assert capture_size(passed, 7) == []

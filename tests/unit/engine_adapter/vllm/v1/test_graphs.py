"""Which graph a step finds, by vLLM's own dispatcher and its runner's own code, without a GPU."""

from typing import Any

import numpy as np
import pytest
from vllm.config import CUDAGraphMode
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher

from specpilot.engine_adapter.vllm.v1 import graphs
from tests.support.graph_runner import FULL, K_MAX, LONG_SIZES, NONE, PIECEWISE, AnyMixBackend, found, key_of, runner

TABLE = [  # running requests, K, then vLLM's own, then the adapter's without and with graphs for any mix
    (1, 0, (PIECEWISE, 8), (FULL, 1), (FULL, 1)),
    (1, 4, (PIECEWISE, 8), (PIECEWISE, 8), (FULL, 8)),
    (3, 3, (PIECEWISE, 16), (FULL, 12), (FULL, 16)),
    (9, 7, (FULL, 72), (FULL, 80), (FULL, 72)),
    (65, 6, (PIECEWISE, 464), (PIECEWISE, 464), (FULL, 464)),
    (170, 2, (PIECEWISE, 512), (FULL, 510), (FULL, 512)),
    (128, 3, (PIECEWISE, 512), (FULL, 512), (FULL, 512)),
    (129, 3, (NONE, 516), (NONE, 516), (NONE, 516)),
]


@pytest.mark.parametrize(("running", "k", "stock", "uniform", "any_mix"), TABLE)
def test_a_step_of_one_k_finds_its_graph(running: int, k: int, stock: object, uniform: object, any_mix: object) -> None:
    step = [1 + k] * running
    assert found(runner(scheduler=object), step) == stock
    assert found(runner(), step) == uniform
    assert found(runner(backend=AnyMixBackend), step) == any_mix


def test_any_mix_of_k_and_prompts_replays_a_full_graph_up_to_the_largest_size() -> None:
    """Every number of requests up to `max_num_seqs`, with K at random, half of the time beside a prompt's chunk."""
    made, rng = runner(backend=AnyMixBackend, max_num_seqs=128, largest=1024), np.random.default_rng(0)
    for count in range(1, 129):
        for most in range(K_MAX + 1):
            positions = [int(length) for length in rng.integers(1, 2 + most, size=count)]
            room = 1024 - sum(positions)
            if room > 0 and rng.random() < 0.5:
                positions.append(int(rng.integers(1, room + 1)))
            if len(positions) > 128:
                continue
            mode, padded = found(made, positions)
            assert mode == FULL, positions
            assert sum(positions) <= padded <= min(size for size in (*LONG_SIZES, 128) if size >= sum(positions))


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL_AND_PIECEWISE, CUDAGraphMode.FULL])
def test_a_step_of_single_tokens_replays_a_uniform_graph_and_any_other_step_none(mode: CUDAGraphMode) -> None:
    made = runner(backend=AnyMixBackend, mode=mode, max_num_seqs=128, largest=1024)
    for count in range(1, 129):
        for positions in ([1] * count, [1] * (count - 1) + [2], [3] * count):
            *_, key = key_of(made, positions)
            assert key.uniform == (max(positions) == 1), positions
            assert key.num_reqs >= len(positions)


def test_where_mixed_steps_have_no_graphs_each_k_has_its_own() -> None:
    made = runner(mode=CUDAGraphMode.FULL_DECODE_ONLY, backend=AnyMixBackend)
    assert [found(made, [1 + k] * 3) for k in (0, 1, 7)] == [(FULL, 4), (FULL, 6), (FULL, 24)]
    assert found(made, [1, 8]) == (NONE, 9)


@pytest.mark.parametrize("kind", ["is_mm_prefix_lm", "use_mla"])
def test_attention_that_reads_a_prompt_by_arguments_of_the_step_has_no_full_graph_for_it(kind: str) -> None:
    """Which a graph does not read again: where images lie, how many tokens are prompts'."""
    options: dict[str, Any] = {kind: True}
    made = runner(**options, backend=AnyMixBackend)
    assert [found(made, [1 + k] * 3) for k in (0, 1, 7)] == [(FULL, 4), (FULL, 6), (FULL, 24)]
    for positions in ([300], [1, 300], [8, 1, 1]):
        assert found(made, positions)[0] == PIECEWISE


@pytest.mark.parametrize("running", [97, 100])
def test_as_many_as_may_run_have_a_graph_of_their_own(running: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys end at `max_num_seqs`; a batch that is padded beyond it would find none."""
    monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", "2")
    assert found(runner(max_num_seqs=100), [1] * running) == (FULL, 100)
    assert found(runner(max_num_seqs=100), [3] * running)[0] == FULL
    assert found(runner(max_num_seqs=600), [1] * 500) == (FULL, 512)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [([1, 8], 16), ([1, 2], 4), ([8, 1, 1], 16), ([300], 304)],
)
def test_a_mixed_step_is_padded_no_further_than_it_needs(positions: list[int], expected: int) -> None:
    assert found(runner(), positions) == (PIECEWISE, expected)
    assert found(runner(backend=AnyMixBackend), positions) == (FULL, expected)


def test_the_query_length_is_put_back_after_a_step() -> None:
    made = runner()
    found(made, [8, 8])
    assert (made.uniform_decode_query_len, made.cudagraph_dispatcher.step_length) == (1 + K_MAX, 1)


def test_the_query_length_is_put_back_after_a_step_that_fails() -> None:
    made = runner()

    def fail() -> None:
        assert made.cudagraph_dispatcher.step_length == 8
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), graphs.of_length(made, 8):
        fail()
    assert (made.uniform_decode_query_len, made.cudagraph_dispatcher.step_length) == (1 + K_MAX, 1)


@pytest.mark.parametrize(
    ("mode", "one", "mixed"),
    [
        (CUDAGraphMode.PIECEWISE, (PIECEWISE, 1), (PIECEWISE, 16)),
        (CUDAGraphMode.FULL_DECODE_ONLY, (FULL, 1), (NONE, 9)),
        (CUDAGraphMode.NONE, (NONE, 1), (NONE, 9)),
    ],
)
def test_other_modes_pad_no_further_either(mode: CUDAGraphMode, one: object, mixed: object) -> None:
    made = runner(mode=mode)
    assert (found(made, [1]), found(made, [1, 8])) == (one, mixed)


def test_hybrid_models_ranks_in_lockstep_and_other_schedulers_keep_vllms_dispatcher() -> None:
    assert type(runner(is_hybrid=True).cudagraph_dispatcher) is CudagraphDispatcher
    assert type(runner(scheduler=object).cudagraph_dispatcher) is CudagraphDispatcher
    assert type(runner(ranks=2).cudagraph_dispatcher) is CudagraphDispatcher
    assert isinstance(runner().cudagraph_dispatcher, graphs.StepDispatcher)

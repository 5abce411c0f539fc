"""Which graphs an engine captures, how, and what the record of them holds; and what an engine does not start on."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.attention.mla_attention import QueryLenSupport
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.vllm import graph_record
from specpilot.engine_adapter.vllm.scheduler import SpecPilotScheduler
from specpilot.engine_adapter.vllm.v1 import drafting, graphs
from tests.support.graph_runner import FULL, K_MAX, SIZES, AnyMixBackend, UniformBackend, UntriedBackend, runner


def test_k_that_an_operator_names_get_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", "3")
    for backend, lengths in ((UniformBackend, (1, 4, 8)), (AnyMixBackend, (1, 4))):
        assert runner(backend=backend).cudagraph_dispatcher.lengths == lengths
    monkeypatch.delenv("SPECPILOT_ENGINE_GRAPH_K")
    for backend, lengths in ((UniformBackend, (1, 2, 3, 4, 6, 8)), (AnyMixBackend, (1,))):
        assert runner(backend=backend).cudagraph_dispatcher.lengths == lengths


def test_a_backend_that_supports_less_for_one_group_of_layers_decides_for_all() -> None:
    groups = [SimpleNamespace(kv_cache_spec=None)] * 2
    assert graphs.supports_any_mix(None, [{AnyMixBackend}, {AnyMixBackend}], groups)
    assert not graphs.supports_any_mix(None, [{AnyMixBackend}, {AnyMixBackend, UniformBackend}], groups)
    assert not graphs.supports_any_mix(None, [{AnyMixBackend}, {UntriedBackend}], groups)


class OneLengthBackend(UniformBackend):
    """As MLA's on many GPUs: decodes of another length than most are taken for prompts."""

    query_len_support = QueryLenSupport.UNIFORM

    @staticmethod
    def get_name() -> str:
        return "SOME_MLA"


def test_a_steered_engine_does_not_start_on_attention_that_reads_other_lengths_inexactly() -> None:
    made = runner()
    groups = [SimpleNamespace(kv_cache_spec=None)]
    with pytest.raises(UnsupportedEngineError, match="backend SOME_MLA reads decodes"):
        GPUModelRunner._check_and_update_cudagraph_mode(made, [{OneLengthBackend}], groups)
    for other in (runner(scheduler=object), runner(scheduler=SpecPilotScheduler)):
        GPUModelRunner._check_and_update_cudagraph_mode(other, [{OneLengthBackend}], groups)


ANY_MIX_GRAPHS = ["50 FULL graphs for any mix of K and prompts", "35 FULL graphs for K = 0"]
UNIFORM_GRAPHS = [
    "35 FULL graphs for K = 0", "23 FULL graphs for K = 2", "22 FULL graphs for K = 3", "19 FULL graphs for K = 7",
]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "mode", "listed", "said"),
    [
        (UniformBackend, CUDAGraphMode.FULL_AND_PIECEWISE, "2,3", UNIFORM_GRAPHS),
        (AnyMixBackend, CUDAGraphMode.FULL_AND_PIECEWISE, "", ANY_MIX_GRAPHS),
        (AnyMixBackend, CUDAGraphMode.FULL, "", ["51" + ANY_MIX_GRAPHS[0][2:], ANY_MIX_GRAPHS[1]]),
    ],
)
def test_every_captured_graph_is_found_by_the_dummy_run_that_captures_it(
    backend: type,
    mode: CUDAGraphMode,
    listed: str,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Capturing asks for the same key that a step of that shape will; `_dummy_run` is reduced to what it asks."""
    monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", listed)
    made = runner(backend=backend, mode=mode)
    seen = []

    def dummy_run(tokens: int, *, uniform_decode: bool, cudagraph_runtime_mode: Any, **_: Any) -> None:
        length = made.uniform_decode_query_len if uniform_decode else tokens
        count = -(-tokens // length) if uniform_decode else min(tokens, 256)
        mode, key, *_ = GPUModelRunner._determine_batch_execution_and_padding(
            made,
            num_tokens=tokens,
            num_reqs=count,
            num_scheduled_tokens_np=np.zeros(count),
            max_num_scheduled_tokens=length,
            force_uniform_decode=uniform_decode,
            force_eager=cudagraph_runtime_mode == CUDAGraphMode.NONE,
        )
        seen.append((mode, key))

    made._dummy_run = dummy_run
    wanted = [(mode, key) for mode, keys in made.cudagraph_dispatcher.get_capture_descs() for key in keys]
    for wanted_mode, key in wanted:
        GPUModelRunner._warmup_and_capture(made, key, wanted_mode, num_warmups=0)
    assert seen == wanted
    assert len(set(wanted)) == len(wanted)
    assert made.uniform_decode_query_len == 1 + K_MAX
    with caplog.at_level("INFO", logger="vllm.specpilot"):
        graphs.say_captured(made)
    assert [line.split(":")[1].split(",")[0].strip() for line in caplog.messages] == said


@pytest.mark.parametrize("asked", [None, 3])
def test_no_graph_is_captured_over_sequences_longer_than_the_model_takes(asked: int | None) -> None:
    """By itself vLLM takes as many tokens for each request as the step has: attention would read beyond the blocks."""
    made = runner(backend=AnyMixBackend)
    made.max_model_len = 100
    lengths: dict[tuple[str, Any], set[Any]] = {}

    def dummy_run(tokens: int, *, uniform_decode: bool, profile_seq_lens: int | None, **_: Any) -> None:
        length = made.uniform_decode_query_len if uniform_decode else tokens
        lengths.setdefault((mode.name, key), set()).add(length if profile_seq_lens is None else profile_seq_lens)

    made._dummy_run = dummy_run
    for mode, keys in made.cudagraph_dispatcher.get_capture_descs():
        for key in keys:
            GPUModelRunner._warmup_and_capture(made, key, mode, num_warmups=0, profile_seq_lens=asked)
    for (mode_name, key), found_lengths in lengths.items():
        if mode_name == FULL:
            longest = key.num_tokens // key.num_reqs if key.uniform else min(100, key.num_tokens)
            assert found_lengths == {longest if asked is None else asked}


def test_graphs_are_made_anew_as_vllm_does_after_it_measured_their_memory() -> None:
    made = runner()
    before = {mode: set(keys) for mode, keys in made.cudagraph_dispatcher.cudagraph_keys.items()}
    for keys in made.cudagraph_dispatcher.cudagraph_keys.values():
        keys.clear()
    made.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_AND_PIECEWISE, 1 + K_MAX)
    assert made.cudagraph_dispatcher.cudagraph_keys == before


def test_graphs_that_would_take_too_much_memory_are_made_fewer_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, total = runner(), 10 << 30
    monkeypatch.setattr(graphs.torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(graphs.torch.accelerator, "get_memory_info", lambda: (total, total))
    assert not graphs.is_too_much(made, total // 10)
    assert graphs.is_too_much(made, total // 10 + 1)
    assert "name further K with --graph-k, or lower --max-cudagraph-capture-size" in caplog.text
    assert not graphs.is_too_much(made, total)  # the rest has to be captured
    made.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_AND_PIECEWISE, 1 + K_MAX)
    assert made.cudagraph_dispatcher.lengths == (1, 8)


def test_a_mode_that_the_backend_does_not_support_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    runner(mode=CUDAGraphMode.FULL)
    said = [line for line in caplog.messages if "cudagraph_mode=FULL, so vLLM runs FULL_AND_PIECEWISE" in line]
    assert len(said) == 1


class _Drafter:
    """The part of a drafter that concerns its graphs."""

    def __init__(self, made: Any, *, is_parallel: bool) -> None:
        self.parallel_drafting, self.pass_hidden_states_to_model, self.method = is_parallel, True, "eagle3"
        self.speculative_config = SimpleNamespace(enforce_eager=False)
        self.cudagraph_dispatcher = CudagraphDispatcher(made.vllm_config)
        SpecDecodeBaseProposer.initialize_cudagraph_keys(self, made.cudagraph_dispatcher.cudagraph_mode)


def recorded(made: Any, method: str = "eagle3", *, is_parallel: bool = True) -> Graphs | None:
    """Return the record of an engine's graphs as it comes from its worker, with a drafter that is steered."""
    made.drafter = _Drafter(made, is_parallel=is_parallel)
    made.drafter.method = method
    worker = SimpleNamespace(model_runner=made)
    assert graph_record.of_worker(worker) is None  # its drafter is not steered yet
    drafting.attach(made.drafter, SimpleNamespace())  # type: ignore[arg-type]
    return graph_record.of_config(SimpleNamespace(**{graph_record.GRAPHS: graph_record.of_worker(worker)}))


RECORDS = [
    (UniformBackend, CUDAGraphMode.FULL_AND_PIECEWISE, True, "FULL_AND_PIECEWISE", tuple(SIZES), (2, 3, 4, 6, 8)),
    (UniformBackend, CUDAGraphMode.FULL_AND_PIECEWISE, False, "FULL_AND_PIECEWISE", tuple(SIZES), (2, 3, 4, 6, 8)),
    (AnyMixBackend, CUDAGraphMode.FULL_AND_PIECEWISE, True, "FULL", tuple(SIZES[1:]), ()),
    (AnyMixBackend, CUDAGraphMode.FULL, True, "FULL", tuple(SIZES), ()),
]


@pytest.mark.parametrize(("backend", "configured", "is_parallel", "mode", "mixed", "lengths"), RECORDS)
def test_the_record_tells_the_graphs(
    backend: type,
    configured: CUDAGraphMode,
    is_parallel: bool,
    mode: str,
    mixed: tuple[int, ...],
    lengths: tuple[int, ...],
) -> None:
    made = runner(max_num_seqs=24, backend=backend, mode=configured)
    counts = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 24)
    assert recorded(made, is_parallel=is_parallel) == Graphs(
        mode,
        mixed,
        {1: (1, 2, 4, 8, 16, 24), **{length: tuple(length * count for count in counts) for length in lengths}},
        tuple(SIZES) if is_parallel and configured != CUDAGraphMode.FULL else (),
    )
    assert graph_record.of_config(SimpleNamespace()) is None


def test_the_passes_of_a_block_are_not_priced_by_the_positions_of_a_step() -> None:
    found = recorded(runner(), "dflash")
    assert found is not None
    assert (found.mode, found.drafter) == ("FULL_AND_PIECEWISE", ())


def test_an_engine_without_graphs_tells_none() -> None:
    assert recorded(runner(mode=CUDAGraphMode.NONE)) is None

"""Which graphs a steered engine on model runner V2 has, and which a step finds, by vLLM's managers, without a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.v1.worker.gpu import cudagraph_utils

from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.vllm import versions
from specpilot.engine_adapter.vllm.v2 import graph_record, graphs, steered

pytestmark = pytest.mark.skipif(
    not versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2), reason="this vLLM's V2 is not steered"
)

K_MAX, REQUESTS = 7, 32
SIZES = [1, 2, 4, *range(8, 129, 8)]


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    monkeypatch.setattr(cudagraph_utils, "get_pp_group", lambda: group)
    platform = SimpleNamespace(get_global_graph_pool=lambda: None)
    monkeypatch.setattr(cudagraph_utils, "current_platform", platform)


def config(ranks: int = 1) -> Any:
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=REQUESTS),
        compilation_config=CompilationConfig(cudagraph_capture_sizes=SIZES, max_cudagraph_capture_size=max(SIZES)),
        parallel_config=SimpleNamespace(tensor_parallel_size=1, data_parallel_size=ranks),
        model_config=SimpleNamespace(is_moe=True),
        speculative_config=SimpleNamespace(uses_dynamic_speculative_decoding=lambda: False),
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        num_speculative_tokens=K_MAX,
    )


class Speculator:
    """Of a sequential head."""

    def __init__(self, mode: CUDAGraphMode) -> None:
        own = config()
        self.supports_decode_metadata_update = True
        self.prefill_cudagraph_manager = graphs.SpeculatorCudaGraphManager(own, None, mode, 1 + K_MAX)
        self.decode_cudagraph_manager = graphs.SpeculatorCudaGraphManager(
            own, None, CUDAGraphMode.FULL_DECODE_ONLY, decode_query_len=1
        )


def runner(
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_varlen: bool = True,
    mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE,
    is_hybrid: bool = False,
    backend: str = "FLASH_ATTN",
    is_adaptive: bool = False,
    speculator: Any = None,
    ranks: int = 1,
) -> Any:
    """A runner after vLLM has made its managers and the adapter has replaced them, and all is captured."""
    unsupported = None if is_varlen else ("FLASHINFER", None)
    builder = SimpleNamespace(require_uniform_decodes=backend == "FLASHMLA_SPARSE")
    attention = SimpleNamespace(get_name=lambda: backend, get_builder_cls=lambda: builder)
    monkeypatch.setattr(graphs, "get_varlen_cudagraph_unsupported_backend", lambda *_: unsupported)
    found = SimpleNamespace(
        vllm_config=config(ranks),
        device=None,
        attn_groups=[[SimpleNamespace(backend=attention)]],
        decode_query_len=1 + K_MAX,
        model_config=SimpleNamespace(is_hybrid=is_hybrid),
        speculator=speculator or Speculator(mode),
        adaptive_verification=SimpleNamespace() if is_adaptive else None,
        cudagraph_manager=graphs.ModelCudaGraphManager(config(), None, mode, 1 + K_MAX),
    )
    steered.attach(found.speculator, steered.Steered(SimpleNamespace()))
    graphs.replace_managers(found)
    for manager in (found.cudagraph_manager, getattr(found.speculator, "prefill_cudagraph_manager", None)):
        if manager is not None:
            manager._graphs_captured = True
    return found


def found_by(manager: Any, lengths: list[int]) -> tuple[str, int, int | None, int | None]:
    """Mode, tokens, requests and uniform length of the graph that a step of decodes with these positions finds."""
    uniform = lengths[0] if len(set(lengths)) == 1 else None
    graph = manager.dispatch(len(lengths), sum(lengths), uniform, 0, max_query_len=max(lengths))
    return graph.cg_mode.name, graph.num_tokens, graph.num_reqs, graph.uniform_token_count


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([1], ("FULL", 1, 1, 1)),  # K = 0 has graphs of its own
        ([1] * 30, ("FULL", 32, 32, 1)),
        ([8] * 16, ("FULL", 128, 32, None)),  # K_max
        ([2] * 3, ("FULL", 8, 8, None)),
        ([1, 8, 2, 4], ("FULL", 16, 16, None)),  # any mix
        ([4] * 32, ("FULL", 128, 32, None)),
        ([5] * 32, ("NONE", 160, 32, None)),  # beyond the largest
        ([9, 1], ("PIECEWISE", 16, None, None)),  # a prompt
    ],
)
def test_a_step_of_any_mix_of_k_finds_a_full_graph(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], found: tuple[Any, ...]
) -> None:
    own = runner(monkeypatch)
    assert found_by(own.cudagraph_manager, lengths) == found
    assert found_by(own.speculator.prefill_cudagraph_manager, lengths) == found


class WithoutGraphs:
    """A speculator whose passes have none: a draft model's, and n-grams."""


def test_with_a_drafter_without_graphs_the_target_has_them_for_any_mix_of_k(monkeypatch: pytest.MonkeyPatch) -> None:
    own = runner(monkeypatch, speculator=WithoutGraphs())
    assert found_by(own.cudagraph_manager, [1, 8, 2, 4]) == ("FULL", 16, 16, None)
    assert graph_record.of_runner(own) is not None


def test_an_engine_that_verifies_adaptively_has_graphs_of_any_mix_on_every_backend_that_vllm_starts_it_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = runner(monkeypatch, backend="FLEX_ATTENTION", is_adaptive=True)
    assert found_by(own.cudagraph_manager, [1, 8, 2, 4]) == ("FULL", 16, 16, None)
    assert found_by(own.cudagraph_manager, [1] * 4) == ("FULL", 4, 4, 1)


def test_the_first_pass_finds_the_targets_graph_though_vllm_does_not_say_how_long_requests_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = runner(monkeypatch)
    manager = own.speculator.prefill_cudagraph_manager
    batch = SimpleNamespace(has_prefill=False, num_scheduled_tokens=[1, 8, 2])
    batch.num_scheduled_tokens = cudagraph_utils.torch.tensor(batch.num_scheduled_tokens).numpy()
    graphs.note_longest(own.speculator, batch)
    assert manager.dispatch(3, 16, None, num_active_loras=0).max_query_len == 1 + K_MAX
    batch.has_prefill = True
    graphs.note_longest(own.speculator, batch)
    assert manager.dispatch(3, 16, None, num_active_loras=0).cg_mode == CUDAGraphMode.PIECEWISE


@pytest.mark.parametrize(
    ("lengths", "mode"),
    [([1] * 5, "FULL"), ([4] * 5, "FULL"), ([8] * 5, "FULL"), ([7] * 5, "PIECEWISE"), ([1, 4], "PIECEWISE")],
)
@pytest.mark.parametrize("options", [{"is_varlen": False}, {"backend": "FLEX_ATTENTION"}])
def test_attention_without_variable_lengths_or_whose_graphs_never_ran_has_graphs_for_some_k(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], lengths: list[int], mode: str
) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", "3")
    assert found_by(runner(monkeypatch, **options).cudagraph_manager, lengths)[0] == mode


@pytest.mark.parametrize("mode", [CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE, CUDAGraphMode.NONE])
def test_modes_without_graphs_of_decodes_apart_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, mode: CUDAGraphMode
) -> None:
    own = runner(monkeypatch, mode=mode)
    vllms = graphs.ModelCudaGraphManager(config(), None, mode, 1 + K_MAX)
    assert own.cudagraph_manager._capture_descs == vllms._capture_descs


@pytest.mark.parametrize(("lengths", "mode"), [([1] * 5, "FULL"), ([3] * 5, "FULL"), ([1, 3], "PIECEWISE")])
def test_hybrid_models_have_graphs_for_one_k_of_all(
    monkeypatch: pytest.MonkeyPatch, lengths: list[int], mode: str
) -> None:
    """vLLM's list of unsupported backends has theirs; so it is not in ours of those that ran."""
    own = runner(monkeypatch, is_hybrid=True, backend="GDN_ATTN")
    assert found_by(own.cudagraph_manager, lengths)[0] == mode
    assert found_by(own.speculator.prefill_cudagraph_manager, lengths)[0] == mode
    captured = [*own.cudagraph_manager._capture_descs[CUDAGraphMode.FULL]]
    assert {graph.max_query_len or graph.uniform_token_count for graph in captured} == {1 + K_MAX}  # what Mamba takes
    assert len({(graph.num_tokens, graph.uniform_token_count) for graph in captured}) == len(captured)


@pytest.mark.parametrize(
    ("is_hybrid", "backend", "needed"),
    [(True, "GDN_ATTN", True), (False, "FLASHMLA_SPARSE", True), (False, "FLASHINFER", False)],
)
def test_the_record_says_where_decodes_need_one_k(
    monkeypatch: pytest.MonkeyPatch, *, is_hybrid: bool, backend: str, needed: bool
) -> None:
    found = graph_record.of_runner(runner(monkeypatch, is_hybrid=is_hybrid, backend=backend))
    assert found is not None
    assert found.need_one_k is needed


def test_each_graph_is_captured_once_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    full = runner(monkeypatch).cudagraph_manager._capture_descs[CUDAGraphMode.FULL]
    assert len(full) == len(set(full)) == len(SIZES) + len([size for size in SIZES if size <= REQUESTS])
    assert [graph.num_tokens for graph in full] == sorted((graph.num_tokens for graph in full), reverse=True)


def test_the_further_passes_have_a_graph_for_each_width(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = runner(monkeypatch).speculator.decode_cudagraph_manager
    captured: list[Any] = []
    monkeypatch.setattr(
        graphs.SpeculatorCudaGraphManager,
        "capture",
        lambda self, *_: captured.extend(graph for found in self._capture_descs.values() for graph in found),
    )
    manager.capture()
    sizes = {size for size in SIZES if size <= REQUESTS}
    assert {(graph.num_tokens, graph.num_speculative_tokens) for graph in captured} == {
        (size, width) for size in sizes for width in range(2, K_MAX + 1)
    }
    manager.graphs = dict.fromkeys(captured)
    graph = manager.specialize_spec_tokens(
        captured[0].__class__.__base__(
            **{name: value for name, value in vars(captured[0]).items() if name != "num_speculative_tokens"}
        ),
        3,
    )
    assert (graph.cg_mode, graph.num_speculative_tokens) == (CUDAGraphMode.FULL, 3)


def test_the_record_lists_the_steps_with_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    found = graph_record.of_runner(runner(monkeypatch))
    single = tuple(size for size in SIZES if size <= REQUESTS)
    assert found == Graphs("FULL_AND_PIECEWISE", tuple(SIZES), {1: single}, varlen=tuple(SIZES))
    apart = graph_record.of_runner(runner(monkeypatch, is_varlen=False))
    assert apart is not None
    assert (apart.varlen, sorted(apart.uniform)) == ((), [1, 2, 3, 4, 6, 8])
    eager = runner(monkeypatch, mode=CUDAGraphMode.NONE)
    assert graph_record.of_runner(eager) is None


def test_ranks_in_lockstep_keep_vllms_managers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that one rank finds by its own lengths would pad it otherwise than the others."""
    made = runner(monkeypatch, ranks=2)
    assert type(made.cudagraph_manager) is graphs.ModelCudaGraphManager
    assert type(made.speculator.prefill_cudagraph_manager) is graphs.SpeculatorCudaGraphManager
    assert isinstance(runner(monkeypatch).cudagraph_manager, graphs.TargetGraphs)

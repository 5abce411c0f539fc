"""Which graph a step finds, by vLLM's own dispatcher and its runner's own code, without a GPU."""

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
    from vllm.config import CompilationConfig, CUDAGraphMode
    from vllm.model_executor.layers.attention.mla_attention import QueryLenSupport
    from vllm.v1.attention.backend import AttentionCGSupport
    from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    from specpilot.engine_adapter.errors import UnsupportedEngineError
    from specpilot.engine_adapter.vllm import graph_record
    from specpilot.engine_adapter.vllm.scheduler import SpecPilotAsyncScheduler, SpecPilotScheduler
    from specpilot.engine_adapter.vllm.v1 import drafting, graphs
    from specpilot.engine_adapter.vllm.v1.installation import install
    from specpilot.policy.graphs import Graphs

K_MAX = 7
LONG_SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16)]
SIZES = [size for size in LONG_SIZES if size <= 512]  # vLLM's own on an H100
FULL, PIECEWISE, NONE = "FULL", "PIECEWISE", "NONE"


@pytest.fixture(autouse=True)
def _wrapped() -> None:
    install()


class _Backend:
    """An attention backend with FULL graphs for uniform steps alone, like FlashAttention 2 and MLA."""

    @classmethod
    def get_builder_cls(cls) -> type:
        return cls

    @staticmethod
    def get_name() -> str:
        return "FLASH_ATTN"

    @staticmethod
    def get_cudagraph_support(*_: object) -> AttentionCGSupport:
        return AttentionCGSupport.UNIFORM_BATCH


class _AnyMixBackend(_Backend):
    """An attention backend with FULL graphs for any batch, like FlashAttention 3 and Triton's."""

    @staticmethod
    def get_name() -> str:
        return "TRITON_ATTN"

    @staticmethod
    def get_cudagraph_support(*_: object) -> AttentionCGSupport:
        return AttentionCGSupport.ALWAYS


class _UntriedBackend(_AnyMixBackend):
    """A backend that declares the same, like FLEX_ATTENTION, and whose graphs nobody ran."""

    @staticmethod
    def get_name() -> str:
        return "FLEX_ATTENTION"


def runner(
    scheduler: object = SpecPilotAsyncScheduler,
    mode: CUDAGraphMode = CUDAGraphMode.FULL_AND_PIECEWISE,
    *,
    max_num_seqs: int = 256,
    is_hybrid: bool = False,
    is_mm_prefix_lm: bool = False,
    use_mla: bool = False,
    backend: type = _Backend,
    largest: int = SIZES[-1],
) -> Any:
    """The part of vLLM's runner that finds graphs; its configuration is a stub, its dispatcher and methods are real."""
    compilation = CompilationConfig(
        mode=3,
        cudagraph_mode=mode,
        cudagraph_capture_sizes=[size for size in LONG_SIZES if size <= largest],
        max_cudagraph_capture_size=largest,
    )
    compilation.set_splitting_ops_for_v1(all2all_backend="", data_parallel_size=1)
    config = SimpleNamespace(
        compilation_config=compilation,
        num_speculative_tokens=K_MAX,
        lora_config=None,
        scheduler_config=SimpleNamespace(
            max_num_seqs=max_num_seqs, scheduler_cls=scheduler, async_scheduling=scheduler is SpecPilotAsyncScheduler
        ),
        speculative_config=SimpleNamespace(method="eagle3"),
        model_config=SimpleNamespace(
            is_hybrid=is_hybrid, is_encoder_decoder=False, is_mm_prefix_lm=is_mm_prefix_lm, use_mla=use_mla
        ),
        parallel_config=SimpleNamespace(data_parallel_size=1),
        observability_config=SimpleNamespace(cudagraph_metrics=False),
    )
    made = SimpleNamespace(
        vllm_config=config,
        compilation_config=compilation,
        model_config=config.model_config,
        uniform_decode_query_len=1 + K_MAX,
        cudagraph_dispatcher=CudagraphDispatcher(config),
        _is_uniform_decode=GPUModelRunner._is_uniform_decode,
        input_batch=SimpleNamespace(lora_id_to_lora_request={}),
        speculative_config=None,  # the drafter's keys are its own
        kv_cache_config=None,
        max_num_reqs=max_num_seqs,
        max_model_len=4096,
    )
    GPUModelRunner._check_and_update_cudagraph_mode(made, [{backend}], [SimpleNamespace(kv_cache_spec=None)])
    return made


def key_of(made: Any, positions: list[int]) -> tuple[Any, Any]:
    """Mode and key of the graph of a step whose requests have so many positions each."""
    mode, key, *_ = GPUModelRunner._determine_batch_execution_and_padding(
        made,
        num_tokens=sum(positions),
        num_reqs=len(positions),
        num_scheduled_tokens_np=np.array(positions),
        max_num_scheduled_tokens=max(positions),
    )
    return mode, key


def found(made: Any, positions: list[int]) -> tuple[str, int]:
    """Mode and padded tokens of a step whose requests have so many positions each."""
    mode, key = key_of(made, positions)
    assert not key.uniform or key.num_tokens == key.num_reqs * positions[0]
    return mode.name, key.num_tokens


TABLE = [  # running requests, K, then vLLM's own, then the adapter's without and with graphs for any mix
    (1, 0, (PIECEWISE, 8), (FULL, 1), (FULL, 1)),
    (1, 1, (PIECEWISE, 8), (FULL, 2), (FULL, 2)),
    (1, 4, (PIECEWISE, 8), (PIECEWISE, 8), (FULL, 8)),
    (1, 7, (FULL, 8), (FULL, 8), (FULL, 8)),
    (3, 0, (PIECEWISE, 8), (FULL, 4), (FULL, 4)),
    (3, 3, (PIECEWISE, 16), (FULL, 12), (FULL, 16)),
    (9, 7, (FULL, 72), (FULL, 80), (FULL, 72)),
    (33, 0, (PIECEWISE, 40), (FULL, 40), (FULL, 40)),
    (64, 6, (PIECEWISE, 448), (PIECEWISE, 448), (FULL, 448)),
    (64, 7, (FULL, 512), (FULL, 512), (FULL, 512)),
    (65, 7, (NONE, 520), (NONE, 520), (NONE, 520)),
    (65, 6, (PIECEWISE, 464), (PIECEWISE, 464), (FULL, 464)),
    (170, 2, (PIECEWISE, 512), (FULL, 510), (FULL, 512)),
    (128, 3, (PIECEWISE, 512), (FULL, 512), (FULL, 512)),
    (129, 3, (NONE, 516), (NONE, 516), (NONE, 516)),
    (250, 0, (PIECEWISE, 256), (FULL, 256), (FULL, 256)),
]


@pytest.mark.parametrize(("running", "k", "stock", "uniform", "any_mix"), TABLE)
def test_a_step_of_one_k_finds_its_graph(running: int, k: int, stock: object, uniform: object, any_mix: object) -> None:
    step = [1 + k] * running
    assert found(runner(scheduler=object), step) == stock
    assert found(runner(), step) == uniform
    assert found(runner(backend=_AnyMixBackend), step) == any_mix


def test_any_mix_of_k_and_prompts_replays_a_full_graph_up_to_the_largest_size() -> None:
    """Every number of requests up to `max_num_seqs`, with K at random, half of the time beside a prompt's chunk."""
    made, rng = runner(backend=_AnyMixBackend, max_num_seqs=128, largest=1024), np.random.default_rng(0)
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
    made = runner(backend=_AnyMixBackend, mode=mode, max_num_seqs=128, largest=1024)
    for count in range(1, 129):
        for positions in ([1] * count, [1] * (count - 1) + [2], [3] * count):
            *_, key = key_of(made, positions)
            assert key.uniform == (max(positions) == 1), positions
            assert key.num_reqs >= len(positions)


def test_k_that_an_operator_names_get_graphs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", "3")
    for backend, lengths in ((_Backend, (1, 4, 8)), (_AnyMixBackend, (1, 4))):
        assert runner(backend=backend).cudagraph_dispatcher.lengths == lengths
    monkeypatch.delenv("SPECPILOT_ENGINE_GRAPH_K")
    for backend, lengths in ((_Backend, (1, 2, 3, 4, 6, 8)), (_AnyMixBackend, (1,))):
        assert runner(backend=backend).cudagraph_dispatcher.lengths == lengths


def test_a_backend_that_supports_less_for_one_group_of_layers_decides_for_all() -> None:
    groups = [SimpleNamespace(kv_cache_spec=None)] * 2
    assert graphs.supports_any_mix(None, [{_AnyMixBackend}, {_AnyMixBackend}], groups)
    assert not graphs.supports_any_mix(None, [{_AnyMixBackend}, {_AnyMixBackend, _Backend}], groups)
    assert not graphs.supports_any_mix(None, [{_AnyMixBackend}, {_UntriedBackend}], groups)


def test_where_mixed_steps_have_no_graphs_each_k_has_its_own() -> None:
    made = runner(mode=CUDAGraphMode.FULL_DECODE_ONLY, backend=_AnyMixBackend)
    assert [found(made, [1 + k] * 3) for k in (0, 1, 7)] == [(FULL, 4), (FULL, 6), (FULL, 24)]
    assert found(made, [1, 8]) == (NONE, 9)


@pytest.mark.parametrize("kind", ["is_mm_prefix_lm", "use_mla"])
def test_attention_that_reads_a_prompt_by_arguments_of_the_step_has_no_full_graph_for_it(kind: str) -> None:
    """Which a graph does not read again: where images lie, how many tokens are prompts'."""
    options: dict[str, Any] = {kind: True}
    made = runner(**options, backend=_AnyMixBackend)
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


class _UniformBackend(_Backend):
    """As MLA's on many GPUs: decodes of another length than most are taken for prompts."""

    query_len_support = QueryLenSupport.UNIFORM

    @staticmethod
    def get_name() -> str:
        return "SOME_MLA"


def test_a_steered_engine_does_not_start_on_attention_that_reads_other_lengths_inexactly() -> None:
    made = runner()
    groups = [SimpleNamespace(kv_cache_spec=None)]
    with pytest.raises(UnsupportedEngineError, match="backend SOME_MLA reads decodes"):
        GPUModelRunner._check_and_update_cudagraph_mode(made, [{_UniformBackend}], groups)
    for other in (runner(scheduler=object), runner(scheduler=SpecPilotScheduler)):
        GPUModelRunner._check_and_update_cudagraph_mode(other, [{_UniformBackend}], groups)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [([1, 8], 16), ([1, 2], 4), ([8, 1, 1], 16), ([300], 304)],
)
def test_a_mixed_step_is_padded_no_further_than_it_needs(positions: list[int], expected: int) -> None:
    assert found(runner(), positions) == (PIECEWISE, expected)
    assert found(runner(backend=_AnyMixBackend), positions) == (FULL, expected)


ANY_MIX_GRAPHS = ["50 FULL graphs for any mix of K and prompts", "35 FULL graphs for K = 0"]
UNIFORM_GRAPHS = [
    "35 FULL graphs for K = 0", "23 FULL graphs for K = 2", "22 FULL graphs for K = 3", "19 FULL graphs for K = 7",
]  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "mode", "listed", "said"),
    [
        (_Backend, CUDAGraphMode.FULL_AND_PIECEWISE, "2,3", UNIFORM_GRAPHS),
        (_AnyMixBackend, CUDAGraphMode.FULL_AND_PIECEWISE, "", ANY_MIX_GRAPHS),
        (_AnyMixBackend, CUDAGraphMode.FULL, "", ["51" + ANY_MIX_GRAPHS[0][2:], ANY_MIX_GRAPHS[1]]),
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
    made = runner(backend=_AnyMixBackend)
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


def test_graphs_are_made_anew_as_vllm_does_after_it_measured_their_memory() -> None:
    made = runner()
    before = {mode: set(keys) for mode, keys in made.cudagraph_dispatcher.cudagraph_keys.items()}
    for keys in made.cudagraph_dispatcher.cudagraph_keys.values():
        keys.clear()
    made.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_AND_PIECEWISE, 1 + K_MAX)
    assert made.cudagraph_dispatcher.cudagraph_keys == before


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


def test_graphs_that_would_take_too_much_memory_are_made_fewer_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, total = runner(), 10 << 30
    monkeypatch.setattr(graphs.torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(graphs.torch.accelerator, "get_memory_info", lambda: (total, total))
    assert not graphs.is_too_much(made, total // 10)
    assert graphs.is_too_much(made, total // 10 + 1)
    assert "name further K with --graph-k, or lower --max-cudagraph-capture-size" in caplog.text
    assert not graphs.is_too_much(made, total)  # what is left has to be
    made.cudagraph_dispatcher.initialize_cudagraph_keys(CUDAGraphMode.FULL_AND_PIECEWISE, 1 + K_MAX)
    assert made.cudagraph_dispatcher.lengths == (1, 8)


def test_a_mode_that_the_backend_does_not_support_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    runner(mode=CUDAGraphMode.FULL)
    said = [line for line in caplog.messages if "cudagraph_mode=FULL, so vLLM runs FULL_AND_PIECEWISE" in line]
    assert len(said) == 1


class _Drafter:
    """The part of a drafter that concerns its graphs."""

    def __init__(self, made: Any, *, is_parallel: bool) -> None:
        self.parallel_drafting = is_parallel
        self.speculative_config = SimpleNamespace(enforce_eager=False)
        self.cudagraph_dispatcher = CudagraphDispatcher(made.vllm_config)
        SpecDecodeBaseProposer.initialize_cudagraph_keys(self, made.cudagraph_dispatcher.cudagraph_mode)


RECORDS = [
    (_Backend, CUDAGraphMode.FULL_AND_PIECEWISE, True, "FULL_AND_PIECEWISE", tuple(SIZES), (2, 3, 4, 6, 8)),
    (_Backend, CUDAGraphMode.FULL_AND_PIECEWISE, False, "FULL_AND_PIECEWISE", tuple(SIZES), (2, 3, 4, 6, 8)),
    (_AnyMixBackend, CUDAGraphMode.FULL_AND_PIECEWISE, True, "FULL", tuple(SIZES[1:]), ()),
    (_AnyMixBackend, CUDAGraphMode.FULL, True, "FULL", tuple(SIZES), ()),
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
    made.drafter = _Drafter(made, is_parallel=is_parallel)
    assert graph_record.of_worker(SimpleNamespace(model_runner=made)) is None  # its drafter is not steered
    drafting.attach(made.drafter, SimpleNamespace())  # type: ignore[arg-type]
    told = graph_record.of_worker(SimpleNamespace(model_runner=made))
    config = SimpleNamespace()
    setattr(config, graph_record.GRAPHS, told)
    counts = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 24)
    assert graph_record.of_config(config) == Graphs(
        mode,
        mixed,
        {1: (1, 2, 4, 8, 16, 24), **{length: tuple(length * count for count in counts) for length in lengths}},
        tuple(SIZES) if is_parallel and configured != CUDAGraphMode.FULL else (),
    )
    assert graph_record.of_config(SimpleNamespace()) is None


def test_an_engine_without_graphs_tells_none() -> None:
    made = runner(mode=CUDAGraphMode.NONE)
    made.drafter = _Drafter(made, is_parallel=True)
    drafting.attach(made.drafter, SimpleNamespace())  # type: ignore[arg-type]
    assert graph_record.of_worker(SimpleNamespace(model_runner=made)) is None


def test_hybrid_models_and_other_schedulers_keep_vllms_dispatcher() -> None:
    assert type(runner(is_hybrid=True).cudagraph_dispatcher) is CudagraphDispatcher
    assert type(runner(scheduler=object).cudagraph_dispatcher) is CudagraphDispatcher
    assert isinstance(runner().cudagraph_dispatcher, graphs.StepDispatcher)

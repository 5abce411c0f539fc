import warnings
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, of what vLLM imports
    from vllm.model_executor.layers.attention.mla_attention import QueryLenSupport
    from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.vllm import compat


def config(
    method: str = "eagle3",
    table: object = None,
    data: int = 1,
    rank: int = 0,
    pipeline: int = 1,
    context: tuple[int, int] = (1, 1),
    runner_v2: int = 0,
    ahead: int = 0,
    connector: str | None = None,
    embeds: int = 0,
) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(enable_prompt_embeds=bool(embeds), is_multimodal_model=False),
        speculative_config=SimpleNamespace(method=method, num_speculative_tokens_per_batch_size=table),
        parallel_config=SimpleNamespace(
            data_parallel_size=data,
            data_parallel_index=rank,
            pipeline_parallel_size=pipeline,
            decode_context_parallel_size=context[0],
            prefill_context_parallel_size=context[1],
        ),
        scheduler_config=SimpleNamespace(async_scheduling=bool(ahead)),
        use_v2_model_runner=bool(runner_v2),
        kv_transfer_config=SimpleNamespace(kv_connector=connector) if connector else None,
    )


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@pytest.mark.parametrize("is_async", [False, True])
def test_eagle_heads_are_steered(method: str, is_async: bool) -> None:
    compat.check_config(config(method, ahead=is_async), is_async_scheduler=is_async)


@pytest.mark.parametrize(
    ("mode", "model", "words"),
    [
        ("FULL", {"use_mla": True}, ("MLA", "FULL_AND_PIECEWISE")),
        ("FULL", {"is_mm_prefix_lm": True}, ("images", "FULL_DECODE_ONLY")),
        ("FULL", {}, None),
        ("FULL_AND_PIECEWISE", {"use_mla": True, "is_mm_prefix_lm": True}, None),
    ],
)
def test_one_graph_for_prompts_and_decodes_is_rejected_where_attention_reads_a_prompt_by_more_than_its_tokens(
    mode: str, model: dict[str, bool], words: tuple[str, ...] | None
) -> None:
    own = config("eagle3")
    own.compilation_config = SimpleNamespace(cudagraph_mode=SimpleNamespace(name=mode))
    vars(own.model_config).update(model)
    if words is None:
        compat.check_config(own, is_async_scheduler=False)
        return
    with pytest.raises(UnsupportedEngineError) as rejected:
        compat.check_config(own, is_async_scheduler=False)
    assert [word for word in words if word not in str(rejected.value)] == []


def test_an_engine_without_speculation_may_carry_the_adapter() -> None:
    compat.check_config(SimpleNamespace(speculative_config=None), is_async_scheduler=False)


METHODS = ("ngram_gpu", "suffix", "mtp", "medusa", "mlp_speculator", "dflash", "dspark")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        *((config(method), ("eagle and eagle3", repr(method), "without the adapter")) for method in METHODS),
        (config("ngram"), ("'ngram'", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (config("draft_model"), ("'draft_model'", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (config(table={1: 7}), ("num_speculative_tokens_per_batch_size", "remove it")),
        (config(data=2), ("data parallelism", "one engine per rank")),
        (config(rank=1), ("data parallelism", "one engine per rank")),
        (config(pipeline=2), ("pipeline parallelism", "tensor parallelism")),
        (config(context=(2, 1)), ("context parallelism", "tensor parallelism")),
        (config(context=(1, 2)), ("context parallelism", "tensor parallelism")),
        (config(connector="OffloadingConnector"), ("KV connector", "--kv-transfer-config and --kv-offloading-size")),
        (config(embeds=1), ("prompt of embeddings", "--enable-prompt-embeds")),
        (config(ahead=1), ("asynchronously", "SpecPilotAsyncScheduler")),
    ],
)  # fmt: skip
def test_what_cannot_be_steered_is_refused_with_the_remedy(broken: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(UnsupportedEngineError) as refused:
        compat.check_config(broken, is_async_scheduler=False)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("version", "speculative", "is_multimodal", "words"),
    [
        ("0.31.2", {}, False, ("model runner V2", "0.32", "VLLM_USE_V2_MODEL_RUNNER=0")),
        (
            "0.32.0",
            {"enable_adaptive_verification": True, "method": "ngram"},
            False,
            ("adaptive verification", "'ngram'", "remove enable_adaptive"),
        ),
        ("0.32.0", {"parallel_drafting": True}, True, ("multimodal", "VLLM_USE_V2_MODEL_RUNNER=0")),
    ],
)
def test_what_is_not_steered_on_model_runner_v2_is_refused_with_the_remedy(
    version: str, speculative: dict[str, Any], is_multimodal: bool, words: tuple[str, ...]
) -> None:
    [fault] = compat.v2_faults(version, SimpleNamespace(**speculative), is_multimodal=is_multimodal)
    assert [word for word in words if word not in fault] == []
    assert compat.v2_faults("0.32.0", SimpleNamespace(parallel_drafting=True), is_multimodal=False) == []
    adaptive = SimpleNamespace(enable_adaptive_verification=True, method="eagle3")
    assert compat.v2_faults("0.32.0", adaptive, is_multimodal=False) == []
    assert compat.v2_faults("0.32.0", SimpleNamespace(parallel_drafting=False), is_multimodal=True) == []


@pytest.mark.parametrize("method", ["eagle", "eagle3", "ngram", "draft_model"])
def test_on_model_runner_v2_more_drafters_are_steered(method: str) -> None:
    compat.check_config(config(method, runner_v2=1), is_async_scheduler=False)


@pytest.mark.parametrize(
    ("named", "is_parallel", "is_refused"),
    [({"ptd_token_id": 5}, False, True), ({"ptd_token_id": 5}, True, False), ({}, False, False)],
)
def test_a_head_that_drafts_in_parallel_is_not_run_one_token_at_a_time(
    named: dict[str, int], is_parallel: bool, is_refused: bool
) -> None:
    broken = config()
    broken.speculative_config.draft_model_config = SimpleNamespace(hf_config=SimpleNamespace(**named))
    broken.speculative_config.parallel_drafting = is_parallel
    fault = compat.head_fault(broken.speculative_config)
    assert (fault is not None and '"parallel_drafting": true' in fault) == is_refused
    if is_refused:
        with pytest.raises(UnsupportedEngineError, match="mask token"):
            compat.check_config(broken, is_async_scheduler=False)


def test_the_asynchronous_scheduler_in_a_synchronous_loop_is_refused() -> None:
    with pytest.raises(UnsupportedEngineError, match=r"synchronously here: .*\.SpecPilotScheduler$"):
        compat.check_config(config(), is_async_scheduler=True)


def test_every_reason_is_reported_at_once() -> None:
    broken = config(
        "mtp", {1: 7}, data=2, pipeline=2, context=(2, 2), runner_v2=1, ahead=1, connector="Offloading", embeds=1
    )
    with pytest.raises(UnsupportedEngineError) as refused:
        compat.check_config(broken, is_async_scheduler=False)
    assert str(refused.value).count(";") == 7


class PlansDrafts:
    plans_drafts = True


class Derived(PlansDrafts):
    pass


@pytest.mark.parametrize(
    ("kind", "is_steered"),
    [(PlansDrafts, True), (Derived, True), (dict, False), ("collections.OrderedDict", False), (None, False)],
)
def test_only_an_engine_whose_scheduler_plans_its_drafts_is_steered(kind: object, is_steered: bool) -> None:
    found = config()
    found.scheduler_config.scheduler_cls = kind
    assert compat.is_steered(found) is is_steered
    found.speculative_config.method = "mtp"
    assert not compat.is_steered(found)


@pytest.mark.parametrize("version", ["0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.32.1", "0.32.0+cpu"])
def test_a_tested_version_that_lacks_nothing_passes(version: str) -> None:
    assert compat.version_fault(version, ()) is None


@pytest.mark.parametrize("version", ["0.28.0", "0.33.0", "0.3.2", "0.320.0"])
def test_an_untested_version_is_refused_with_an_override(version: str) -> None:
    fault = compat.version_fault(version, ())
    assert fault is not None
    for word in (version, "no engine of it was tested", "0.32", "SPECPILOT_ENGINE_ANY_VLLM=1"):
        assert word in fault


def test_what_a_version_lacks_is_named() -> None:
    fault = compat.version_fault("0.32.9", ("Scheduler.a(b)", "Request.c", "D", "E", "F"))
    assert fault is not None
    for word in ("0.32.9", "Scheduler.a(b), Request.c, D and 2 more", "SPECPILOT_ENGINE_ANY_VLLM=1"):
        assert word in fault


def test_an_unfit_vllm_starts_only_with_the_override(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compat, "TESTED_VERSIONS", ("0.1",))
    with pytest.raises(UnsupportedEngineError, match="no engine of it was tested"):
        compat.check_installed(any_version=False)
    compat.logger.addHandler(caplog.handler)
    try:
        compat.check_installed(any_version=True)
    finally:
        compat.logger.removeHandler(caplog.handler)
    assert "the engine starts all the same" in caplog.text


def test_the_installed_version_fits() -> None:
    compat.check_installed(any_version=False)


def test_vllm_chooses_the_runner_where_both_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.32.0")
    assert compat.server_environment(speculates=True) == {}
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.31.0")
    assert compat.server_environment(speculates=True) == {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    assert compat.server_environment(speculates=False) == {}


class ModelConfig:
    def __init__(self, window: int | None = None, head: dict[str, object] | None = None, **text: object) -> None:
        self.window = window
        self.hf_config = SimpleNamespace(**(head or {}))
        self.hf_text_config = SimpleNamespace(**text)
        self.dtype = SimpleNamespace(itemsize=2)

    def get_sliding_window(self) -> int | None:
        return self.window

    def get_hidden_size(self) -> int:
        return 4096


@pytest.mark.parametrize(
    ("drafter", "rows"),
    [
        (ModelConfig(None), 8192),
        (ModelConfig(128), 0),
        (ModelConfig(128, use_sliding_window=True), 0),
        (ModelConfig(128, use_sliding_window=False), 8192),
    ],
)
def test_a_drafter_that_looks_at_a_window_never_falls_behind(drafter: ModelConfig, rows: int) -> None:
    found = config()
    found.speculative_config.draft_model_config = drafter
    found.model_config = ModelConfig()
    assert compat.backlog_rows(found) == rows


@pytest.mark.parametrize(
    ("window", "drafter_length", "said"),
    [
        (None, 4096, []),
        (None, None, []),
        (128, 4096, ["sliding window"]),
        (None, 2048, ["reads 2048 tokens at most and the model 4096: while a request of more than 2041 runs"]),
        (128, 2048, ["sliding window", "no request speculates"]),
    ],
)
def test_limits_of_speculation_are_logged_at_start(
    window: int | None, drafter_length: int | None, said: list[str]
) -> None:
    found = config()
    found.num_speculative_tokens = 7
    found.speculative_config.draft_model_config = ModelConfig(window)
    found.speculative_config.draft_model_config.max_model_len = drafter_length
    found.model_config = ModelConfig()
    found.model_config.max_model_len = 4096
    notes = compat.notes(found)
    assert len(notes) == len(said)
    assert all(words in note for words, note in zip(said, notes, strict=True))
    assert compat.notes(SimpleNamespace(speculative_config=None, model_config=None)) == []


LAYERS = {"eagle_aux_hidden_state_layer_ids": [2, 4]}


@pytest.mark.parametrize(
    ("method", "head", "states"),
    [
        ("eagle3", {}, 3),
        ("eagle3", LAYERS, 2),
        ("eagle3", {"eagle_config": LAYERS}, 2),
        ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, 1),
        ("eagle", {}, 1),
    ],
)
def test_rows_take_the_memory_that_the_operator_gives(
    method: str, head: dict[str, object], states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is what the head reads of the target at a position, each number of two bytes here."""
    found = config(method)
    found.speculative_config.draft_model_config = ModelConfig(head=head)
    found.model_config = ModelConfig()
    monkeypatch.setenv("SPECPILOT_ENGINE_BACKLOG_MIB", "6")
    assert compat.row_size(found) == states * 4096
    assert compat.backlog_rows(found) == 6 * 128 // states


def with_graphs(largest: int, running: int, *, is_parallel: bool = True) -> Any:
    found = config()
    found.num_speculative_tokens = 7
    found.speculative_config.parallel_drafting = is_parallel
    found.scheduler_config.max_num_seqs = running
    found.compilation_config = SimpleNamespace(
        max_cudagraph_capture_size=largest, cudagraph_capture_sizes=[*range(8, largest + 1, 8)]
    )
    return found


@pytest.mark.parametrize(
    ("largest", "running", "is_parallel", "said"),
    [
        (512, 256, True, ("end at 512", "above 64 running", "the drafter's above 36", "capture-size 3584")),
        (512, 256, False, ("end at 512", "above 64 running", "capture-size 2048")),
        (512, 40, True, ("the drafter's above 36", "capture-size 560")),
        (512, 36, True, ()),
        (4096, 256, True, ()),
        (0, 256, True, ()),  # no graphs
    ],
)
def test_a_capture_limit_below_the_largest_step_is_logged_at_start_with_the_size_that_suffices(
    largest: int, running: int, is_parallel: bool, said: tuple[str, ...]
) -> None:
    notes = compat.graph_notes(with_graphs(largest, running, is_parallel=is_parallel))
    assert len(notes) == bool(said)
    assert all(words in notes[0] for words in said)


def test_a_mode_in_which_the_drafter_has_no_graphs_is_logged_at_start_with_the_remedy() -> None:
    found = with_graphs(4096, 64)
    found.compilation_config.cudagraph_mode = SimpleNamespace(name="FULL")
    [note] = compat.graph_notes(found)
    assert "cudagraph_mode=FULL the drafter has no CUDA graphs; leave it unset" in note


def test_a_mode_that_the_backend_does_not_support_is_named_with_the_one_that_runs() -> None:
    full, pieces = SimpleNamespace(name="FULL"), SimpleNamespace(name="FULL_AND_PIECEWISE")
    assert compat.mode_note(full, full) is None
    assert compat.mode_note(None, full) is None
    note = compat.mode_note(full, pieces)
    assert note is not None
    assert "does not support cudagraph_mode=FULL, so vLLM runs FULL_AND_PIECEWISE: leave it unset" in note


def test_a_graph_for_a_k_beyond_k_max_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", "3,9")
    found = config()
    found.num_speculative_tokens = 7
    with pytest.raises(UnsupportedEngineError, match="--graph-k names K = 9 and K_max is 7: leave out"):
        compat.check_config(found, is_async_scheduler=False)
    found.num_speculative_tokens = 9
    compat.check_config(found, is_async_scheduler=False)


def test_a_head_with_mla_never_falls_behind_and_that_is_said() -> None:
    found = config()
    found.num_speculative_tokens = 7
    head = ModelConfig()
    head.use_mla, head.max_model_len = True, 4096  # type: ignore[attr-defined]
    found.speculative_config.draft_model_config, found.model_config = head, ModelConfig()
    found.model_config.max_model_len = 4096
    assert compat.backlog_rows(found) == 0
    [note] = compat.notes(found)
    assert "MLA" in note
    assert "runs in every step" in note


@pytest.mark.parametrize(
    ("backend", "word"),
    [
        ("mla.triton_mla.TritonMLABackend", "TRITON_MLA"),
        ("mla.flashmla.FlashMLABackend", "FLASHMLA"),
        ("mla.amx_mla.AMXMLABackend", "AMX_MLA"),
        ("mla.flashmla_sparse.FlashMLASparseBackend", "FLASHMLA_SPARSE"),
        ("triton_attn.TritonAttentionBackend", None),
        ("cpu_attn.CPUAttentionBackend", None),
    ],
)
def test_attention_that_reads_other_lengths_inexactly_is_refused_where_scheduling_is_asynchronous(
    backend: str, word: str | None
) -> None:
    module, _, name = f"vllm.v1.attention.backends.{backend}".rpartition(".")
    found = [{getattr(import_module(module), name)}]
    assert compat.attention_fault(found, is_async=False) is None
    fault = compat.attention_fault(found, is_async=True)
    if word is None:
        assert fault is None
    else:
        assert f"backend {word} reads" in str(fault)
        assert "--attention-backend FLASH_ATTN_MLA" in str(fault)
        assert "--no-async-scheduling" in str(fault)


def test_mla_that_reads_any_lengths_is_taken() -> None:
    builder = SimpleNamespace(query_len_support=QueryLenSupport.VARLEN)
    backend: Any = SimpleNamespace(get_builder_cls=lambda: builder)
    assert compat.attention_fault([[backend]], is_async=True) is None


def test_such_attention_takes_decodes_of_another_length_for_prompts() -> None:
    """Why: of prompts vLLM reads the host's bound of the length, which is too long after a rejected draft."""
    starts = torch.tensor([0, 8, 9, 10, 18], dtype=torch.int32)
    step = SimpleNamespace(
        max_query_len=8, num_reqs=4, num_actual_tokens=18, query_start_loc_cpu=starts, is_prefilling=None
    )
    split = split_decodes_and_prefills
    assert split(step, decode_threshold=8, require_uniform=True)[:2] == (1, 3)  # type: ignore[arg-type]
    assert split(step, decode_threshold=8)[:2] == (4, 0)  # type: ignore[arg-type]


def test_an_engine_without_a_drafter_keeps_nothing_for_it() -> None:
    assert compat.backlog_rows(SimpleNamespace(speculative_config=None)) == 0


@pytest.mark.parametrize(("own", "length"), [(512, 512), (None, 2048)])
def test_a_drafter_reads_as_far_as_its_own_limit_or_the_models(own: int | None, length: int) -> None:
    found = config()
    found.speculative_config.draft_model_config = SimpleNamespace(max_model_len=own)
    found.model_config = SimpleNamespace(max_model_len=2048)
    assert compat.drafter_length(found) == length
    assert compat.drafter_length(SimpleNamespace(speculative_config=None)) == 0


@pytest.mark.parametrize(
    ("device", "is_multimodal", "embeds", "stay"),
    [
        ("cpu", False, False, True),
        ("cuda", False, False, False),
        ("cpu", True, False, False),
        ("cpu", False, True, False),
    ],
)
def test_states_stay_on_a_cpu_unless_vllm_feeds_the_model_embeddings(
    device: str, is_multimodal: bool, embeds: bool, stay: bool
) -> None:
    model = SimpleNamespace(is_multimodal_model=is_multimodal, enable_prompt_embeds=embeds)
    assert compat.states_stay(SimpleNamespace(model_config=model), device) is stay

"""Which engines are steered, and which are refused at start with the remedy."""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.layers.attention.mla_attention import QueryLenSupport
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.vllm import compat, config_facts, engine_facts
from specpilot.engine_adapter.vllm.config_facts import ConfigFacts
from tests.support.vllm_config import config, head


def assert_rejected(own: SimpleNamespace, words: tuple[str, ...] | None) -> None:
    """Check that the configuration is rejected with a sentence that has these words; `None`: it is accepted."""
    if words is None:
        compat.check_config(own, is_async_scheduler=False)
        return
    with pytest.raises(UnsupportedEngineError) as rejected:
        compat.check_config(own, is_async_scheduler=False)
    assert [word for word in words if word not in str(rejected.value)] == []


@pytest.mark.parametrize(
    ("method", "runner_v2"),
    [("eagle", 0), ("eagle3", 0), ("eagle", 1), ("eagle3", 1), ("ngram", 1), ("draft_model", 1)],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_eagle_heads_are_steered_and_on_model_runner_v2_more_drafters(
    method: str, runner_v2: int, is_async: bool
) -> None:
    compat.check_config(config(method, runner_v2=runner_v2, ahead=is_async), is_async_scheduler=is_async)


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
    assert_rejected(own, words)


@pytest.mark.parametrize("kind", ["is_hybrid", "has_inner_state"])
def test_recurrent_layers_are_rejected_where_a_step_without_drafts_would_read_a_stale_state(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = config("eagle3")
    for version in ("0.29.0", "0.31.2"):
        monkeypatch.setattr(config_facts, "vllm_version", lambda version=version: version)
        compat.check_config(own, is_async_scheduler=False)
        vars(own.model_config)[kind] = True
        with pytest.raises(UnsupportedEngineError, match=r"recurrent layers .* install vLLM 0\.32"):
            compat.check_config(own, is_async_scheduler=False)
        del vars(own.model_config)[kind]
    monkeypatch.setattr(config_facts, "vllm_version", lambda: "0.32.0")
    vars(own.model_config)[kind] = True
    compat.check_config(own, is_async_scheduler=False)
    own.device_config = SimpleNamespace(device_type="cpu")
    with pytest.raises(UnsupportedEngineError, match="one number of drafts on a CPU"):
        compat.check_config(own, is_async_scheduler=False)


def test_an_engine_without_speculation_may_carry_the_adapter() -> None:
    compat.check_config(SimpleNamespace(speculative_config=None), is_async_scheduler=False)


METHODS = ("ngram_gpu", "suffix", "medusa", "mlp_speculator")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        *((config(method), ("eagle, eagle3, mtp", repr(method), "without the adapter")) for method in METHODS),
        (config("dspark"), ("'dspark'", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (config("ngram"), ("'ngram'", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (config("draft_model"), ("'draft_model'", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (config(table={1: 7}), ("num_speculative_tokens_per_batch_size", "remove it")),
        (config(data=4, local=2), ("ranks on other machines", "--data-parallel-hybrid-lb")),
        (config(data=2, launcher="external_launcher"), ("each have a scheduler", "--distributed-executor-backend")),
        (config(pipeline=2), ("pipeline parallelism", "tensor parallelism")),
        (config(context=(2, 1)), ("context parallelism", "tensor parallelism")),
        (config(context=(1, 2)), ("context parallelism", "tensor parallelism")),
        (config(embeds=1), ("prompt of embeddings", "--enable-prompt-embeds")),
        (config(ahead=1), ("asynchronously", "SpecPilotAsyncScheduler")),
    ],
)  # fmt: skip
def test_what_cannot_be_steered_is_refused_with_the_remedy(broken: Any, words: tuple[str, ...]) -> None:
    assert_rejected(broken, words)


V2 = ConfigFacts("eagle3", version="0.32.0", is_v2=True)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": "0.31.2"}, ("model runner V2", "0.32", "VLLM_USE_V2_MODEL_RUNNER=0")),
        (
            {"is_adaptive": True, "method": "ngram"},
            ("adaptive verification", "'ngram'", "remove enable_adaptive"),
        ),
        ({"is_parallel": True, "is_multimodal": True}, ("multimodal", "VLLM_USE_V2_MODEL_RUNNER=0")),
        ({"is_parallel": True, "is_multimodal": True, "method": "dflash"}, None),
        ({"is_adaptive": True, "method": "dflash"}, ("adaptive verification", "'dflash'", "remove enable_adaptive")),
        ({"is_parallel": True}, None),
        (
            {"is_parallel": True, "is_moe": True, "data_parallel": 2},
            ("ranks of a mixture of experts", "VLLM_USE_V2_MODEL_RUNNER=0"),
        ),
        ({"is_moe": True, "data_parallel": 2}, None),
        ({"is_moe": True, "data_parallel": 2, "method": "draft_model"}, ("first draft", "another method")),
        ({"is_moe": True, "method": "draft_model"}, None),
        ({"is_parallel": True, "is_moe": True, "data_parallel": 2, "method": "dflash"}, None),
        ({"is_adaptive": True}, None),
        ({"is_multimodal": True}, None),
    ],
)
def test_what_is_not_steered_on_model_runner_v2_is_refused_with_the_remedy(
    changed: dict[str, Any], words: tuple[str, ...] | None
) -> None:
    facts = replace(V2, **changed)
    assert not [*compat.v2_faults(replace(facts, is_v2=False))]
    faults = [*compat.v2_faults(facts)]
    assert len(faults) == (words is not None)
    assert [word for word in words or () if word not in faults[0]] == []


@pytest.mark.parametrize(
    ("kind", "fields", "k_max", "runner_v2", "model", "words"),
    [
        ("mimo_mtp", {"num_nextn_predict_layers": 1}, 3, 0, {}, None),
        ("mimo_mtp", {"num_nextn_predict_layers": 1}, 3, 1, {}, None),
        ("deepseek_mtp", {"num_nextn_predict_layers": 1}, 3, 1, {}, None),
        ("step3p5_mtp", {"num_nextn_predict_layers": 3}, 1, 1, {}, None),
        ("step3p5_mtp", {"num_nextn_predict_layers": 3}, 2, 1, {}, ("3 modules", "num_speculative_tokens to 1")),
        ("gemma4_mtp", {}, 1, 1, {}, ("Gemma 4", "KV cache")),
        ("qwen3_next_mtp", {}, 1, 1, {"is_hybrid": True}, None),
        ("nemotron_h_mtp", {}, 3, 1, {"is_hybrid": True}, None),
        ("qwen3_next_mtp", {}, 1, 0, {"is_hybrid": True}, ("not qwen3_next_mtp", "VLLM_USE_V2_MODEL_RUNNER=1")),
        ("bailing_hybrid_mtp", {}, 1, 1, {"is_hybrid": True}, ("recurrent layers", "without the adapter")),
        ("deepseek_mtp", {}, 1, 0, {}, ("mimo_mtp", "not deepseek_mtp", "VLLM_USE_V2_MODEL_RUNNER=1")),
    ],
)
def test_an_mtp_head_of_one_module_is_steered(
    kind: str,
    fields: dict[str, int],
    k_max: int,
    runner_v2: int,
    model: dict[str, bool],
    words: tuple[str, ...] | None,
) -> None:
    own = config("mtp", runner_v2=runner_v2)
    own.num_speculative_tokens = k_max
    own.speculative_config.draft_model_config = head(kind, **fields)
    vars(own.model_config).update(model)
    assert_rejected(own, words)


@pytest.mark.parametrize(
    ("architecture", "window", "runner_v2", "words"),
    [
        ("DFlashDraftModel", {}, 0, None),
        ("DFlashDraftModel", {}, 1, None),
        ("DFlash2DraftModel", {}, 1, ("candidates", "DFlashDraftModel", "without the adapter")),
        ("LiLiCorrDraftModel", {}, 0, ("candidates", "DFlashDraftModel")),
        ("DFlashDraftModel", {"use_swa": True}, 0, ("sliding window", "VLLM_USE_V2_MODEL_RUNNER=1")),
        ("DFlashDraftModel", {"use_swa": True}, 1, None),
    ],
)
def test_a_dflash_head_without_candidates_is_steered(
    architecture: str, window: dict[str, bool], runner_v2: int, words: tuple[str, ...] | None
) -> None:
    own = config("dflash", runner_v2=runner_v2)
    own.speculative_config.draft_model_config = head("qwen3", architectures=[architecture])
    own.speculative_config.draft_model_config.hf_text_config.dflash_config = window
    assert_rejected(own, words)


@pytest.mark.parametrize(
    ("named", "is_parallel", "is_refused"),
    [({"ptd_token_id": 5}, False, True), ({"ptd_token_id": 5}, True, False), ({}, False, False)],
)
def test_a_head_that_drafts_in_parallel_is_not_run_one_token_at_a_time(
    named: dict[str, int], is_parallel: bool, is_refused: bool
) -> None:
    broken = config()
    broken.speculative_config.draft_model_config = head("llama", **named)
    broken.speculative_config.parallel_drafting = is_parallel
    assert_rejected(broken, ("mask token", '"parallel_drafting": true') if is_refused else None)


def test_the_asynchronous_scheduler_in_a_synchronous_loop_is_refused() -> None:
    with pytest.raises(UnsupportedEngineError, match=r"synchronously here: .*\.SpecPilotScheduler$"):
        compat.check_config(config(), is_async_scheduler=True)


def test_every_reason_is_reported_at_once() -> None:
    broken = config(
        "suffix",
        {1: 7},
        data=2,
        local=1,
        pipeline=2,
        context=(2, 2),
        runner_v2=1,
        ahead=1,
        connector="Offloading",
        embeds=1,
    )
    with pytest.raises(UnsupportedEngineError) as refused:
        compat.check_config(broken, is_async_scheduler=False)
    assert str(refused.value).count(";") == 6


@pytest.mark.parametrize("kind", ["is_hybrid", "has_inner_state"])
def test_a_kv_connector_is_refused_beside_recurrent_layers_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_facts, "vllm_version", lambda: "0.32.0")
    own = config(connector="OffloadingConnector")
    compat.check_config(own, is_async_scheduler=False)
    vars(own.model_config)[kind] = True
    with pytest.raises(UnsupportedEngineError, match=r"KV connector .* --kv-transfer-config and --kv-offloading-size"):
        compat.check_config(own, is_async_scheduler=False)


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
    assert engine_facts.is_steered(found) is is_steered
    found.speculative_config.method = "suffix"
    assert not engine_facts.is_steered(found)


def test_a_graph_for_a_k_beyond_k_max_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_GRAPH_K", "3,9")
    found = config()
    found.num_speculative_tokens = 7
    with pytest.raises(UnsupportedEngineError, match="--graph-k names K = 9 and K_max is 7: name none"):
        compat.check_config(found, is_async_scheduler=False)
    found.num_speculative_tokens = 9
    compat.check_config(found, is_async_scheduler=False)


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

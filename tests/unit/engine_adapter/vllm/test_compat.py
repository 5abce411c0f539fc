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

BASE = ConfigFacts("eagle3", version="0.32.0", device="cuda", k_max=3)
V2 = {"is_v2": True}
RECURRENT = {"is_recurrent": True}
LOCKSTEP = {"is_v2": True, "is_moe": True, "data_parallel": 2}
DFLASH = {"method": "dflash", "is_parallel": True, "head_kind": "DFlashDraftModel"}
DSPARK = {"method": "dspark", "head_kind": "Qwen3DSparkModel"}
ONE_AT_A_TIME = {"mask_token": "ptd_token_id"}
BOTH_RUNNERS = ("eagle", "eagle3", "mtp", "dflash")
ON_V2_ALONE = ("ngram", "draft_model", "dspark")
NOT_STEERED = ("ngram_gpu", "suffix", "medusa", "mlp_speculator")


def mtp(kind: str, k_max: int = 3, *, modules: int = 1, **others: bool) -> dict[str, Any]:
    return {"method": "mtp", "head_kind": kind, "k_max": k_max, "head_modules": modules, **others}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        *(({"method": method, "is_v2": is_v2}, None) for method in BOTH_RUNNERS for is_v2 in (False, True)),
        *(({"method": method}, ("eagle, eagle3, mtp", repr(method), "without the adapter")) for method in NOT_STEERED),
        *((DSPARK | {"method": method}, (repr(method), "VLLM_USE_V2_MODEL_RUNNER=1")) for method in ON_V2_ALONE),
        ({"method": "ngram", **V2}, None),
        ({"method": "draft_model", **V2}, None),
        (DSPARK | V2, None),
        (DSPARK | V2 | {"head_kind": "Other"}, ("class Other", "only Qwen3DSparkModel")),
        ({"has_table": True}, ("num_speculative_tokens_per_batch_size", "remove it")),
        ({"data_parallel": 4, "has_ranks_elsewhere": True}, ("ranks on other machines", "--data-parallel-hybrid-lb")),
        ({"is_launched_outside": True}, ("each have a scheduler", "--distributed-executor-backend")),
        ({"pipeline_parallel": 2}, ("pipeline parallelism", "tensor parallelism")),
        ({"context_parallel": 2}, ("context parallelism", "tensor parallelism")),
        ({"takes_embeddings": True}, ("prompt of embeddings", "--enable-prompt-embeds")),
        # one graph for prompts and decodes, where attention reads a prompt by more than its tokens
        ({"graph_mode": "FULL", "uses_mla": True}, ("MLA", "FULL_AND_PIECEWISE")),
        ({"graph_mode": "FULL", "sees_both_ways": True}, ("images", "FULL_DECODE_ONLY")),
        ({"graph_mode": "FULL"}, None),
        ({"graph_mode": "FULL_AND_PIECEWISE", "uses_mla": True, "sees_both_ways": True}, None),
        # recurrent layers
        *(
            ({"version": version, **RECURRENT}, ("recurrent layers", "install vLLM 0.32"))
            for version in ("0.29.0", "0.31.2")
        ),
        ({"version": "0.29.0"}, None),
        (RECURRENT, None),
        ({"device": "cpu", **RECURRENT}, ("one number of drafts on a CPU",)),
        ({"has_connector": True, **RECURRENT}, ("KV connector", "--kv-transfer-config and --kv-offloading-size")),
        ({"has_connector": True}, None),
        # model runner V2
        ({"version": "0.31.2", **V2}, ("model runner V2", "0.32", "VLLM_USE_V2_MODEL_RUNNER=0")),
        ({"version": "0.31.2"}, None),
        *(
            (
                {"method": method, "is_adaptive": True, **V2},
                ("adaptive verification", repr(method), "remove enable_adaptive"),
            )
            for method in ("ngram", "dflash")
        ),
        ({"is_adaptive": True, **V2}, None),
        ({"is_parallel": True, **V2}, None),
        ({"is_multimodal": True, **V2}, None),
        ({"is_parallel": True, "is_multimodal": True, **V2}, ("multimodal", "VLLM_USE_V2_MODEL_RUNNER=0")),
        ({"is_parallel": True, "is_multimodal": True}, None),
        ({"is_multimodal": True, **DFLASH, **V2}, None),
        (LOCKSTEP, None),
        (LOCKSTEP | {"is_parallel": True}, ("ranks of a mixture of experts", "VLLM_USE_V2_MODEL_RUNNER=0")),
        (LOCKSTEP | {"is_parallel": True, "is_v2": False}, None),
        (LOCKSTEP | DFLASH, None),
        (LOCKSTEP | {"method": "draft_model"}, ("first draft", "another method")),
        ({"is_moe": True, "method": "draft_model", **V2}, None),
        # heads
        (ONE_AT_A_TIME, ("mask token", '"parallel_drafting": true')),
        (ONE_AT_A_TIME | {"is_parallel": True}, None),
        (ONE_AT_A_TIME | {"method": "draft_model", **V2}, None),
        (mtp("mimo_mtp"), None),
        (mtp("mimo_mtp", is_v2=True), None),
        (mtp("deepseek_mtp", is_v2=True), None),
        (mtp("deepseek_mtp"), ("mimo_mtp", "not deepseek_mtp", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (mtp("step3p5_mtp", 1, modules=3, is_v2=True), None),
        (mtp("step3p5_mtp", 2, modules=3, is_v2=True), ("3 modules", "num_speculative_tokens to 1")),
        (mtp("gemma4_mtp", 1, is_v2=True), ("Gemma 4", "KV cache")),
        (mtp("qwen3_next_mtp", is_v2=True, is_recurrent=True), None),
        (mtp("nemotron_h_mtp", is_v2=True, is_recurrent=True), None),
        (mtp("qwen3_next_mtp", is_recurrent=True), ("not qwen3_next_mtp", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (mtp("bailing_hybrid_mtp", is_v2=True, is_recurrent=True), ("recurrent layers", "without the adapter")),
        (DFLASH, None),
        (DFLASH | {"head_kind": "DFlash2DraftModel", **V2}, ("candidates", "DFlashDraftModel", "without the adapter")),
        (DFLASH | {"head_kind": "LiLiCorrDraftModel"}, ("candidates", "DFlashDraftModel")),
        (DFLASH | {"head_is_windowed": True}, ("sliding window", "VLLM_USE_V2_MODEL_RUNNER=1")),
        (DFLASH | {"head_is_windowed": True, **V2}, None),
    ],
)
def test_what_is_not_steered_is_refused_with_the_remedy(changed: dict[str, Any], words: tuple[str, ...] | None) -> None:
    faults = compat.faults_of(replace(BASE, **changed))
    assert len(faults) == (words is not None), faults
    assert [word for word in words or () if word not in faults[0]] == []


def with_head(method: str, kind: str, window: dict[str, bool] | None = None, **fields: Any) -> Any:
    """A configuration with this head; `window`: the fields of a DFlash head's configuration."""
    found = config(method)
    found.speculative_config.draft_model_config = head(kind, **fields)
    if window is not None:
        found.speculative_config.draft_model_config.hf_text_config.dflash_config = window
    return found


def with_model(**fields: bool) -> Any:
    found = config()
    vars(found.model_config).update(fields)
    return found


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (config("mtp", {1: 7}, runner_v2=1, ahead=1), {"method": "mtp", "has_table": True, "is_v2": 1, "is_async": 1}),
        (config(data=4, local=2), {"data_parallel": 4, "has_ranks_elsewhere": True}),
        (config(data=2, launcher="external_launcher"), {"has_ranks_elsewhere": False, "is_launched_outside": True}),
        (config(pipeline=2, context=(2, 1)), {"pipeline_parallel": 2, "context_parallel": 2}),
        (config(context=(1, 2), embeds=1, connector="Offloading"), {"context_parallel": 2, "takes_embeddings": 1}),
        (config(connector="Offloading"), {"has_connector": True, "k_max": 3, "is_recurrent": False}),
        (config(data=2, experts=8), {"in_lockstep": True, "is_moe": True}),
        (with_model(is_hybrid=True), {"is_recurrent": True}),
        (with_model(has_inner_state=True), {"is_recurrent": True}),
        (with_model(use_mla=True), {"uses_mla": True, "head_uses_mla": False}),
        (with_model(is_mm_prefix_lm=True), {"sees_both_ways": True}),
        (with_head("eagle3", "llama", ptd_token_id=5), {"mask_token": "ptd_token_id", "head_kind": None}),
        (with_head("mtp", "mimo_mtp"), {"head_kind": "mimo_mtp", "head_modules": 1, "mask_token": None}),
        (with_head("mtp", "step3p5_mtp", num_nextn_predict_layers=3), {"head_kind": "step3p5_mtp", "head_modules": 3}),
        (with_head("dflash", "qwen3", {}, architectures=["A"]), {"head_kind": "A", "head_is_windowed": False}),
        (with_head("dflash", "qwen3", {"use_swa": True}), {"head_kind": None, "head_is_windowed": True}),
    ],
)
def test_the_facts_are_read_from_vllms_configuration(own: Any, expected: dict[str, Any]) -> None:
    facts = config_facts.of_engine(own)
    assert {name: getattr(facts, name) for name in expected} == expected


def test_the_mode_of_graphs_and_the_device_are_known_if_vllm_states_them() -> None:
    own = config()
    facts = config_facts.of_engine(own)
    assert (facts.graph_mode, facts.device) == (None, None)
    own.compilation_config = SimpleNamespace(cudagraph_mode=SimpleNamespace(name="FULL"))
    own.device_config = SimpleNamespace(device_type="cpu")
    facts = config_facts.of_engine(own)
    assert (facts.graph_mode, facts.device) == ("FULL", "cpu")


@pytest.mark.parametrize("is_async", [False, True])
def test_the_scheduler_must_be_that_of_vllms_loop(is_async: bool) -> None:
    own = config(ahead=is_async)
    compat.check_config(own, is_async_scheduler=is_async)
    words = (
        r"asynchronously here: .*\.SpecPilotAsyncScheduler$" if is_async else r"\bsynchronously here: .*\.SpecPilotS"
    )
    with pytest.raises(UnsupportedEngineError, match=words):
        compat.check_config(own, is_async_scheduler=not is_async)


def test_an_engine_without_speculation_may_carry_the_adapter() -> None:
    compat.check_config(SimpleNamespace(speculative_config=None), is_async_scheduler=False)


def test_every_reason_is_reported_at_once() -> None:
    broken = config("suffix", {1: 7}, data=2, local=1, pipeline=2, context=(2, 2), runner_v2=1, ahead=1, embeds=1)
    with pytest.raises(UnsupportedEngineError) as refused:
        compat.check_config(broken, is_async_scheduler=False)
    assert str(refused.value).count(";") == 6


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

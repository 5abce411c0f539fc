"""`specpilot check`: the verdict on published models and vLLM's flags, from configurations alone."""

from typing import Any

import pytest

from specpilot.engine_adapter import check
from specpilot.engine_adapter.check import REFUSED, RUNS, RUNS_WITH_LESS
from specpilot.engine_adapter.errors import InvalidSettingsError
from tests.support.published_configs import asked, drafted, mtp

K3 = {"num_speculative_tokens": 3}
FP8 = ("--kv-cache-dtype", "fp8")
DP = ("--data-parallel-size", "8", "--enable-expert-parallel")
NIXL = ("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}')
KIMI = drafted("eagle3", "kimi-k2.5-eagle3-mla", 3)
LLAMA_HEAD = drafted("eagle3", "llama-3.1-8b-eagle3", 3)
DFLASH = {"model": "laguna-dflash", "num_speculative_tokens": 15}
EVERY_STEP = "runs in every step"
ADAPTIVE = {"enable_adaptive_verification": True}


@pytest.mark.parametrize(
    ("model", "speculative", "flags", "verdict", "words"),
    [
        ("llama-3.1-8b", LLAMA_HEAD, (), RUNS, ""),
        ("llama-3.1-8b", drafted("eagle3", "llama-3.1-8b-eagle3-of-2048", 3), (), RUNS_WITH_LESS, "reads 2048 tokens"),
        (
            "llama-3.1-8b",
            drafted("eagle3", "llama-3.1-8b-eagle3-of-2048", 3),
            ("--max-model-len", "2k"),
            RUNS,
            "",
        ),
        ("gpt-oss-120b", drafted("eagle3", "gpt-oss-120b-eagle3", 7), ("-tp", "8", "--enable-lora"), RUNS, ""),
        ("gpt-oss-120b", drafted("eagle3", "gpt-oss-20b-p-eagle", 7, parallel_drafting=True), (), RUNS, ""),
        ("gpt-oss-120b", drafted("eagle3", "gpt-oss-20b-p-eagle", 7), (), REFUSED, '"parallel_drafting": true'),
        ("qwen3-8b-peagle", None, (), RUNS, ""),
        ("qwen3-8b-peagle", {"method": "mtp", "num_speculative_tokens": 5}, (), RUNS, ""),  # the head states the method
        ("glm-4.5", {"method": "mtp", "model": "glm-4.5"}, (), RUNS, ""),  # K is the head's own
        ("glm-4.5", mtp(1), ("--no-enable-prefix-caching", *FP8), RUNS, ""),
        ("mimo-7b", mtp(1), ("--no-async-scheduling",), RUNS, ""),
        ("ernie-4.5", drafted("ernie_mtp", "ernie-4.5", 1), (), RUNS, ""),
        ("hy3", mtp(2), (), RUNS, ""),
        ("mimo-v2", mtp(1), (), RUNS_WITH_LESS, EVERY_STEP),
        ("glm-4.7-flash", mtp(1), (), RUNS_WITH_LESS, "MLA"),
        ("deepseek-v3", mtp(1), (), RUNS_WITH_LESS, "MLA"),
        (
            "deepseek-v3",
            mtp(1),
            FP8,
            RUNS_WITH_LESS,
            "with attention backend FLASHMLA steps are scheduled synchronously",
        ),
        ("deepseek-v3", mtp(1), (*FP8, "--async-scheduling"), REFUSED, "FLASHMLA reads"),
        ("deepseek-v3", mtp(1), (*FP8, "--no-async-scheduling"), RUNS_WITH_LESS, "MLA"),
        ("deepseek-v3", mtp(1), (*FP8, "--attention-backend", "FLASHINFER_MLA"), RUNS_WITH_LESS, "MLA"),
        ("deepseek-v3", mtp(1), ("--attention-config.backend=TRITON_MLA",), RUNS_WITH_LESS, "scheduled synchronously"),
        ("deepseek-v3", mtp(1), ("-cc.cudagraph_mode=full",), REFUSED, "set FULL_DECODE_ONLY"),
        ("deepseek-v3.2", mtp(3), ("-tp", "8"), RUNS_WITH_LESS, EVERY_STEP),
        ("deepseek-v3.2", mtp(3), ("-tp", "4"), RUNS_WITH_LESS, "FLASHMLA_SPARSE steps are scheduled synchronously"),
        ("glm-5", mtp(3), ("-tp", "4"), RUNS_WITH_LESS, EVERY_STEP),
        ("glm-5", mtp(5), FP8, RUNS_WITH_LESS, "FLASHMLA_SPARSE steps are scheduled synchronously"),
        ("deepseek-v4", mtp(2), FP8, RUNS_WITH_LESS, EVERY_STEP),
        ("kimi-k2.5", KIMI, (), RUNS_WITH_LESS, "MLA"),
        ("kimi-k2.5", KIMI, NIXL, RUNS_WITH_LESS, "a KV connector stores blocks"),
        ("qwen3.5", mtp(1), NIXL, REFUSED, "remove --kv-transfer-config"),
        ("kimi-k2.5", mtp(1), (), REFUSED, "makes no MTP head"),
        ("qwen3-next", {"method": "qwen3_next_mtp", "num_speculative_tokens": 2}, (), RUNS_WITH_LESS, "get one K"),
        ("qwen3-next", drafted("eagle3", "llama-3.1-8b-eagle3", 3), (), RUNS_WITH_LESS, "recurrent layers"),
        ("qwen3.5", mtp(1), FP8, RUNS_WITH_LESS, "recurrent layers"),
        ("nemotron-3-super", mtp(3), (), RUNS_WITH_LESS, "recurrent layers"),
        ("step-3.7", mtp(3), (), REFUSED, "has 3 modules"),
        ("step-3.7", mtp(1), (), RUNS_WITH_LESS, EVERY_STEP),
        ("step-3.7", mtp(4), (), REFUSED, "a multiple of 3"),
        ("inkling", mtp(8), (), REFUSED, "has 8 modules"),
        ("inkling", mtp(1), (), RUNS_WITH_LESS, EVERY_STEP),
        ("gemma-4-31b", {"model": "gemma-4-31b-assistant", "num_speculative_tokens": 4}, (), REFUSED, "Gemma 4"),
        ("qwen3-8b", DFLASH, (), RUNS_WITH_LESS, EVERY_STEP),
        ("qwen3-8b", DFLASH, NIXL, RUNS_WITH_LESS, "a KV connector stores blocks"),
        ("qwen3-8b", DFLASH | ADAPTIVE, (), REFUSED, "remove enable_adaptive"),
        ("qwen3.5", DFLASH, (), RUNS_WITH_LESS, "get one K"),
        ("qwen3-8b", DFLASH | {"model": "qwen3-8b-dflash-2"}, (), REFUSED, "with candidates"),
        ("qwen3-8b", DFLASH | {"model": "qwen3-8b-speculators-dflash-2"}, (), REFUSED, "with candidates"),
        ("qwen3-8b", {"model": "qwen3-8b-dspark"}, (), RUNS_WITH_LESS, EVERY_STEP),
        ("qwen3-8b", {"model": "qwen3-8b-dspark"} | ADAPTIVE, (), RUNS_WITH_LESS, EVERY_STEP),
        ("qwen3-8b", {"model": "qwen3-8b-semi", "num_speculative_tokens": 7}, (), RUNS_WITH_LESS, EVERY_STEP),
        ("qwen3-8b", {"model": "gemma-4-dspark", "num_speculative_tokens": 7}, (), REFUSED, "only Qwen3DSparkModel"),
        ("qwen3-8b", {"method": "suffix"}, (), REFUSED, "not method 'suffix'"),
        ("qwen3-8b", {"method": "ngram", "num_speculative_tokens": 3}, (), RUNS_WITH_LESS, EVERY_STEP),
        ("qwen3-8b", {"model": "qwen3-8b", "num_speculative_tokens": 3}, (), RUNS_WITH_LESS, "'draft_model'"),
        (
            "mistral-medium",
            drafted("eagle", "mistral-medium-eagle", 3, max_model_len="65536"),
            (),
            RUNS_WITH_LESS,
            "reads 65536 tokens",
        ),
        ("mistral-medium", drafted("eagle", "mistral-small-4-eagle", 3), (), RUNS_WITH_LESS, "MLA"),
        ("glm-4.5", mtp(1), DP, RUNS_WITH_LESS, "ranks of a mixture of experts make every pass together"),
        ("qwen3.5", mtp(1), DP, RUNS_WITH_LESS, "runs in every step, also at K = 0"),
        ("glm-4.5", mtp(1), (*DP, "-dpl", "1"), REFUSED, "start a server on each machine"),
        ("glm-4.5", mtp(1), (*DP, "-dpl", "1", "-dpn", "3"), RUNS_WITH_LESS, "make every pass together"),
        ("glm-4.5", mtp(1), (*DP, "--nnodes", "2"), REFUSED, "start a server on each machine"),
        ("glm-4.5", mtp(1), (*DP, "--nnodes", "8", "-dpe"), RUNS_WITH_LESS, "make every pass together"),
        (
            "glm-4.5",
            mtp(1),
            ("-tp", "2", "--distributed-executor-backend", "external_launcher"),
            REFUSED,
            "different K",
        ),
        ("llama-3.1-8b", LLAMA_HEAD, ("-dp", "2"), RUNS_WITH_LESS, "--api-server-count 1"),
        ("llama-3.1-8b", LLAMA_HEAD, ("-dp", "4", "-dpl", "2"), REFUSED, "start a server on each machine"),
        ("llama-3.1-8b", LLAMA_HEAD, ("-dp", "4", "-dpl", "2", "--data-parallel-start-rank", "2"), RUNS_WITH_LESS, ""),
        ("llama-3.1-8b", LLAMA_HEAD, ("-dp", "2", "-dpb=ray"), REFUSED, "--data-parallel-backend mp"),
        ("llama-3.1-8b", LLAMA_HEAD, ("-dp", "2", "-dpn", "1"), REFUSED, "without --data-parallel flags"),
        ("glm-4.5", mtp(1), ("--pipeline_parallel_size=2",), REFUSED, "one stage"),
        ("glm-4.5", mtp(1), ("-dcp", "2"), REFUSED, "context parallelism"),
        ("glm-4.5", mtp(1), ("--pipeline-parallel", "2"), REFUSED, "one stage"),
        ("glm-4.5", mtp(1), ("--no-async-scheduling", "--async-scheduling"), RUNS, ""),
        ("glm-4.5", mtp(1) | {"disable_padded_drafter_batch": True}, (), RUNS, ""),
        (
            "glm-4.5",
            mtp(1) | {"disable_padded_drafter_batch": True},
            ("--async-scheduling",),
            REFUSED,
            "disable_padded_drafter_batch asynchronously",
        ),
        (
            "qwen3-8b",
            {"method": "ngram", "num_speculative_tokens": 3},
            ("--async-scheduling",),
            REFUSED,
            "method 'ngram' asynchronously",
        ),
        (
            "gpt-oss-120b",
            drafted("eagle3", "gpt-oss-20b-p-eagle", 7, parallel_drafting=True, enable_adaptive_verification=True),
            (),
            REFUSED,
            "remove enable_adaptive_verification",
        ),
        ("llama-3.1-8b", LLAMA_HEAD | ADAPTIVE, (), RUNS, ""),
        ("llama-3.1-8b", LLAMA_HEAD | ADAPTIVE, ("--enable-lora",), REFUSED, "beside LoRA"),
        ("llama-3.1-8b", LLAMA_HEAD | ADAPTIVE, ("--enforce-eager",), REFUSED, "with FULL CUDA graphs alone"),
        ("llama-3.1-8b", LLAMA_HEAD | ADAPTIVE, ("-cc.cudagraph_mode=PIECEWISE",), REFUSED, "with FULL CUDA graphs"),
        ("glm-4.5-without-mtp", mtp(1), (), REFUSED, "no MTP layer"),
        ("qwen3.5-without-mtp", mtp(1), (), REFUSED, "no MTP layer"),
        ("kimi-k2.5", KIMI, ("--hf-overrides.text_config.max_position_embeddings=65536",), RUNS_WITH_LESS, "MLA"),
        ("glm-4.5", mtp(1), ("--kv-offloading-size", "8"), RUNS_WITH_LESS, "a KV connector stores blocks"),
        ("glm-4.5", mtp(1), ("--enable-prompt-embeds",), REFUSED, "--enable-prompt-embeds"),
        ("glm-4.5", mtp(1) | {"num_speculative_tokens_per_batch_size": [[1, 8, 1]]}, (), REFUSED, "both set K"),
        ("deepseek-v3", mtp(1), ("--enable-dbo",), REFUSED, "on model runner V1"),
        (
            "deepseek-v3",
            mtp(1),
            ("--hf-overrides", '{"architectures": ["Mamba2ForCausalLM"]}'),
            REFUSED,
            "recurrent",
        ),
        ("glm-4.5", mtp(1), ("--scheduler-cls", "my.Scheduler"), RUNS_WITH_LESS, "leave it out"),
        (
            "glm-4.5",
            mtp(1),
            ("--scheduler-cls", "specpilot.engine_adapter.vllm.scheduler.SpecPilotScheduler"),
            REFUSED,
            "asynchronously here",
        ),
        ("glm-4.5", None, (), RUNS_WITH_LESS, "add --speculative-config"),
        (
            "llama-3.1-8b",
            drafted("eagle3", "llama-3.1-8b-eagle3", 3, parallel_drafting=True),
            (),
            REFUSED,
            "names none",
        ),
        ("qwen3-8b", {"model": "qwen3-8b", "parallel_drafting": True} | K3, (), REFUSED, "names none"),
        ("qwen3-8b", {"model": "qwen3-8b-of-100-tokens"} | K3, (), REFUSED, "has 100 tokens and the target 151936"),
        ("llama-3.1-8b", LLAMA_HEAD | {"draft_tensor_parallel_size": 2}, ("-tp", "4"), REFUSED, "takes 1 or that of"),
        ("llama-3.1-8b", LLAMA_HEAD | {"draft_tensor_parallel_size": 4}, ("-tp", "4"), RUNS, ""),
        ("llama-3.1-8b", LLAMA_HEAD | {"tensor_parallel_size": 1}, (), REFUSED, "name it draft_tensor_parallel_size"),
        ("llama-3.1-8b", LLAMA_HEAD | {"use_heterogeneous_vocab": True}, (), REFUSED, "for draft models alone"),
        ("qwen3-8b-peagle", {"disable_padded_drafter_batch": True}, (), REFUSED, "with padded batches alone"),
        ("llama-3.1-8b", LLAMA_HEAD | {"max_model_len": 131073}, (), REFUSED, "read 131072 tokens"),
        ("llama-3.1-8b", LLAMA_HEAD | {"max_model_len": 4096}, ("--max-model-len", "2k"), REFUSED, "read 2000 tokens"),
        ("qwen3-8b", {"method": "xpress", "model": "laguna-dflash"} | K3, (), REFUSED, "not method 'xpress'"),
        ("llama-3.1-8b", drafted("eagle3", "mimo-7b", 3), (), REFUSED, "(MiMoForCausalLM) for an MTP head"),
        (
            "llama-3.1-8b",
            drafted("eagle3", "llama-3.1-8b-eagle3", 3),
            ("--max-model-len", "999999"),
            REFUSED,
            "reads 131072 tokens",
        ),
    ],
)
@pytest.mark.usefixtures("models")
def test_the_verdict_on_a_published_model(
    model: str, speculative: dict[str, Any] | None, flags: tuple[str, ...], verdict: str, words: str
) -> None:
    found = asked(model, speculative, *flags)
    assert (found.verdict, found.refused if verdict == RUNS else ()) == (verdict, ())
    assert words in " ".join(found.refused if verdict == REFUSED else found.less)


@pytest.mark.usefixtures("models")
def test_a_rank_with_a_server_of_its_own_has_one_api_server() -> None:
    notes = [" ".join(asked("glm-4.5", mtp(1), *DP, *flags).less) for flags in ((), ("-dpl", "1", "-dpn", "3"))]
    assert all("every request of every rank verifies K_max" in note for note in notes)
    assert ["an API server for each" in note for note in notes] == [True, False]


@pytest.mark.usefixtures("models")
def test_every_reason_is_said_at_once() -> None:
    assert len(asked("qwen3.5", mtp(1), *DP, "-dpl", "1", *NIXL, "-pp", "2").refused) == 3


@pytest.mark.parametrize(
    ("version", "model", "k", "runner", "verdict", "words"),
    [
        ("0.31", "glm-4.5", 1, None, RUNS, "model runner V1"),
        ("0.31", "deepseek-v3", 1, None, REFUSED, "VLLM_USE_V2_MODEL_RUNNER=1"),
        ("0.32", "deepseek-v3", 1, "0", REFUSED, "VLLM_USE_V2_MODEL_RUNNER=1"),
        ("0.31", "glm-4.5", 1, "1", REFUSED, "VLLM_USE_V2_MODEL_RUNNER=0"),
        ("0.31", "qwen3.5", 1, None, REFUSED, "install vLLM 0.32"),
        ("0.33", "glm-4.5", 1, None, RUNS, "model runner V2"),
        ("0.33.0", "glm-4.5", 1, None, RUNS, "vLLM 0.33.0: no build of it ran"),
        ("0.34.0", "glm-4.5", 1, None, REFUSED, "no engine of vLLM 0.34.0 was tested: install vLLM 0.29"),
        ("0.22.1", "glm-4.5", 1, None, REFUSED, "no engine of vLLM 0.22.1 was tested"),
    ],
)
@pytest.mark.usefixtures("models")
def test_the_version_and_the_runner_count(
    version: str, model: str, k: int, runner: str | None, verdict: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if runner is not None:
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    found = asked(model, mtp(k), version=version)
    assert found.verdict == verdict
    assert words in check.as_text(found)


@pytest.mark.usefixtures("models")
def test_a_block_drafter_can_be_left_out_on_model_runner_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    assert asked("qwen3-8b", DFLASH).verdict == RUNS


@pytest.mark.usefixtures("models")
def test_vllm_0_33_schedules_every_method_asynchronously_on_v2() -> None:
    ngram = {"method": "ngram", "num_speculative_tokens": 3}
    found = asked("qwen3-8b", ngram, "--async-scheduling", version="0.33.0")
    assert found.verdict == RUNS_WITH_LESS
    assert found.facts is not None
    assert found.facts.is_async


@pytest.mark.usefixtures("models")
def test_what_vllm_decides_later_is_said_to_be_assumed() -> None:
    backends = "FLASH_ATTN_MLA_SPARSE on Hopper GPUs, FLASHINFER_MLA_SPARSE on Blackwell GPUs"
    assert asked("deepseek-v3.2", mtp(3), "-tp", "8").assumed == (
        "model runner V2 (VLLM_USE_V2_MODEL_RUNNER is not set)",
        "asynchronous scheduling, vLLM's default on GPUs",
        f"attention backend {backends}; on others vLLM takes one that the start may refuse",
    )
    on_cpu = check.answer_to("glm-4.5", ["--spec-method", "mtp", "--spec-tokens", "1"], version="0.32.0", device="cpu")
    assert on_cpu.assumed == ("model runner V1 (VLLM_USE_V2_MODEL_RUNNER is not set)",)


@pytest.mark.usefixtures("models")
def test_a_class_of_models_that_vllm_does_not_list_is_not_taken_for_a_known_one() -> None:
    own = ("--hf-overrides", '{"architectures": ["OwnForCausalLM"]}')
    eagle3 = drafted("eagle3", "llama-3.1-8b-eagle3", 3)
    assert any("vLLM does not list" in line for line in asked("llama-3.1-8b", eagle3, *own).assumed)
    assert not any("vLLM does not list" in line for line in asked("llama-3.1-8b", eagle3).assumed)
    nameless = asked("llama-3.1-8b", eagle3, "--hf-overrides", '{"architectures": null}')
    assert any("it names no architectures" in line for line in nameless.assumed)


@pytest.mark.parametrize(("setting", "flag"), [("STATIC_K", "--static-k"), ("GRAPH_K", "--graph-k")])
@pytest.mark.usefixtures("models")
def test_a_setting_that_names_a_k_above_k_max_is_refused(
    setting: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SPECPILOT_ENGINE_{setting}", "2")
    assert asked("glm-4.5", mtp(1)).refused == (f"{flag} names K = 2 and K_max is 1: name none above it",)
    assert asked("hy3", mtp(2)).verdict == RUNS


def test_a_model_that_is_not_here_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InvalidSettingsError, match=r"cannot be reached: download its config\.json into a folder"):
        check.answer_to("nobody/nothing-here", [])


@pytest.mark.usefixtures("models")
def test_a_longer_sequence_may_be_allowed_as_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    long = LLAMA_HEAD | {"max_model_len": 131073}
    assert len(asked("llama-3.1-8b", long, "--max-model-len", "999999").refused) == 2
    monkeypatch.setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1")
    assert asked("llama-3.1-8b", long, "--max-model-len", "999999").verdict == RUNS_WITH_LESS


@pytest.mark.usefixtures("models")
def test_a_flag_that_no_known_vllm_has_is_named_and_read_over() -> None:
    found = asked("glm-4.5", mtp(1), "--my-own-thing", "3", "--enable-lora", "--no-enable-lora", "-q", "2")
    assert found.verdict == RUNS
    assert [line for line in found.assumed if "--" in line] == ["that vLLM takes --my-own-thing"]

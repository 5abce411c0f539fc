"""The adapter beside vLLM's other features, in real engines: the text of no speculation, or a clear refusal."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specpilot.engine_adapter.vllm import versions
from tests.support.engine_program import ended, run
from tests.support.option_engine import Case, make_lora
from tests.support.stack import DEMO_MODEL, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def outcome(case: Case) -> dict[str, Any]:
    return run("option_engine", case.argument())


@cache
def plain() -> dict[str, Any]:
    return outcome(Case(has_adapter=False))


@cache
def stopped() -> dict[str, Any]:
    return outcome(Case(stops=True))


@pytest.mark.extended("sleep")
def test_an_engine_that_pauses_and_sleeps_keeps_the_text_and_counts_neither_as_a_step() -> None:
    found = stopped()
    assert found["stopped_s"] > 2.0
    assert found["counted_s"] <= found["ran_s"]
    assert found["drafted"] > 100
    assert found["ids"] == plain()["ids"]


@pytest.mark.extended("LoRA")
def test_lora_requests_beside_others_keep_the_text(tmp_path: Path) -> None:
    make_lora(tmp_path)
    options = {"enable_lora": True, "max_lora_rank": 8}
    reference = outcome(Case(options, has_adapter=False, lora=str(tmp_path)))
    found = outcome(Case(options, lora=str(tmp_path)))
    assert found["drafted"] > 100
    assert found["ids"] == reference["ids"]
    assert sum(mine != theirs for mine, theirs in zip(found["ids"], plain()["ids"], strict=True)) > 8


@pytest.mark.extended("tensor parallel")
def test_tensor_parallel_workers_keep_the_text() -> None:
    """Few requests, because on one core two workers wait for each other most of the time."""
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    found = outcome(Case(options, requests=9))
    assert found["drafted"] > 50
    assert found["ids"] == outcome(Case(options, has_adapter=False, requests=9))["ids"]


@pytest.mark.extended("vLLM alone")
def test_an_engine_with_vllms_own_scheduler_is_left_as_it_is() -> None:
    head = {"method": "eagle3", "num_speculative_tokens": 7, "parallel_drafting": True}
    found = outcome(Case({"speculative_config": head | {"model": str(DEMO_MODEL / "peagle")}}, has_adapter=False))
    assert (found["drafter"]["has_backlog"], found["drafter"]["slots"]) == (False, 7)
    assert set(found["drafter"]["widths"]) <= {7}
    assert found["ids"] == plain()["ids"]


@pytest.mark.extended("sleep")
@pytest.mark.skipif(versions.vllm_version().startswith("0.29."), reason="vLLM 0.29 compiles its kernels at first use")
def test_the_kernel_that_lays_out_drafts_is_compiled_for_every_width_before_the_engine_serves() -> None:
    drafter = stopped()["drafter"]
    assert drafter["has_backlog"]
    assert drafter["widths"] == [1, 2, 7]
    assert drafter["others"] == 1  # except for the width they repeat vLLM's message about K_max


def failure(case: Case) -> str:
    """What an engine says that does not start."""
    done = ended("option_engine", case.argument())
    assert done.returncode != 0
    return done.stderr + done.stdout


@pytest.mark.extended("vLLM alone")
def test_what_is_not_steered_ends_the_start_with_a_sentence() -> None:
    said = failure(Case({"scheduler_cls": "specpilot.engine_adapter.vllm.scheduler.SpecPilotAsyncScheduler"}))
    assert "vLLM schedules synchronously here: use --scheduler-cls specpilot.engine_adapter.vllm.scheduler.S" in said


def test_a_setting_that_is_wrong_ends_the_start_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_URL", "gpu-1:8000")
    assert "InvalidSettingsError: SPECPILOT_ENGINE_URL: is no engine's address" in failure(Case())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--speculative-config", json.dumps(NGRAM)], "steers method 'ngram' on model runner V2 alone"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "-dp=2", "-dpl=1"], "ranks on other machines"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "-pp", "2"], "pipeline parallelism is not steered"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "-dcp=2"], "context parallelism is not steered"),
    ],
)
def test_the_command_refuses_in_one_line_before_anything_loads(flags: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "specpilot.cli", "engine", "--model", str(DEMO_MODEL / "target"), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("tested", "wrapped"), [("0.1", False), pytest.param("0", True, marks=pytest.mark.extended("vLLM alone"))]
)
def test_the_plugin_leaves_an_untested_vllm_as_it_is(tested: str, wrapped: bool) -> None:
    code = (
        "from specpilot.engine_adapter import plugin\n"
        "from specpilot.engine_adapter.vllm import versions\n"
        f"versions.ACCEPTED = ({tested!r},)\n"
        "plugin.register()\n"
        "from vllm.v1.engine.core import EngineCore\n"
        "from vllm.v1.worker.gpu_model_runner import GPUModelRunner\n"
        "is_wrapped = hasattr(GPUModelRunner._sample, '__wrapped__')\n"
        "print(hasattr(EngineCore, plugin.core_methods.STATE_METHOD), is_wrapped)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"VLLM_PLUGINS": "specpilot"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout.splitlines()[-1:] == [f"True {wrapped}"], done.stderr

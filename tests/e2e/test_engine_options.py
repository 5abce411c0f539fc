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
from tests.support.option_engine import Case, make_lora
from tests.support.stack import DEMO_MODEL, ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

ASYNC = "specpilot.engine_adapter.vllm.scheduler.SpecPilotAsyncScheduler"
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def ran(case: Case) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.option_engine", case.argument()]
    # Unbound, because workers would each want a NUMA node; one thread, because another test runs beside it
    environment = os.environ | {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=350, check=False)


def outcome(case: Case) -> dict[str, Any]:
    done = ran(case)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    return dict(json.loads(lines[-1]))


@cache
def plain() -> dict[str, Any]:
    return outcome(Case(has_adapter=False))


def test_priority_scheduling_with_preemptions_keeps_the_text() -> None:
    scarce = {"block_size": 32, "max_model_len": 512, "num_gpu_blocks_override": 40}
    found = outcome(Case(scarce | {"scheduling_policy": "priority"}, has_priorities=True))
    assert found["preemptions"] > 3
    assert found["drafted"] > 100
    assert found["ids"] == plain()["ids"]


@pytest.mark.skipif(versions.vllm_version().startswith("0.30."), reason="on CPUs vLLM 0.30 cannot run sequential heads")
def test_a_sequential_eagle_head_keeps_the_text() -> None:
    found = outcome(Case(is_sequential=True))
    assert found["drafted"] > 100
    assert found["ids"] == plain()["ids"]


@pytest.mark.parametrize("way", ["pause", "sleep"])
def test_a_paused_engine_keeps_the_text_and_counts_no_pause_as_a_step(way: str) -> None:
    found = outcome(Case(pause=way))
    assert found["stopped_s"] > 2.0
    assert found["counted_s"] <= found["ran_s"]
    assert found["drafted"] > 100
    assert found["ids"] == plain()["ids"]


def test_lora_requests_beside_others_keep_the_text(tmp_path: Path) -> None:
    make_lora(tmp_path)
    options = {"enable_lora": True, "max_lora_rank": 8}
    reference = outcome(Case(options, has_adapter=False, lora=str(tmp_path)))
    found = outcome(Case(options, lora=str(tmp_path)))
    assert found["drafted"] > 100
    assert found["ids"] == reference["ids"]
    assert sum(mine != theirs for mine, theirs in zip(found["ids"], plain()["ids"], strict=True)) > 8


def test_tensor_parallel_workers_keep_the_text() -> None:
    options = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    found = outcome(Case(options))
    assert found["drafted"] > 100
    assert found["ids"] == outcome(Case(options, has_adapter=False))["ids"]


def test_an_engine_with_vllms_own_scheduler_is_left_as_it_is() -> None:
    head = {"method": "eagle3", "num_speculative_tokens": 7, "parallel_drafting": True}
    found = outcome(Case({"speculative_config": head | {"model": str(DEMO_MODEL / "peagle")}}, has_adapter=False))
    assert (found["drafter"]["has_backlog"], found["drafter"]["slots"]) == (False, 7)
    assert set(found["drafter"]["widths"]) <= {7}
    assert found["ids"] == plain()["ids"]


@pytest.mark.skipif(versions.vllm_version().startswith("0.29."), reason="vLLM 0.29 compiles its kernels at first use")
def test_the_kernel_that_lays_out_drafts_is_compiled_for_every_width_before_the_engine_serves() -> None:
    found = outcome(Case(count=1))
    assert found["drafter"]["has_backlog"]
    assert found["drafter"]["widths"] == [1, 2, 7]
    assert found["drafter"]["others"] == 1  # except for the width they repeat vLLM's message about K_max


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"speculative_config": NGRAM}, "the adapter steers method 'ngram' on model runner V2 alone"),
        (
            {"scheduler_cls": ASYNC},
            "vLLM schedules synchronously here: use --scheduler-cls specpilot.engine_adapter.vllm.scheduler.S",
        ),
    ],
)
def test_what_is_not_steered_ends_the_start_with_a_sentence(options: dict[str, Any], sentence: str) -> None:
    done = ran(Case(options))
    assert done.returncode != 0
    assert sentence in done.stderr + done.stdout


def test_a_setting_that_is_wrong_ends_the_start_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECPILOT_ENGINE_URL", "gpu-1:8000")
    done = ran(Case())
    assert done.returncode != 0
    assert (
        "InvalidSettingsError: SPECPILOT_ENGINE_URL: 'gpu-1:8000' is no engine's address" in done.stderr + done.stdout
    )


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--speculative-config", json.dumps(NGRAM)], "steers method 'ngram' on model runner V2 alone"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "--data-parallel-size=2"], "one engine per rank"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "-pp", "2"], "pipeline parallelism is not steered"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "-dcp=2"], "context parallelism is not steered"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "--kv-transfer-config", "{}"], "a KV connector would bring back"),
        (["--drafter", str(DEMO_MODEL / "peagle"), "--kv_offloading_size=4"], "a KV connector would bring back"),
    ],
)
def test_the_command_refuses_in_one_line_before_anything_loads(flags: list[str], sentence: str) -> None:
    command = [sys.executable, "-m", "specpilot.cli", "engine", "--model", str(DEMO_MODEL / "target"), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(("tested", "wrapped"), [("0.1", False), ("0", True)])
def test_the_plugin_leaves_an_untested_vllm_as_it_is(tested: str, wrapped: bool) -> None:
    code = (
        "from specpilot.engine_adapter import plugin\n"
        "from specpilot.engine_adapter.vllm import versions\n"
        f"versions.TESTED_VERSIONS = ({tested!r},)\n"
        "plugin.register()\n"
        "from vllm.v1.engine.core import EngineCore\n"
        "from vllm.v1.worker.gpu_model_runner import GPUModelRunner\n"
        "is_wrapped = hasattr(GPUModelRunner._sample, '__wrapped__')\n"
        "print(hasattr(EngineCore, plugin.core_methods.STATE_METHOD), is_wrapped)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.stdout.splitlines()[-1:] == [f"True {wrapped}"], done.stderr

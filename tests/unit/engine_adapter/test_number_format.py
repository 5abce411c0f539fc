"""Which number format an engine on a CPU gets, and what is said about it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specpilot.engine_adapter import number_format
from tests.support.stack import DEMO_MODEL

TARGET = str(DEMO_MODEL / "target")


@pytest.mark.parametrize(
    ("capabilities", "is_fast"),
    [
        ({"architecture": "x86_64", "avx2": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"architecture": "x86_64", "avx512_f": True, "avx512_vnni": True, "avx_ne_convert": True}, False),
        ({"architecture": "x86_64", "avx512_bf16": True}, True),
        ({"architecture": "x86_64", "amx_bf16": True}, True),
        ({"architecture": "aarch64", "neon": True}, False),
        ({"architecture": "arm64", "bf16": True}, True),
        ({"architecture": "ppc64le"}, None),
        ({}, None),
    ],
)
def test_bfloat16_is_fast_where_the_processor_has_instructions_for_it(
    capabilities: dict[str, Any], is_fast: bool | None
) -> None:
    assert number_format.multiplies_bfloat16(capabilities) is is_fast


@pytest.fixture
def old_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch reports a processor with AVX2 and no accelerator."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx2": True})
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


@pytest.mark.usefixtures("old_processor")
def test_without_the_instructions_an_engine_gets_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert [number_format.fitting(model) for model in ("", TARGET, "some/name-at-a-hub")] == ["float32"] * 3


@pytest.mark.usefixtures("old_processor")
@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ({"torch_dtype": "bfloat16"}, True),
        ({"dtype": "float16"}, True),
        ({"dtype": "float32"}, True),  # vLLM's own choice for such files is bfloat16
        ({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "awq"}}, False),
    ],
)
def test_a_model_whose_own_format_fits_is_left_alone(config: dict[str, Any], changes: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (number_format.fitting(str(tmp_path)) == "float32") is changes


@pytest.mark.usefixtures("old_processor")
def test_a_quantised_model_of_a_hub_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM rejects float32 for AWQ and GPTQ."""
    cached = tmp_path / "models--some--model-awq"
    (cached / "snapshots" / "1").mkdir(parents=True)
    (cached / "snapshots" / "1" / "config.json").write_text('{"quantization_config": {"quant_method": "awq"}}')
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert number_format.fitting("some/model-awq") == "auto"
    assert number_format.fitting("some/model") == "float32"


def test_with_the_instructions_or_an_accelerator_vllm_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx512_bf16": True})
    assert number_format.fitting(TARGET) == "auto"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"architecture": "x86_64", "avx2": True})
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    assert number_format.fitting(TARGET) == "auto"


@pytest.mark.usefixtures("old_processor")
def test_a_note_says_which_format_runs_and_why_unless_it_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(runs: torch.dtype, files: torch.dtype) -> Any:
        return SimpleNamespace(model_config=SimpleNamespace(dtype=runs, hf_config=SimpleNamespace(dtype=files)))

    [changed] = number_format.notes(engine(torch.float32, torch.bfloat16))
    assert "float32, not the files' bfloat16" in changed
    assert "does not multiply bfloat16 in hardware" in changed
    [slow] = number_format.notes(engine(torch.bfloat16, torch.bfloat16))
    assert "use --dtype float32" in slow
    assert number_format.notes(engine(torch.float32, torch.float32)) == []
    monkeypatch.setattr(number_format, "lacks_bfloat16", lambda: False)
    assert number_format.notes(engine(torch.bfloat16, torch.bfloat16)) == []

"""Presets: consistent with the adapter's rules, started without their weights, and replaced by given flags."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specpilot.engine_adapter import __main__ as command
from specpilot.engine_adapter import head_config, list_presets
from specpilot.engine_adapter.errors import InvalidSettingsError
from specpilot.engine_adapter.model_files import missing_files_fault
from specpilot.engine_adapter.presets import EAGLE_3, P_EAGLE, PRESETS, Preset, drafter_of, flags_of, preset
from specpilot.engine_adapter.settings import AdapterSettings
from specpilot.engine_adapter.vllm import compat
from tests.support.refusals import refusal
from tests.support.stack import DEMO_MODEL, ROOT

BY_NAME = {item.name: item for item in PRESETS}
SPECULATORS = {
    "speculators_model_type": "peagle",
    "speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}]},
}


@pytest.mark.parametrize("item", PRESETS, ids=lambda item: item.name)
def test_a_preset_is_consistent_and_one_that_the_adapter_steers(item: Preset) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", item.target)
    assert item.head is None or re.fullmatch(r"[\w.-]+/[\w.-]+", item.head)
    assert item.method in (P_EAGLE, EAGLE_3)
    assert item.k is None or item.k_trained is None or item.k <= item.k_trained
    assert item.k is not None or item.limits
    assert item.head is not None or item.limits
    assert command._parser().parse_known_args([*item.flags])[1] == list(item.flags)  # none of them is a flag of ours
    command._check_steerable(configured(item.name, "head", None, item.k or 1), item.flags, AdapterSettings())


def test_the_names_differ() -> None:
    assert len(BY_NAME) == len(PRESETS)


def configured(
    name: str, drafter: str | None = None, head: dict[str, Any] | None = None, k_max: int | None = None
) -> dict[str, Any]:
    """vLLM's JSON for the preset `name`; `head` is the configuration of the `drafter`, if it is a folder here."""
    read = head_config.read(head, "head") if head is not None else None
    return head_config.speculative_config(*drafter_of(preset(name), drafter, read, k_max))


@pytest.mark.parametrize(
    ("name", "drafter", "k_max", "is_parallel", "expected"),
    [
        ("gpt-oss-20b-p-eagle", None, None, True, ("amazon/GPT-OSS-20B-P-EAGLE", 7)),
        ("gpt-oss-20b-p-eagle", "/h", 3, True, ("/h", 3)),
        ("qwen3-8b-eagle3", None, None, False, ("RedHatAI/Qwen3-8B-speculator.eagle3", 3)),
        ("gpt-oss-120b-p-eagle", None, 9, True, ("amazon/gpt-oss-120b-p-eagle", 9)),  # its training is not published
        ("gpt-oss-120b-p-eagle-long", "/h", 9, True, ("/h", 9)),  # another head than the one trained for 8
    ],
)
def test_a_preset_is_vllms_json_and_what_is_given_beside_it_wins(
    name: str, drafter: str | None, k_max: int | None, is_parallel: bool, expected: tuple[str, int]
) -> None:
    parallel = {"parallel_drafting": True} if is_parallel else {}
    named = dict(zip(("model", "num_speculative_tokens"), expected, strict=True))
    assert configured(name, drafter, None, k_max) == {"method": "eagle3", **named, **parallel}


@pytest.mark.parametrize(
    "given", ["--max_cudagraph_capture_size=64", "--cudagraph-capture-sizes", "--cudagraph_capture_sizes"]
)
def test_own_sizes_of_graphs_replace_those_of_a_preset(given: str) -> None:
    sizes = ("--max-cudagraph-capture-size", "4096")
    assert flags_of(preset("gpt-oss-20b-p-eagle"), ["--enable-lora"]) == sizes
    assert flags_of(preset("gpt-oss-20b-p-eagle"), [given, "64"]) == ()


@pytest.mark.parametrize(
    ("name", "config", "k_max", "method", "k"),
    [
        ("qwen3-8b-eagle3", SPECULATORS, None, P_EAGLE, 5),
        ("qwen3-8b-p-eagle", SPECULATORS | {"speculators_model_type": "eagle3"}, None, EAGLE_3, 5),
        ("qwen3-8b-eagle3", SPECULATORS, 2, P_EAGLE, 2),
        ("gpt-oss-20b-p-eagle-long", SPECULATORS, None, P_EAGLE, 5),
        ("qwen3-8b-eagle3", {"ptd_token_id": 4}, None, P_EAGLE, 3),
        ("qwen3-8b-p-eagle", {}, None, EAGLE_3, 7),
    ],
)
def test_a_folder_states_method_and_k_of_its_head(
    name: str, config: dict[str, Any], k_max: int | None, method: str, k: int
) -> None:
    found = configured(name, "/head", config, k_max)
    assert (found["model"], found["num_speculative_tokens"]) == ("/head", k)
    assert ("parallel_drafting" in found) == (method == P_EAGLE)


@pytest.mark.parametrize(
    ("name", "k_max", "said"),
    [
        ("gpt-oss-20b", None, "did you mean gpt-oss-20b"),
        ("zzz", None, "`specpilot presets` lists them"),
        ("gpt-oss-20b-p-eagle-long", None, "no K is published for gpt-oss-20b-p-eagle-long (it was trained for 10)"),
        ("gemma-4-31b-p-eagle", 5, "name one with --drafter"),
        ("gpt-oss-120b-p-eagle-long", 9, "was trained for 8"),
    ],
)
def test_what_a_preset_cannot_know_is_asked_for(name: str, k_max: int | None, said: str) -> None:
    with pytest.raises(InvalidSettingsError) as caught:
        configured(name, None, None, k_max)
    assert said in str(caught.value)


def test_a_preset_with_mla_states_what_the_adapter_does_with_it_and_what_its_head_costs() -> None:
    said = compat.synchronous_note("FLASHMLA")
    mla = [item for item in PRESETS if "mla" in f"{item.head} {item.target}".lower()]
    assert [item.name for item in mla] == ["kimi-k2.5-eagle3"]
    for item in mla:
        for words in ("scheduled synchronously", "FLASH_ATTN_MLA or FLASHINFER_MLA"):
            assert words in item.limits
            assert words in said
        assert "runs in every step" in item.limits  # as `start_notes.notes` logs it


@pytest.mark.parametrize("item", PRESETS, ids=lambda item: item.name)
def test_a_start_without_weights_names_the_missing_model_in_one_sentence(
    item: Preset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    flags = ["--k-max", str(item.k or 5)] + ([] if item.head else ["--drafter", "some/head"])
    [line] = refusal(capsys, command.main, ["--preset", item.name, "--any-vllm", *flags]).splitlines()
    assert line.startswith(f"specpilot engine: --preset: {item.target}")
    assert "hf download" in line


@pytest.mark.parametrize(("name", "value"), [("HF_HUB_OFFLINE", "on"), ("TRANSFORMERS_OFFLINE", "Yes")])
def test_offline_is_read_as_the_hub_library_reads_it(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(name, value)
    assert "is set" in (missing_files_fault(["nobody/nothing"]) or "")


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached" in (missing_files_fault(["nobody/nothing"]) or "")
    assert missing_files_fault([str(DEMO_MODEL / "target"), str(DEMO_MODEL / "peagle")]) is None


@pytest.mark.parametrize(
    ("config", "is_parallel", "k", "method"),
    [
        (SPECULATORS, True, 5, "eagle3"),
        (SPECULATORS | {"speculators_model_type": "eagle3"}, False, 5, "eagle3"),
        (SPECULATORS | {"speculators_model_type": "dflash"}, False, 5, "dflash"),
        ({"speculators_model_type": "eagle3"}, False, None, "eagle3"),
        (json.loads((DEMO_MODEL / "peagle" / "config.json").read_text()), True, None, "eagle3"),
        (json.loads((DEMO_MODEL / "eagle3" / "config.json").read_text()), False, None, "eagle3"),
        (json.loads((DEMO_MODEL / "dflash" / "config.json").read_text()), False, 7, "dflash"),
        ({"dflash_config": {}}, False, None, "dflash"),
        (SPECULATORS | {"speculators_model_type": "dspark"}, False, 5, "dspark"),
        ({"architectures": ["Qwen3DSparkModel"], "block_size": 7}, False, 7, "dspark"),
        ({"architectures": ["Qwen3DSparkModel"], "block_size": 8, "sample_from_anchor": False}, False, 7, "dspark"),
        ({"architectures": ["Qwen3DSparkModel"]}, False, None, "dspark"),
    ],
)
def test_a_heads_own_configuration_states_its_method(
    config: dict[str, Any], is_parallel: bool, k: int | None, method: str
) -> None:
    assert head_config.read(config, "head") == (is_parallel, k, method)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/Qwen3-8B-P-EAGLE", (True, None, "eagle3")),
        ("z-lab/Qwen3-8B-DFlash-b16", (False, None, "dflash")),
        ("deepseek-ai/dspark_qwen3_8b_block7", (False, None, "dspark")),
    ],
)
def test_a_head_that_is_no_folder_here_is_known_by_its_name(name: str, expected: tuple[object, ...]) -> None:
    assert head_config.by_name(name) == expected


def test_a_head_of_a_kind_that_is_not_steered_is_refused() -> None:
    with pytest.raises(
        InvalidSettingsError, match="is a 'medusa' head; the adapter steers eagle3, peagle, dflash, dspark heads"
    ):
        head_config.read({"speculators_model_type": "medusa"}, "/heads/x")


def test_presets_are_listed_and_shown_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    list_presets.main([])
    listed = capsys.readouterr().out
    assert all(item.name in listed and item.target in listed for item in PRESETS)
    list_presets.main(["gpt-oss-20b-p-eagle-long"])
    shown = capsys.readouterr().out
    assert "specpilot engine --preset gpt-oss-20b-p-eagle-long --k-max K" in shown
    assert "made for prompts above 10,000 tokens" in shown
    assert "there is no preset 'nothing'" in refusal(capsys, list_presets.main, ["nothing"])


def test_the_command_lists_them_without_loading_vllm() -> None:
    code = "import sys; from specpilot.engine_adapter.list_presets import main; main([]); print('vllm' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout.endswith("False\n")


def test_every_preset_is_documented_as_it_is() -> None:
    page = (ROOT / "docs" / "reference" / "presets.md").read_text()
    rows = re.findall(r"^\| `([\w.-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", page, re.MULTILINE)
    documented = {name: row for name, *row in rows}

    def known(item: Preset) -> str:
        trained = f"trained for {item.k_trained}" if item.k_trained else ""
        flags = f"`{' '.join(item.flags)}`" if item.flags else ""
        return "; ".join(filter(None, (trained, flags, item.limits)))

    assert documented == {
        item.name: [item.target, item.head or "-", item.method, str(item.k) if item.k else "-", known(item)]
        for item in PRESETS
    }

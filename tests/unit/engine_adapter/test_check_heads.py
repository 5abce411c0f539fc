"""`specpilot check` of draft heads that differ from what their target, or vLLM, expects."""

import json
from pathlib import Path
from typing import Any

import pytest

from specpilot.engine_adapter.check import REFUSED, RUNS
from tests.support.published_configs import CONFIGS, asked, drafted


def written(name: str, config: dict[str, Any]) -> str:
    Path(name).mkdir()
    (Path(name) / "config.json").write_text(json.dumps(config))
    return name


@pytest.mark.usefixtures("models")
def test_a_head_of_a_target_of_another_width_is_refused() -> None:
    for name, width in (("wide", 256), ("narrow", 64)):
        written(name, CONFIGS["llama-3.1-8b-eagle3-of-2048"] | {"hidden_size": width})
    fault = "the head reads hidden states of 256 numbers, and the target's have 64: name a head of this target"
    assert asked("narrow", drafted("eagle3", "wide", 3)).refused == (fault,)
    assert asked("narrow", drafted("eagle3", "narrow", 3)).verdict == RUNS
    assert fault in asked("narrow", drafted("dflash", "wide", 3)).refused
    assert fault in asked("narrow", drafted("dspark", "wide", 3)).refused


@pytest.mark.usefixtures("models")
def test_a_class_of_heads_that_vllm_does_not_list_is_said_to_be_assumed() -> None:
    """vLLM looks for a head under a name that it makes from the head's: EagleLlama, Eagle3Llama, DFlashLlama."""
    for name, expected in (("LlamaForCausalLM", []), ("OwnForCausalLM", ["Eagle3OwnForCausalLM"])):
        head = written(name, CONFIGS["llama-3.1-8b-eagle3-of-2048"] | {"architectures": [name]})
        assumed = [line for line in asked("llama-3.1-8b", drafted("eagle3", head, 3)).assumed if "head's class" in line]
        assert assumed == [f"that a plugin brings the head's class {it}, which vLLM does not list" for it in expected]
    as_dflash = asked("llama-3.1-8b", drafted("dflash", "LlamaForCausalLM", 3))
    assert "that a plugin brings the head's class DFlashLlamaForCausalLM, which vLLM does not list" in as_dflash.assumed


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(("method", "of_head", "is_said"), [("eagle3", 128256, True), ("eagle", 128000, False)])
def test_a_head_of_another_vocabulary_is_said_to_be_assumed_to_share_the_tokenizer(
    method: str, of_head: int, is_said: bool
) -> None:
    head = written("head", CONFIGS["llama-3.1-8b-eagle3-of-2048"] | {"vocab_size": of_head})
    target = written("target", CONFIGS["llama-3.1-8b"] | {"vocab_size": 128000})
    expected = "that one tokenizer fits both: the head has 128256 tokens and the target 128000"
    assert (expected in asked(target, drafted(method, head, 3)).assumed) is is_said


@pytest.mark.usefixtures("models")
def test_a_narrow_head_in_the_format_of_speculators_states_the_width_of_its_target() -> None:
    """As that of Llama 3.3 70B: its own layers have 6,144 numbers, and it reads states of 8,192."""
    head = CONFIGS["llama-3.1-8b-eagle3"]
    head = head | {"transformer_layer_config": head["transformer_layer_config"] | {"hidden_size": 6144}}
    target = written("target", CONFIGS["llama-3.1-8b"] | {"hidden_size": 8192})
    assert asked(target, drafted("eagle3", written("head", head | {"target_hidden_size": 8192}), 3)).verdict == RUNS
    assert asked(target, drafted("eagle3", written("other", head), 3)).verdict == REFUSED

"""A target with a recurrent layer: its state is right after steps without drafts, wherever the adapter accepts it."""

import platform
from functools import cache
from typing import Any

import pytest
import torch

from specpilot.engine_adapter.vllm import versions
from tests.support.engine_program import run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]
on_v2 = pytest.mark.skipif(
    not versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2), reason="this vLLM's V2 is not steered"
)

NEAR = 2.0
"""Difference of two log-probabilities below which the order of additions in bfloat16 may decide between two tokens.
Logits are about 100 here, and have steps of 0.5."""


@pytest.mark.skipif(
    not (torch.cpu._is_amx_tile_supported() or platform.machine() == "aarch64"),
    reason="without AMX or Arm's BF16 vLLM 0.32 cannot verify fewer tokens of a GDN layer than it accepted before",
)
@pytest.mark.extended("V1 hybrid")
def test_while_k_changes_the_text_of_a_hybrid_target_is_that_without_speculation() -> None:
    """On vLLM 0.31 four of six replies differ, at tokens that are 7 to 33 likelier than the next."""
    plain, found = run("hybrid_engine", "plain"), run("hybrid_engine", "adapter")
    compared = 0
    for name, ids in plain["ids"].items():
        pairs = enumerate(zip(ids, found["ids"][name], strict=True))
        first = next((place for place, (own, other) in pairs if own != other), None)
        assert first is None or plain["gaps"][name][first] < NEAR, name
        compared += len(ids) if first is None else first
    seen = found["seen"]
    assert compared > 150
    assert seen["K = 0"] > 50
    assert seen["accepted"] > 0.05 * seen["verified"] > 20


@cache
def found_on_v2(kind: str) -> dict[str, Any]:
    return run("interpreter", "tests.support.hybrid_on_v2", kind)


@on_v2
@pytest.mark.extended("V2 hybrid")
@pytest.mark.parametrize("drafter", ["mtp", "eagle3"])
def test_on_v2_steps_of_any_mix_of_k_give_the_text_without_speculation(drafter: str) -> None:
    """In float32, with the kernels of a GPU: not one token differs."""
    found, seen = found_on_v2(drafter), found_on_v2(drafter)["seen"]
    assert found["ids"] == found_on_v2("plain")["ids"]
    assert seen["K = 0"] > 20
    assert all(seen[f"K = {k}"] > 5 for k in (1, 2, 3))
    assert seen["verified"] > seen["accepted"] > 0.05 * seen["verified"] > 2


@on_v2
@pytest.mark.extended("V2 Mamba2")
def test_on_v2_mamba_layers_are_exact_while_k_changes_and_prompts_join() -> None:
    plain, found = (run("interpreter", "tests.support.mamba2_on_v2", kind) for kind in ("plain", "ngram"))
    seen = found["seen"]
    assert found["ids"] == plain["ids"]
    assert seen["K = 0"] > 20
    assert all(seen[f"K = {k}"] > 5 for k in (1, 2, 3))
    assert seen["verified"] > seen["accepted"] > 0.05 * seen["verified"] > 2


@on_v2
@pytest.mark.extended("V2 hybrid")
def test_on_v2_each_k_of_all_decodes_has_a_graph_that_gives_the_text_without_speculation() -> None:
    found = found_on_v2("graphs")
    assert found["ids"] == found_on_v2("plain")["ids"]
    assert {f"{length} each" for length in (1, 2, 3, 4)} <= set(found["replays"])
    assert found["seen"]["accepted"] > 0.05 * found["seen"]["verified"] > 2


@on_v2
@pytest.mark.extended("V2 hybrid")
def test_on_v2_a_rank_in_lockstep_is_exact_on_vllms_own_graphs() -> None:
    found = found_on_v2("graphs in lockstep")
    assert found["ids"] == found_on_v2("plain")["ids"]
    assert "4 each" in found["replays"]
    assert "2 each" not in found["replays"]
    assert found["seen"]["K = 0"] > 20
    assert found["seen"]["accepted"] > 0.05 * found["seen"]["verified"] > 2

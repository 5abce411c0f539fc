"""Model runner V2: the suites of `test_exact` in vLLM's own kernels, interpreted on a CPU; synchronous, without graphs.

The load is a third of the other's (`tests.support.exact_engine`, "short").
"""

from collections import Counter
from functools import cache
from typing import Any

import pytest

from specpilot.engine_adapter.vllm import versions
from tests.e2e.test_exact import (  # noqa: F401 - here they have the fixtures of this module
    check_spell,
    test_every_reply_is_that_of_an_engine_without_speculation,
    test_no_row_waits_of_a_request_that_has_ended_or_is_prefilled_anew,
    test_nothing_is_left_behind,
    test_the_exported_counters_equal_a_brute_force_reading_of_every_step,
    test_the_law_is_told_the_shape_of_every_step,
    test_the_load_had_everything_that_could_go_wrong,
)
from tests.support.chi_square import SIGMAS, sigmas
from tests.support.engine_program import run

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not versions.is_among(versions.vllm_version(), versions.ACCEPTED_ON_V2), reason="this vLLM's V2 is not steered"
    ),
]


def on_v2(program: str, *arguments: str) -> dict[str, Any]:
    return run("interpreter", f"tests.support.{program}", *arguments)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The replies without speculation, on model runner V1."""
    return run("exact_engine", "plain", "peagle", "short")


@pytest.fixture(
    scope="module",
    params=[
        "peagle",
        pytest.param("eagle3", marks=pytest.mark.extended("V2 EAGLE-3")),
        pytest.param("mtp", marks=pytest.mark.extended("V2 MTP")),
    ],
)
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    return on_v2("exact_engine", "sync", request.param)


@pytest.mark.extended("V2 P-EAGLE, catching up")
def test_after_a_spell_of_k_0_acceptance_is_what_it_would_have_been() -> None:
    check_spell(on_v2("caught_up", "eager", "peagle"), 15, 0.9)


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param("eagle3", marks=pytest.mark.extended("V2 EAGLE-3, catching up")),
        pytest.param("mtp", marks=pytest.mark.extended("V2 MTP, catching up")),
    ],
)
def test_a_sequential_head_that_was_left_out_in_turns_drafts_as_well_as_one_that_never_was(drafter: str) -> None:
    """Its first pass reads a part of a step through the runner's buffers, which P-EAGLE's speculator does not."""
    found = on_v2("caught_up", "eager", drafter, "whole", "left out in turns")
    whole, in_turns = found["whole"], found["left out in turns"]
    assert in_turns["catch_ups"] > 15
    assert in_turns["ids"] == whole["ids"]
    assert in_turns["accepted"] / in_turns["verified"] == pytest.approx(whole["accepted"] / whole["verified"], rel=0.01)


@pytest.mark.extended("V2 layouts")
def test_p_eagles_rows_are_laid_out_as_on_model_runner_v1() -> None:
    assert run("parallel_layouts") == {"compared": 56, "differ": []}


def test_p_eagle_drafts_on_v2_what_it_drafts_on_v1() -> None:
    """For the same text, token by token, at mixed K; so acceptance by position is the same too."""
    v1, v2 = run("drafts", "peagle"), on_v2("drafts", "peagle")
    assert v2["replies"] == v1["replies"]
    assert sum(map(len, v1["drafts"].values())) > 60
    assert v2["drafts"] == v1["drafts"]
    assert v2["seen"] == v1["seen"]


@pytest.mark.extended("V2 sampled")
def test_sampled_text_has_the_targets_distribution_while_k_changes() -> None:
    """The chi-square test of `test_distribution`, on fewer draws of one prompt."""
    draws = "200"
    plain = run("draws", "plain", draws, "0")["counts"]
    speculating = on_v2("draws", "peagle", draws, "0")["counts"]
    found = [
        sigmas(Counter(mine), Counter(theirs), int(draws)) for mine, theirs in zip(speculating, plain, strict=True)
    ]
    assert max(found) < SIGMAS, found


@cache
def undrafted(program: str) -> dict[str, Any]:
    """What a program finds without speculation, on model runner V1."""
    return run(program, "plain")


@pytest.mark.extended("V2 in every step")
@pytest.mark.parametrize("method", ["ngram", "draft_model", "dflash", "dspark", "dspark from anchor"])
def test_drafters_that_run_in_every_step_are_cut_by_request(method: str) -> None:
    found = on_v2("in_every_step", method)
    seen = found["seen"]
    assert found["ids"] == undrafted("in_every_step")["ids"]
    assert sum(seen.get(f"K = {k}", 0) > 0 for k in range(4)) >= 3
    if method == "draft_model":  # the target itself
        assert seen["accepted"] == seen["verified"] > 30
    elif method == "dspark from anchor":  # for which the head's weights were not trained
        assert seen["verified"] > 30
    else:
        assert 3 < seen["accepted"] < seen["verified"]


@pytest.mark.extended("V2 MTP in every step")
def test_an_mtp_head_that_cannot_be_left_out_reads_every_step_at_k_0_too() -> None:
    """So it drafts exactly what the same head drafts after it was left out and has caught up."""
    found, left_out = on_v2("in_every_step", "mtp"), on_v2("in_every_step", "mtp left out")
    assert found["ids"] == left_out["ids"] == undrafted("in_every_step")["ids"]
    assert found["seen"] == left_out["seen"]
    assert found["seen"]["K = 0"] > 10
    assert found["seen"]["accepted"] > 0.3 * found["seen"]["verified"] > 5


@pytest.mark.extended("V2 MTP in every step")
def test_the_head_of_a_rank_in_lockstep_makes_the_same_passes_at_any_k() -> None:
    found = on_v2("in_every_step", "mtp in lockstep")
    seen = found["seen"]
    assert found["ids"] == undrafted("in_every_step")["ids"]
    assert {name for name, count in seen.items() if name.endswith("passes") and count} == {"3 passes"}
    assert seen["K = 0"] > 10
    assert seen["accepted"] > 0.3 * seen["verified"] > 5


@pytest.mark.parametrize(
    "drafter",
    [
        pytest.param("eagle3", marks=pytest.mark.extended("V2 graphs")),
        pytest.param("mtp", marks=pytest.mark.extended("V2 MTP in every step")),
    ],
)
def test_the_text_is_the_same_where_steps_replay_graphs_for_any_mix_of_k(drafter: str) -> None:
    found = on_v2("replayed_graphs", drafter)
    assert found["ids"] == undrafted("replayed_graphs")["ids"]
    assert set(found["replays"]) == {"up to 4", "1 each", "1 each, width 2", "1 each, width 3"}
    assert sum(found["replays"].values()) > 15
    assert found["seen"]["accepted"] > 0.3 * found["seen"]["verified"] > 5


@pytest.mark.extended("V2 graphs")
@pytest.mark.parametrize("head", ["dflash", "dspark"])
def test_the_text_is_the_same_where_a_block_replays_vllms_graphs_and_the_target_those_for_any_mix_of_k(
    head: str,
) -> None:
    found = on_v2("replayed_graphs", head)
    assert found["ids"] == undrafted("replayed_graphs")["ids"]
    assert set(found["replays"]) == {"up to 4", "1 each", "4 each"}
    assert found["seen"]["accepted"] > 0.2 * found["seen"]["verified"] > 5


@pytest.mark.extended("V2 graphs")
def test_under_adaptive_verification_a_dspark_head_is_counted_by_what_was_verified() -> None:
    found = on_v2("replayed_graphs", "dspark", "adaptive")
    seen = found["seen"]
    assert found["ids"] == undrafted("replayed_graphs")["ids"]
    assert 0 < seen["evidence_verified"] < seen["verified"]
    assert seen["evidence_accepted"] == seen["accepted"] > 0


@pytest.mark.extended("V2 graphs")
def test_under_adaptive_verification_k_is_the_ceiling_and_the_evidence_is_of_what_was_verified() -> None:
    """With P-EAGLE, whose graphs and confidences are the adapter's own; a sequential head's confidences are vLLM's."""
    found = on_v2("replayed_graphs", "peagle", "adaptive")
    assert found["ids"] == undrafted("replayed_graphs")["ids"]
    seen = found["seen"]
    assert 0 < seen["evidence_verified"] < seen["verified"]  # some drafts were cut
    assert seen["evidence_accepted"] == seen["accepted"] > 0.3 * seen["evidence_verified"]
    # Drafts of different lengths, the head's own rows, and all drafts cut to nothing: the uniform step of K = 0.
    assert set(found["replays"]) == {"up to 4", "up to 6", "1 each"}

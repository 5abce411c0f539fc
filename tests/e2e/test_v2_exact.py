"""Model runner V2: the suites of `test_exact` in vLLM's own kernels, interpreted on a CPU; synchronous, without graphs.

The load is a third of the other's (`tests.support.exact_engine`, "short").
"""

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from specpilot.engine_adapter.vllm import versions
from specpilot.policy import engine_metrics as names
from tests.support.chi_square import SIGMAS, sigmas
from tests.support.stack import ROOT

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not versions.is_tested(versions.vllm_version(), versions.TESTED_ON_V2), reason="this vLLM's V2 is not steered"
    ),
]


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    return dict(json.loads(lines[-1]))


def on_v2(*arguments: str) -> dict[str, Any]:
    return run("tests.support.interpreter", *arguments)


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    """The replies without speculation, on model runner V1."""
    return run("tests.support.exact_engine", "plain", "peagle", "short")


@pytest.fixture(scope="module", params=["eagle3", "peagle"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    return on_v2("tests.support.exact_engine", "sync", request.param)


def test_every_reply_is_that_of_an_engine_without_speculation(plain: dict[str, Any], found: dict[str, Any]) -> None:
    assert len(plain["ids"]) == 20
    assert [key for key, ids in plain["ids"].items() if found["ids"].get(key) != ids] == []


def test_the_load_had_everything_that_could_go_wrong(found: dict[str, Any]) -> None:
    seen = found["seen"]
    assert found["changes"] > 50
    wanted = (
        "preemptions",
        "resumed",
        "caught_up_rows",
        "rows_left_waiting",
        "probes",
        "refused",
        "cut_by_stop",
        "undrafted",
        "plain_steps",
        "subsets",
        "subsets_with_rejected",
    )
    assert {name for name in wanted if not seen.get(name)} == set()


def test_the_exported_counters_equal_a_brute_force_reading_of_every_step(found: dict[str, Any]) -> None:
    for name, counts in found["expected"].items():
        assert found["exported"][name] == counts, name
    assert len(found["expected"]) == 7
    assert set(found["expected"][names.STEPS]) == {"decode", "prefill", "prompt", "catch_up"}


def test_the_law_is_told_the_shape_of_every_step(found: dict[str, Any]) -> None:
    assert (found["seen"]["steps"] > 100, found["seen"]["other_shapes"]) == (True, 0)


def test_nothing_is_left_behind(found: dict[str, Any]) -> None:
    assert found["leaked_blocks"] == 0
    assert found["states"] <= 24
    assert (found["seen"]["rows_of_ended"], found["seen"]["rows_of_resumed"]) == (0, 0)


def test_after_a_spell_of_k_0_acceptance_is_what_it_would_have_been() -> None:
    found = on_v2("tests.support.caught_up", "eager", "peagle")
    whole, hole = found["whole"], found["hole"]
    held, caught_up, in_turns = (found[way] for way in ("held", "caught up", "left out in turns"))
    assert (whole["catch_ups"], caught_up["catch_ups"], hole["catch_ups"]) == (0, 1, 0)
    assert held["catch_ups"] > 0
    assert in_turns["catch_ups"] > 50
    for way in (held, caught_up, in_turns, hole):
        assert way["ids"] == whole["ids"]
    for way in (held, caught_up, in_turns):
        assert way["accepted"] / way["verified"] == pytest.approx(whole["accepted"] / whole["verified"], rel=0.01)
    assert hole["accepted"] / hole["verified"] < 0.97 * whole["accepted"] / whole["verified"]


def test_a_sequential_head_that_was_left_out_in_turns_drafts_as_well_as_one_that_never_was() -> None:
    """Its first pass reads a part of a step through the runner's buffers, which P-EAGLE's speculator does not."""
    found = on_v2("tests.support.caught_up", "eager", "eagle3", "whole", "left out in turns")
    whole, in_turns = found["whole"], found["left out in turns"]
    assert in_turns["catch_ups"] > 50
    assert in_turns["ids"] == whole["ids"]
    assert in_turns["accepted"] / in_turns["verified"] == pytest.approx(whole["accepted"] / whole["verified"], rel=0.01)


def test_p_eagles_rows_are_laid_out_as_on_model_runner_v1() -> None:
    assert run("tests.support.parallel_layouts") == {"compared": 56, "differ": []}


def test_p_eagle_drafts_on_v2_what_it_drafts_on_v1() -> None:
    """For the same text, token by token, at mixed K; so acceptance by position is the same too."""
    v1, v2 = run("tests.support.drafts", "peagle"), on_v2("tests.support.drafts", "peagle")
    assert v2["replies"] == v1["replies"]
    assert sum(map(len, v1["drafts"].values())) > 100
    assert v2["drafts"] == v1["drafts"]
    assert v2["seen"] == v1["seen"]


def test_sampled_text_has_the_targets_distribution_while_k_changes() -> None:
    """The chi-square test of `test_distribution`, on fewer draws of one prompt."""
    draws = "200"
    plain = run("tests.support.draws", "plain", draws)["counts"]
    speculating = on_v2("tests.support.draws", "peagle", draws)["counts"]
    found = [
        sigmas(Counter(mine), Counter(theirs), int(draws)) for mine, theirs in zip(speculating, plain, strict=True)
    ]
    assert max(found) < SIGMAS, found


@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_drafters_that_run_in_every_step_are_cut_by_request(method: str) -> None:
    plain, found = run("tests.support.in_every_step", "plain"), on_v2("tests.support.in_every_step", method)
    seen = found["seen"]
    assert found["ids"] == plain["ids"]
    assert sum(seen.get(f"K = {k}", 0) > 0 for k in range(4)) >= 3
    if method == "draft_model":  # the target itself
        assert seen["accepted"] == seen["verified"] > 30
    else:
        assert 3 < seen["accepted"] < seen["verified"]


@pytest.fixture(scope="module")
def without_drafts() -> dict[str, Any]:
    return run("tests.support.replayed_graphs", "plain")


def test_the_text_is_the_same_where_steps_replay_graphs_for_any_mix_of_k(without_drafts: dict[str, Any]) -> None:
    found = on_v2("tests.support.replayed_graphs", "eagle3")
    assert found["ids"] == without_drafts["ids"]
    assert set(found["replays"]) == {"up to 4", "1 each", "1 each, width 2", "1 each, width 3"}
    assert sum(found["replays"].values()) > 15
    assert found["seen"]["accepted"] > 0.3 * found["seen"]["verified"] > 5


def test_under_adaptive_verification_k_is_the_ceiling_and_the_evidence_is_of_what_was_verified(
    without_drafts: dict[str, Any],
) -> None:
    """With P-EAGLE, whose graphs and confidences are the adapter's own; a sequential head's confidences are vLLM's."""
    found = on_v2("tests.support.replayed_graphs", "peagle", "adaptive")
    assert found["ids"] == without_drafts["ids"]
    seen = found["seen"]
    assert 0 < seen["evidence_verified"] < seen["verified"]  # some drafts were cut
    assert seen["evidence_accepted"] == seen["accepted"] > 0.3 * seen["evidence_verified"]
    # Drafts of different lengths, the head's own rows, and all drafts cut to nothing: the uniform step of K = 0.
    assert set(found["replays"]) == {"up to 4", "up to 6", "1 each"}

"""One mixed load on three real engines: without speculation, and with each of the adapter's schedulers.

Text, evidence and memory are exact while K changes every few steps (see `tests.support.exact_engine` for the load).
"""

from typing import Any

import pytest

from specpilot.policy import engine_metrics as names
from tests.support.engine_program import run

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return run("exact_engine", "plain", "peagle")


@pytest.fixture(
    scope="module",
    params=[
        "async peagle",
        pytest.param("sync peagle", marks=pytest.mark.extended("V1 synchronous")),
        pytest.param("async eagle3", marks=pytest.mark.extended("V1 EAGLE-3")),
        pytest.param("async mtp", marks=pytest.mark.extended("V1 MTP")),
        pytest.param("async dflash", marks=pytest.mark.extended("V1 DFlash")),
    ],
)
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    return run("exact_engine", *request.param.split()) | {"kind": request.param.split()[0]}


def test_every_reply_is_that_of_an_engine_without_speculation(plain: dict[str, Any], found: dict[str, Any]) -> None:
    assert len(plain["ids"]) == found["determined"] > 15
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


def test_nothing_is_left_behind(plain: dict[str, Any], found: dict[str, Any]) -> None:
    assert (plain["leaked_blocks"], found["leaked_blocks"]) == (0, 0)
    assert found["states"] <= 24


def test_no_row_waits_of_a_request_that_has_ended_or_is_prefilled_anew(found: dict[str, Any]) -> None:
    assert (found["seen"]["rows_of_ended"], found["seen"]["rows_of_resumed"]) == (0, 0)


def test_the_asynchronous_engines_copies_arrive_late_and_the_adapters_sources_stay(found: dict[str, Any]) -> None:
    """vLLM itself writes into a source a step later (`backup_next_token_ids`), without an event in between."""
    copies = found["copies"]
    if found["kind"] == "sync":
        assert copies == {"late": 0, "sent": 0, "changed": {}}
    else:
        assert (copies["late"] > 200, copies["sent"] > 1000, len(copies["changed"]) > 0) == (True, True, True)
        assert [place for place in copies["changed"] if "engine_adapter" in place] == []


def check_spell(found: dict[str, Any], least_in_turns: int, in_the_hole: float) -> None:
    """What caught up, in whichever way, is accepted as if the drafter had never been off; with a hole less is."""

    def accepted(way: str) -> float:
        return float(found[way]["accepted"] / found[way]["verified"])

    assert [found[way]["catch_ups"] for way in ("whole", "caught up", "hole")] == [0, 1, 0]
    assert found["deferred"]["catch_ups"] > 0
    assert found["left out in turns"]["catch_ups"] > least_in_turns
    for way in {"deferred", "caught up", "in parts", "left out in turns"} & found.keys():
        assert found[way]["ids"] == found["whole"]["ids"]
        assert accepted(way) == pytest.approx(accepted("whole"), rel=0.01)
    assert found["hole"]["ids"] == found["whole"]["ids"]
    assert accepted("hole") < in_the_hole * accepted("whole")


@pytest.mark.parametrize(
    "how",
    [
        "poison peagle",
        pytest.param("eager eagle3", marks=pytest.mark.extended("V1 EAGLE-3, catching up")),
        pytest.param("poison mtp", marks=pytest.mark.extended("V1 MTP, catching up")),
        pytest.param("eager dflash", marks=pytest.mark.extended("V1 DFlash, catching up")),
        pytest.param("compiled peagle", marks=pytest.mark.extended("V1 compiled")),
    ],
)
def test_after_a_spell_of_k_0_acceptance_is_what_it_would_have_been(how: str) -> None:
    found = run("caught_up", *how.split())
    check_spell(found, 50, 0.95)
    assert found["in parts"]["catch_ups"] > 10
    if how.startswith("poison"):  # what the copy is for: without it drafts come of what the pass wrote over
        whole, not_copied = found["whole"], found["not copied"]
        assert (not_copied["catch_ups"], not_copied["ids"]) == (1, whole["ids"])
        assert not_copied["accepted"] / not_copied["verified"] < 0.5 * whole["accepted"] / whole["verified"]

"""One mixed load on three real engines: without speculation, and with each of the adapter's schedulers.

Text, evidence and memory are exact while K changes every few steps (see `tests.support.exact_engine` for the load).
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from specpilot.policy import engine_metrics as names
from tests.support.stack import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def run(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stdout[-2000:] + done.stderr[-3000:]
    return dict(json.loads(lines[-1]))


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return run("tests.support.exact_engine", "plain")


@pytest.fixture(scope="module", params=["sync", "async", "sync eagle3", "async eagle3"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    return run("tests.support.exact_engine", *request.param.split()) | {"kind": request.param.split()[0]}


def test_every_reply_is_that_of_an_engine_without_speculation(plain: dict[str, Any], found: dict[str, Any]) -> None:
    assert len(plain["ids"]) == 60
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
        assert (copies["late"] > 200, copies["sent"] > 1000) == (True, True)
        assert [place for place in copies["changed"] if "engine_adapter" in place] == []


@pytest.mark.parametrize("how", ["compiled peagle", "eager eagle3", "poison peagle"])
def test_after_a_spell_of_k_0_acceptance_is_what_it_would_have_been(how: str) -> None:
    found = run("tests.support.caught_up", *how.split())
    whole, hole = found["whole"], found["hole"]
    held, caught_up, in_parts, in_turns = (found[way] for way in ("held", "caught up", "in parts", "left out in turns"))
    assert (whole["catch_ups"], caught_up["catch_ups"], hole["catch_ups"]) == (0, 1, 0)
    assert held["catch_ups"] > 0
    assert in_parts["catch_ups"] > 20
    assert in_turns["catch_ups"] > 100
    for way in (held, caught_up, in_parts, in_turns, hole):
        assert way["ids"] == whole["ids"]
    for way in (held, caught_up, in_parts, in_turns):
        assert way["accepted"] / way["verified"] == pytest.approx(whole["accepted"] / whole["verified"], rel=0.01)
    assert hole["accepted"] / hole["verified"] < 0.95 * whole["accepted"] / whole["verified"]
    if how.startswith("poison"):  # what the copy is for: without it drafts come of what the pass wrote over
        not_copied = found["not copied"]
        assert (not_copied["catch_ups"], not_copied["ids"]) == (1, whole["ids"])
        assert not_copied["accepted"] / not_copied["verified"] < 0.5 * whole["accepted"] / whole["verified"]

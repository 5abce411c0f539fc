"""No row of the backlog is lost where vLLM cannot draft, and where there are more than a pass takes."""

from typing import Any

import pytest

from tests.support.engine_program import run

pytestmark = [pytest.mark.engine, pytest.mark.extended("V1 backlog"), pytest.mark.timeout(400)]


def check_nothing_was_lost(found: dict[str, Any]) -> None:
    whole, caught_up, hole = found["whole"], found["caught up"], found["hole"]
    assert whole["ids"] == caught_up["ids"] == hole["ids"]
    assert (caught_up["accepted"], caught_up["verified"]) == (whole["accepted"], whole["verified"])
    assert hole["accepted"] / hole["verified"] < 0.95 * whole["accepted"] / whole["verified"]


def test_nothing_is_lost_while_a_request_beyond_the_drafters_limit_keeps_vllm_from_drafting() -> None:
    found = run("too_long", "async")
    assert {name for name, count in found["caught up"]["seen"].items() if not count} == set()
    check_nothing_was_lost(found)


def test_nothing_is_lost_where_a_request_leaves_more_rows_than_a_pass_takes() -> None:
    found = run("in_step", "sync")
    assert found["caught up"]["seen"]["most rows of one"] > found["pass"]
    check_nothing_was_lost(found)

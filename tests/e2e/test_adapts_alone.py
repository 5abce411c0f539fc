"""The plugin alone: an engine with no Redis and no controller chooses K by what it counts."""

import pytest

from tests.support.engine_program import run

pytestmark = [pytest.mark.engine, pytest.mark.extended("adapts alone"), pytest.mark.timeout(400)]


def test_predictable_requests_are_drafted_for_and_others_less() -> None:
    found = run("adapting_engine", "25", OMP_NUM_THREADS="2")
    assert found["source"] == "law"
    assert found["k"]["json"] > found["k"]["chat"] + 1.0

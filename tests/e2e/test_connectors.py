"""What a KV connector stored while K was 0 is complete for the drafter too: acceptance is as without a connector."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_program import run

pytestmark = [pytest.mark.engine, pytest.mark.extended("KV connector"), pytest.mark.timeout(400)]


def served(way: str, head: str, folder: Path) -> dict[str, Any]:
    return run("connected_engine", way, head, str(folder))


@pytest.mark.parametrize("head", ["peagle", "eagle3", "mtp", "dflash"])
def test_a_loaded_prompt_is_drafted_for_as_one_that_was_computed(head: str, tmp_path: Path) -> None:
    computed, loaded = served("computed", head, tmp_path), served("loaded", head, tmp_path)
    assert computed["served"]["loaded"] == [0] * 5
    assert min(loaded["served"]["loaded"]) >= 32
    assert loaded["served"]["ids"] == loaded["stored"]["ids"] == computed["served"]["ids"]
    assert loaded["served"]["accepted"] > 20
    for count in ("accepted", "verified"):
        assert loaded["served"][count] == pytest.approx(computed["served"][count], rel=0.01)


def test_a_drafter_that_falls_behind_would_find_holes_in_what_was_stored(tmp_path: Path) -> None:
    loaded, fallen = (served(way, "peagle", tmp_path / way)["served"] for way in ("loaded", "fallen behind"))
    assert fallen["ids"] == loaded["ids"]
    assert fallen["accepted"] < 0.99 * loaded["accepted"]

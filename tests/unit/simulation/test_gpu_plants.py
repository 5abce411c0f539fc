"""The GPU plants give back the published figures that they were fitted to, and say that they are simulation."""

import json
from typing import Any

import pytest

from tests.simulation import gpu_plants
from tests.simulation.gpu_plants import plants

DOCUMENT: dict[str, Any] = json.loads(gpu_plants.DOCUMENT.read_text())
CODE_LENGTH = 5.30


def test_every_plant_names_its_sources_and_what_was_assumed() -> None:
    assert "simulation" in DOCUMENT["is"]
    for item in DOCUMENT["plants"]:
        assert item["assumed"]
        assert all(published["figure"] and published["source"] for published in item["published"])


def test_the_b200_gives_back_what_was_published_of_it() -> None:
    plant = plants()["b200-30b-a3b-fp8"]
    assert plant.tokens_per_s(1, 0, 1.0) == pytest.approx(294, rel=0.02)
    assert plant.tokens_per_s(1, 11, CODE_LENGTH) == pytest.approx(1167, rel=0.02)
    for running in (1, 8, 32, 128):
        speed_up = plant.tokens_per_s(running, 11, CODE_LENGTH) / plant.tokens_per_s(running, 0, 1.0)
        assert 2.1 <= speed_up <= 4.2, running


def test_a_step_grows_with_all_that_it_does() -> None:
    for plant in plants().values():
        assert plant.step_s(8, 8, 0) < plant.step_s(8, 8, 8) < plant.step_s(8, 8, 56) < plant.step_s(8, 64, 56)
        assert plant.step_s(1, 8, 56) < plant.step_s(8, 8, 56)
        assert 0 < plant.catch_up_s(1) < plant.catch_up_s(100)

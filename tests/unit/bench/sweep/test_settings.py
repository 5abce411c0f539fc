"""What the measurements of a folder share: another head or another engine is another question."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specpilot.bench.sweep import command, rate_command
from specpilot.bench.sweep.settings import question_of
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.settings import load


def of_cells(*flags: str) -> dict[str, Any]:
    settings = load(command.SweepSettings, command.PROGRAM, flags)
    return command._what_a_cell_is(settings, question_of(command.PROGRAM, settings, Path("out")))


def of_trials(*flags: str) -> dict[str, Any]:
    settings = load(rate_command.RateSettings, rate_command.PROGRAM, flags)
    return rate_command._what_a_trial_is(settings, question_of(rate_command.PROGRAM, settings, Path("out")))


@pytest.mark.parametrize("what", [of_cells, of_trials])
@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--p-eagle", str(DEMO_MODEL / "eagle3")), "head p-eagle"),
        (("--eagle3", "org/head"), "head eagle3"),
        (("--max-num-seqs", "64"), "max_num_seqs"),
        (("--settle-s", "1"), "settle_s"),
        (("--k", "1,9"), "largest k"),
    ],
)
def test_what_another_engine_measured_is_told_apart(
    what: Callable[..., dict[str, Any]], flags: tuple[str, ...], named: str
) -> None:
    before, after = what(), what(*flags)
    assert [name for name in before if before[name] != after[name]] == [named]


@pytest.mark.parametrize("what", [of_cells, of_trials])
def test_more_k_up_to_the_largest_are_the_same_question(what: Callable[..., dict[str, Any]]) -> None:
    assert what("--k", "1,7") == what("--k", "1,3,7")

"""The law without one idea, beside the law with all, over the same traffic."""

import json
from typing import Any

import pytest

from specpilot.controller.law.control_group import ControlGroup
from specpilot.engine_adapter.evidence import request_acceptance
from specpilot.engine_adapter.evidence.meter import Evidence
from specpilot.engine_adapter.law import batch_choice, price_fit
from specpilot.engine_adapter.law.prices import Prices
from tests.simulation import ablate
from tests.simulation.ablations import IDEAS, without


def test_what_an_idea_is_worth_is_told_in_a_table_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    ablate.main(["--ideas", "bands", "--traces", "uncalibrated", "--seeds", "0", "1"])
    *rows, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)
    left = found["without"]["bands"]["uncalibrated"]
    assert left["low"] < left["mean"] < left["high"]
    assert left["mean"] < -0.03  # bands pay there
    assert rows[0] == "| SIMULATION | uncalibrated |"
    assert f"| whole law, tokens/s | {found['tokens_per_s']['uncalibrated']:.1f} |" in rows
    assert any(row.startswith(f"| without bands | {1 + left['mean']:.3f} ± ") for row in rows)


def in_force() -> dict[str, Any]:
    """What each idea rests on."""
    return {
        "bands": request_acceptance.band_of,
        "first-drafts": Evidence.add_drafts,
        "cold-start": batch_choice.UNPROBED_RATIO,
        "left-out": Prices.catch_up_s,
        "cost-learning": price_fit.StepCost.note,
        "slowdown": price_fit.SLOWDOWN_SHARE,
        "pauses": price_fit.PAUSE,
        "fall-back": ControlGroup._test,
    }


def test_each_idea_is_switched_off_alone_and_for_as_long_as_it_is_asked_for() -> None:
    whole = in_force()
    assert set(whole) == set(IDEAS)
    for idea in IDEAS:
        with without(idea):
            found = in_force()
        assert {name for name in whole if found[name] != whole[name]} == {idea}
        assert in_force() == whole

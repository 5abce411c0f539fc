"""The explanation's lines about rows by band, intervals and the control group."""

from dataclasses import replace
from typing import Any

import pytest

from specpilot.controller.recording.explanation import explain, text
from specpilot.controller.recording.survival_interval import with_intervals
from specpilot.policy.bands import BANDS
from specpilot.policy.model_policy import Mode
from specpilot.policy.records import Decision
from specpilot.policy.schedule import KRange, Schedule

K = {"default": 3, **{f"default:{band}": band for band in range(BANDS)}, "batch": 0}
BOUNDS = {"low": -0.01, "mean": 0.04, "high": 0.09}
TOLD = "control group: adaptive K gains +4.0% over the static K, between -1.0% and +9.0% (95 %, 30 windows)\n"
GAINS = (
    "throughput: +4.0%, between -1.0% and +9.0%",
    "inter-token latency: +2.0%, between +1.0% and +3.0%",
)
BAND = {"acceptance": [0.8, 0.5], "survival": [0.8, 0.4], "trials": [400.0, 0.0], "share": 0.25}


def decision(reason: str, **evidence: Any) -> Decision:
    rows = {name: (KRange(1, 64, k),) for name, k in K.items()}
    schedule = Schedule("demo", "cpu", 7, 0.0, 60.0, 0.005, rows)
    return Decision(100.0, "demo", "cpu", Mode.ACT, reason, True, 7, schedule, None, evidence, k=K)


def test_the_bands_of_a_class_stand_side_by_side_without_the_row_that_serves_nobody() -> None:
    told = text(explain(decision("adaptive", decodes=8.0)))
    assert "  K of default, bands 0 to 7: 0 1 2 3 4 5 6 7\n" in told
    assert "  K of batch: 0\n" in told


def test_k_that_is_advised_and_not_in_force_stands_beside_it() -> None:
    held = explain(decision("frozen")) | {"k": {**K, "default:0": 3}}
    assert "bands 0 to 7: 3 1 2 3 4 5 6 7 (advised: 0 1 2 3 4 5 6 7)" in text(held)


def test_one_k_in_force_stands_beside_the_k_of_bands_that_is_advised() -> None:
    held = explain(decision("adaptive")) | {"k": {"default": 7}}
    assert "K of default: 7 (advised: 0 1 2 3 4 5 6 7)" in text(held)
    same = explain(decision("adaptive")) | {
        "k": {"default": 0},
        "k_advised": {f"default:{band}": 0 for band in range(8)} | {"default": 0},
    }
    assert "K of default: 0\n" in text(same)


def test_survival_has_its_interval_and_what_nobody_tried_is_said_to_be_assumed() -> None:
    told = text(explain(decision("adaptive", bands={"5": BAND, "7": {"share": 0.75}})))
    assert "band 5: 25% of the running decodes, S = 0.80 (0.76..0.83) 0.40 (assumed)" in told
    assert "band 7: 75% of the running decodes, no draft yet" in told


@pytest.mark.parametrize(
    ("control_group", "said"),
    [
        (
            {"windows": 1, "has_lost": False, "gain_ratio": None},
            "control group: 1 window, too few for an interval\n",
        ),
        (
            {"windows": 0, "has_lost": True, "gain_ratio": None},
            "control group: 0 windows, too few for an interval; the static K is in force\n",
        ),
        (
            {"windows": 30, "has_lost": False, "gain_ratio": BOUNDS},  # an older controller's
            TOLD,
        ),
        (
            {
                "windows": 30,
                "has_lost": False,
                "gain_ratio": BOUNDS,
                "throughput_gain_ratio": BOUNDS,
                "itl_gain_ratio": {"low": 0.01, "mean": 0.02, "high": 0.03},
            },
            TOLD + "".join(f"  gain in {gain}\n" for gain in GAINS),
        ),
    ],
)
def test_the_control_group_says_what_adaptive_k_gains_and_how_sure_that_is(
    control_group: dict[str, Any], said: str
) -> None:
    assert said in text(explain(decision("static_better", control_group=control_group)))


def test_the_interval_is_greenwoods_and_holds_the_survival() -> None:
    found = with_intervals({"3": {"acceptance": [0.5, 0.5, 0.5], "trials": [100.0, 50.0, 0.4], "share": 1.0}})["3"]
    # ln S = -0.693, variance 0.5 / (0.5 * 100) = 0.01: 0.5 ** exp(+-1.645 * 0.1 / 0.693)
    assert found["survival_low"][0] == pytest.approx(0.4153, abs=2e-4)
    assert found["survival_high"][0] == pytest.approx(0.5790, abs=2e-4)
    assert found["survival_low"][1] < 0.25 < found["survival_high"][1]
    assert (found["survival_low"][2], found["survival_high"][2]) == (None, None)
    assert with_intervals({"0": {"share": 0.5}})["0"] == {"share": 0.5, "survival_low": [], "survival_high": []}


@pytest.mark.parametrize("is_estimate", [True, False])
def test_k_is_called_the_engines_own_choice_only_where_they_choose(*, is_estimate: bool) -> None:
    found = explain(replace(decision("adaptive"), is_estimate=is_estimate))
    assert found["is_estimate"] is is_estimate
    assert ("the engines' own choice" in text(found)) is is_estimate


def test_a_pool_whose_engines_choose_although_the_law_lost_is_not_said_to_run_the_static_k() -> None:
    """In a drawn window, or because the static K would break an SLO."""
    lost = {"windows": 0, "has_lost": True, "gain_ratio": None}
    found = text(explain(replace(decision("adaptive", control_group=lost), is_estimate=True)))
    assert "too few for an interval; the static K was found to be better\n" in found
    assert "is in force" not in found

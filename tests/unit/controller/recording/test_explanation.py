"""The explanation of a recorded decision."""

from dataclasses import replace
from typing import Any

import pytest

from specpilot.controller.decision.reason import MEANING, Reason
from specpilot.controller.recording.explanation import explain, slo_line
from specpilot.policy.model_policy import Mode
from specpilot.policy.records import Decision
from specpilot.policy.schedule import Cause, Guidance, Override, Schedule
from tests.support.loop_rig import text

BOUNDS = {"low": -0.01, "mean": 0.04, "high": 0.09}
TOLD = "control group: adaptive K gains +4.0% over the static K, between -1.0% and +9.0% (95 %, 30 windows)\n"
GAINS = (
    "throughput: +4.0%, between -1.0% and +9.0%",
    "inter-token latency: +2.0%, between +1.0% and +3.0%",
)
BAND = {"acceptance": [0.8, 0.5], "survival": [0.8, 0.4], "trials": [400.0, 0.0], "share": 0.25, "k": 1.0}


def decision(reason: str, override: Override | None = None, **evidence: Any) -> Decision:
    schedule = Schedule("demo", "cpu", 7, 0.0, Guidance(override=override))
    return Decision(100.0, "demo", "cpu", Mode.ACT, reason, True, 7, schedule, evidence, k={"default": 2.5})


def test_a_decision_is_told_with_what_was_measured() -> None:
    classes = {"default": {"share": 1.0, "k": 2.5, "measured_length": 3.25}}
    bands = {"5": BAND, "7": {"share": 0.75, "k": 3.0}}
    explained = explain(
        decision("adaptive", decodes=8.0, classes=classes, bands=bands, throughput=812.4, step_s=0.0125)
    )
    assert explained["k"] == {"default": 2.5}
    assert text(explained) == (
        "demo in pool cpu, schedule version 7, mode act\n"
        f"why: adaptive: {MEANING[Reason.ADAPTIVE]}\n"
        "load: 8.0 decodes per step\n"
        "  class default: 100% of the traffic, K 2.5, 3.25 tokens a step\n"
        "  band 5: 25% of the decodes, K 1.0, survival 0.80 0.40\n"
        "  band 7: 75% of the decodes, K 3.0, no draft yet\n"
        "throughput measured: 812 tokens/s\n"
        "step measured: 12.50 ms\n"
    )


def test_a_reason_of_another_version_and_an_unknown_load_are_told_too() -> None:
    told = text(explain(decision("by_lot")))
    assert "why: by_lot: unknown to this version\n" in told
    assert "load: unknown, or nothing decodes\n" in told


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
    assert said in text(explain(decision("fallen_back", Override(3, Cause.FALLEN_BACK), control_group=control_group)))


def test_a_pool_whose_engines_choose_although_the_law_lost_is_not_said_to_run_the_static_k() -> None:
    """In a drawn window, or because the static K would break an SLO."""
    lost = {"windows": 0, "has_lost": True, "gain_ratio": None}
    found = text(explain(decision("adaptive", control_group=lost)))
    assert "too few for an interval; the static K was found to be better\n" in found
    assert "is in force" not in found


@pytest.mark.parametrize(
    ("reason", "override", "said"),
    [
        ("off", Override(3, Cause.OFF), "K is fixed: 3 for every request\n"),
        ("frozen", Override(2, Cause.FROZEN, 60.0), "K is fixed: 2 for every request, until 1970-01-01 00:01:00Z\n"),
        ("frozen", Override(None, Cause.FROZEN), "K is fixed: as it was when the freeze began\n"),
        (
            "fallen_back",
            Override(3, Cause.FALLEN_BACK),
            "K is fixed: 3 for every request, within the bounds of its class\n",
        ),
    ],
)
def test_a_k_that_is_fixed_is_named(reason: str, override: Override, said: str) -> None:
    assert said in text(explain(decision(reason, override)))
    assert "K is fixed" not in text(explain(decision("adaptive")))


def test_in_a_window_of_the_control_group_the_k_of_the_window_is_named() -> None:
    moment = decision("control_group")
    assert moment.schedule is not None
    drawn = Guidance(override=Override(3, Cause.CONTROL_GROUP))
    moment = replace(moment, schedule=replace(moment.schedule, drawn=("e",), drawn_guidance=drawn))
    assert "K is fixed: 3 for every request, within the bounds of its class\n" in text(explain(moment))


@pytest.mark.parametrize(
    ("left", "error", "told"),
    [
        (0.25, 0.28, "budget left 25%, margin 0.90, mean in 1h 28% above the forecast"),
        (-8.08, -0.05, "budget of a day used 9.1 times, margin 0.90, mean in 1h 5% below the forecast"),
    ],
)
def test_a_goal_is_told_with_what_is_left_of_its_budget(left: float, error: float, told: str) -> None:
    facts = {
        "statistic": "p95", "goal_ms": 30.0, "attained_ratio": {"5m": 0.9, "1h": None}, "mean_ms": 12.0,
        "budget_left_ratio": left, "margin": 0.9, "forecast_error_ratio": error, "is_unreachable": False,
    }  # fmt: skip
    assert (
        slo_line("chat", "tpot", facts) == f"  goal of chat: TPOT p95 30 ms, within it 90.0% in 5m, mean 12 ms, {told}"
    )

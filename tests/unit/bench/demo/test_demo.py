import pytest

from specpilot.bench.demo.command import arms_gain, gains_line, main, summary, table
from specpilot.bench.demo.trace import LoadPhase, Trace
from tests.support.refusals import refusal

TRACE = Trace((LoadPhase("calm", 10.0, {"code": 1}), LoadPhase("crowd", 30.0, {"chat": 24})))
RATES = {"adaptive": [98.0, 200.0], "K=0": [50.0, 200.0], "K=7": [100.0, 120.0]}


def test_the_summary_weighs_phases_by_their_length() -> None:
    found = summary(TRACE, RATES)
    assert found["best_single_k"] == "K=0"
    assert found["adaptive_vs_best_single_k"] == round((980 + 6000) / (500 + 6000), 3)
    assert found["adaptive_vs_oracle"] == round((980 + 6000) / (1000 + 6000), 3)
    assert found["phases"] == {"calm": 0.98, "crowd": 1.0}


def test_the_table_names_each_phase_and_where_adaptive_loses() -> None:
    rows = table(TRACE, RATES).splitlines()
    assert rows[-2].startswith("calm")
    assert rows[-2].endswith("0.98 (K=7)")
    assert rows[-1].endswith("1.00 (K=0)")


def test_the_arms_gain_is_a_mean_over_time_without_the_share_held_out() -> None:
    rates = {"adaptive": [150.0, 75.0], "K=7": [100.0, 100.0]}  # 10 s at 1.5, 30 s at 0.75
    found = arms_gain(TRACE, rates, "K=7", 0.5)
    assert found["as_played"] == pytest.approx((1.5 * 0.75**3) ** 0.25 - 1, abs=5e-4)
    assert found["adaptive"] == pytest.approx((2.0 * 0.5**3) ** 0.25 - 1, abs=5e-4)


def test_a_phase_that_only_noise_explains_does_not_break_the_mean() -> None:
    assert arms_gain(TRACE, {"adaptive": [30.0, 100.0], "K=7": [100.0, 100.0]}, "K=7", 0.5)["adaptive"] < 0


def test_the_gains_stand_beside_each_other_and_too_few_windows_say_so() -> None:
    arms = {"adaptive": 0.137, "as_played": 0.102}
    gain = {"low": -0.099, "mean": 0.063, "high": 0.254}
    assert gains_line(7, 54, gain, arms) == (
        "adaptive over K=7: by the control group +6.3% (-9.9% to +25.4%), 54 windows; "
        "by the arms +13.7%, as played +10.2%"
    )
    assert "by the control group unknown, 2 windows" in gains_line(7, 2, None, arms)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--static", ","], "--static: names no K"),
        (["--static", "0,7", "--control-group-ratio", "0.3"], "--control-group-ratio: compares with one static K"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_starts(
    arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fault in refusal(capsys, main, arguments)

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from specpilot.bench.control.report import Result, adapt_s, hand_tuned, latency_p99, markdown, plot, summary
from specpilot.bench.load.play import Played
from specpilot.bench.load.system import Reading
from specpilot.bench.load.trace import LoadPhase, Trace

TRACE = Trace((LoadPhase("calm", 4.0, {"json": 1}), LoadPhase("crowd", 4.0, {"code": 16})))
SLOW = {0.01: 0.0, 0.1: 100.0, float("inf"): 100.0}


def readings(rates: Sequence[float], latency: dict[float, float] | None = None) -> list[Reading]:
    """Readings a second apart, `rates` tokens between them."""
    found, tokens = [Reading(0.0, 0.0, {"json": 3}, {}, {}, {}, {0.01: 0.0, 0.1: 0.0, float("inf"): 0.0})], 0.0
    for second, rate in enumerate(rates, start=1):
        tokens += rate
        found.append(Reading(float(second), tokens, {"json": 3}, {}, {}, {}, latency or SLOW))
    return found


def played(*rates: float, failed: int = 0) -> Played:
    return Played([readings([rate] * 4) for rate in rates], 10, {"APIError": failed} if failed else {})


RESULT = Result(
    TRACE,
    {
        "K=0": [played(100, 1000)] * 3,
        "K=7": [played(400, 500)] * 3,
        "table": [played(390, 980)] * 3,
        "adaptive": [played(380, 950), played(400, 990, failed=1), played(380, 970)],
        "with labels": [played(375, 975)] * 3,
    },
)


def test_the_oracle_takes_the_best_static_k_of_every_phase() -> None:
    assert [RESULT.oracle(0), RESULT.oracle(1)] == ["K=7", "K=0"]
    assert RESULT.best_static == "K=0"


def test_the_machines_speed_is_taken_out_of_each_phase_of_each_play() -> None:
    """The machine ran at four fifths in the second play's crowd: the report corrects all arms for it."""
    result = Result(
        TRACE,
        {
            "K=0": [played(100, 1000), played(100, 800), played(100, 1000)],
            "K=7": [played(400, 500), played(400, 400), played(400, 500)],
            "table": [played(390, 980), played(390, 784), played(390, 980)],
            "adaptive": [played(380, 900), played(380, 760), played(380, 960)],
        },
    )
    assert result.speeds() == [[1.0, 1.0], [1.0, 0.8], [1.0, 1.0]]
    assert result.rates("adaptive") == pytest.approx([380, 950])


def test_the_summary_compares_totals_and_the_worst_phase() -> None:
    found = summary(RESULT)
    assert found["best_single_k"] == 0
    assert found["headroom"] == round(1400 / 1100 - 1, 3)
    assert found["over_phase_oracle"] == round((380 + 970) / 1400, 3)
    assert found["gain_over_best_static"] == round(1350 / 1100 - 1, 3)
    assert found["gain_over_table"] == round(1350 / 1370 - 1, 3)
    assert found["worst_phase"] == round(380 / 400, 3)
    assert found["failed"] == 1
    assert "over_engine_alone" not in found
    assert found["unlabelled_over_labelled"] == round(1350 / 1350, 3)
    assert found["itl_p99_ratio"] == 1.0
    assert set(found["intervals"]) < set(found)


def noisy_result(scatter: float, phases: int = 60) -> Result:
    """Arms that differ by chance alone, each play on a machine of another speed."""
    rng = random.Random(1)
    names = ["K=0", "K=7", "table", "adaptive"]
    speeds = [1.0, 0.7, 1.3]
    return Result(
        Trace(tuple(LoadPhase(str(number), 4.0, {"json": 1}) for number in range(phases))),
        {
            name: [played(*(speed * rng.gauss(100, 100 * scatter) for _ in range(phases))) for speed in speeds]
            for name in names
        },
    )


def test_the_scatter_of_a_phase_is_told_from_the_machines_speed() -> None:
    assert noisy_result(0.05).scatter() == pytest.approx(0.05, rel=0.15)
    assert RESULT.scatter() == pytest.approx(0, abs=1e-9)


def test_intervals_cover_what_chance_does_to_equal_arms() -> None:
    """95 % of the phases of an equal arm lie within the interval, and its total within a narrower one."""
    result = noisy_result(0.05)
    ratios = [mine / other for mine, other in zip(result.rates("adaptive"), result.rates("K=7"), strict=True)]
    outside = sum(abs(ratio - 1) > result.phase_half_width() for ratio in ratios) / len(ratios)
    assert outside < 0.12
    assert result.half_width() == pytest.approx(result.phase_half_width() / 60**0.5, rel=0.05)
    assert abs(result.total("adaptive") / result.total("K=7") - 1) < 2 * result.half_width()


def test_an_arm_that_is_equal_in_every_phase_has_a_worst_one_by_chance() -> None:
    result = noisy_result(0.05, phases=16)
    assert 0.88 < result.worst_of_equals() < 0.95
    assert result.worst_of_equals() == result.worst_of_equals()
    assert RESULT.worst_of_equals() == pytest.approx(1)


def test_adapting_lasts_until_two_seconds_in_a_row_are_near_the_steady_rate() -> None:
    assert adapt_s(readings([100, 100, 100]), 100) == 0
    assert adapt_s(readings([10, 100, 10, 96, 96, 96]), 100) == 3
    assert adapt_s(readings([10, 10, 10]), 100) == 3


def test_a_percentile_is_read_off_the_histogram() -> None:
    latency = {0.01: 98.0, 0.1: 100.0, float("inf"): 100.0}
    plays = [Played([readings([1], latency)], 1, {})]
    assert latency_p99(plays) == pytest.approx(0.01 + 0.09 / 2)


def test_a_hand_tuned_table_covers_every_load_once() -> None:
    trace = Trace(
        (
            LoadPhase("a", 1, {"x": 1}),
            LoadPhase("b", 1, {"x": 16}),
            LoadPhase("c", 2, {"y": 16}),
            LoadPhase("d", 1, {"x": 40}),
        )
    )
    rates = {0: [10, 100, 100, 50], 3: [20, 140, 90, 60], 7: [30, 10, 10, 10]}
    assert hand_tuned(trace, rates, 32) == [[1, 4, 7], [5, 22, 3], [23, 32, 3]]


def test_the_report_names_every_arm_and_phase(tmp_path: Path) -> None:
    text = markdown(RESULT, [[1, 32, 3]])
    for word in (*RESULT.plays, "calm", "crowd", "380 (380 to 400)", "0.95 (K=7)"):
        assert word in text
    plot(RESULT, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").stat().st_size > 1000

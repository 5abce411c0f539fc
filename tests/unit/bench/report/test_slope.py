import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.bench.report.slope import slope


@given(st.floats(-50, 50), st.floats(0, 5000))
def test_a_straight_line_is_found(growth: float, start: float) -> None:
    readings = [(minute / 10, start + growth * minute / 10) for minute in range(200)]
    low, middle, high = slope(readings)
    assert middle == pytest.approx(growth, abs=1e-6)
    assert low <= middle <= high
    assert high - low < 1e-3


def test_growth_in_the_warm_up_and_single_peaks_do_not_count() -> None:
    readings = [(minute / 10, min(1000.0, 10.0 * minute) + 300.0 * (minute % 17 == 0)) for minute in range(1000)]
    low, middle, high = slope(readings)
    assert (low, middle, high) == pytest.approx((0.0, 0.0, 0.0), abs=0.01)


def test_a_slow_leak_lies_above_the_interval_around_zero_of_a_noisy_reading() -> None:
    noise = [0.0, 9.0, -7.0, 4.0, -2.0, 6.0, -8.0]
    leaking = [(i / 30, 1500.0 + 5.0 * i / 30 + noise[i % 7]) for i in range(300)]
    steady = [(i / 30, 1500.0 + noise[i % 7]) for i in range(300)]
    assert slope(leaking)[0] > 1.0
    assert slope(steady)[0] <= 0.0 <= slope(steady)[2]


def test_too_few_readings_say_nothing() -> None:
    assert slope([(0.0, 1.0), (1.0, 2.0)]) == (float("-inf"), 0.0, float("inf"))
    assert slope([])[1] == 0.0

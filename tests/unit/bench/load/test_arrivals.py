"""Open-loop arrivals have the given rate and burstiness."""

import random
import statistics

import pytest

from specpilot.bench.load.arrivals import arrival_times


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_keep_the_rate_and_vary_as_a_gamma_process_does(burstiness: float) -> None:
    times = arrival_times(5.0, burstiness, 4000, random.Random(3))
    assert times == sorted(times)
    assert times[-1] == pytest.approx(4000 / 5.0)
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    variation = statistics.pvariance(gaps) / statistics.fmean(gaps) ** 2
    assert variation == pytest.approx(1.0 / burstiness, rel=0.15)


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        arrival_times(0.0, 1.0, 3, random.Random(0))

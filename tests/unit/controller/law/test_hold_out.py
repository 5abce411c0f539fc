"""When the hold-out's test takes the law for a loser. In every eighth window the rarer of both K runs."""

import math
import random
from types import SimpleNamespace
from typing import Any

from specpilot.controller.law.hold_out import HoldOut, judgements
from specpilot.controller.tuning import Tuning

TUNING = Tuning()
NOISE, MUCH_NOISE = 0.1, 0.15
"""Standard deviations of the logarithm of a window's throughput."""


class Traffic:
    """Feeds a hold-out windows with noise, in which adaptive K gains what it is told."""

    def __init__(self, seed: int, noise: float = NOISE) -> None:
        self._noise = noise
        self.hold_out = HoldOut(TUNING)
        self._rng = random.Random(seed)
        self._index = 0

    def pass_by(self, compared: int, gain: float) -> bool:
        """Let about so many windows be compared; return whether the law was ever stepped back meanwhile."""
        has_stepped_back = False
        for _ in range(8 * compared):
            is_static = (self._index % 8 == 4) is not self.hold_out.is_stepped_back
            log_throughput = self._rng.gauss(0.0 if is_static else gain, self._noise)
            window: Any = SimpleNamespace(
                elapsed_s=0.5,
                evidence=SimpleNamespace(steps=50.0),
                tokens=1000.0 * math.exp(log_throughput),
                busy_s=1.0,
            )
            at = self._index * TUNING.hold_out_window_s + 3.0
            self.hold_out.take(window, at, is_static=is_static)
            has_stepped_back |= self.hold_out.is_stepped_back
            self._index += 1
        return has_stepped_back


def test_the_law_is_judged_less_often_the_more_windows_there_are() -> None:
    assert judgements(5, 100) == (5, 7, 10, 14, 20, 28, 40, 56, 79, 100)


def test_over_100_windows_a_law_that_loses_nothing_is_seldom_taken_for_a_loser() -> None:
    assert sum(Traffic(seed).pass_by(100, 0.0) for seed in range(300)) <= 0.05 * 300


def test_a_law_that_gains_is_not_taken_for_a_loser() -> None:
    assert not any(Traffic(seed).pass_by(1000, 0.1) for seed in range(3))


def test_a_loss_of_a_fifth_is_found_within_some_ten_windows() -> None:
    found = [Traffic(seed, MUCH_NOISE).pass_by(14, math.log(0.8)) for seed in range(100)]
    assert sum(found) >= 90


def test_a_hold_out_that_is_old_is_as_sensitive() -> None:
    """A week of windows in which the law gained, then it loses 5 %."""
    for seed in range(3):
        traffic = Traffic(seed)
        assert not traffic.pass_by(1400, 0.05)
        assert traffic.pass_by(150, math.log(0.95))

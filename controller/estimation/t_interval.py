"""Student's t: the confidence interval of a mean.

For whole degrees of freedom v the probability A(t | v) = P(|T| <= t) has a finite form (Abramowitz and Stegun, Handbook
of Mathematical Functions, 26.7.3 and 26.7.4); with theta = atan(t / sqrt(v)):

    v odd:   A = 2/pi (theta + sin(theta) (cos(theta) + 2/3 cos^3(theta) + ... up to cos^(v-2)))
    v even:  A = sin(theta) (1 + 1/2 cos^2(theta) + 1*3/(2*4) cos^4(theta) + ... up to cos^(v-2))

Above 200 degrees the form of 200 is used: its quantile is larger by less than 1 %, so the interval is too wide.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

_MOST_DEGREES = 200
_HALVINGS = 80


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its lower and upper bound, both with the same probability of error."""

    low: float
    mean: float
    high: float

    def ratios(self) -> dict[str, float]:
        """Return an interval of logarithms as one of ratios minus 1, ready for JSON."""
        return {name: math.expm1(min(getattr(self, name), 50.0)) for name in ("low", "mean", "high")}


def central_probability(t: float, degrees: int) -> float:
    """Return P(|T| <= t) for Student's T with `degrees` of freedom, t >= 0."""
    theta = math.atan2(t, math.sqrt(degrees))
    sine, cosine = math.sin(theta), math.cos(theta)
    is_odd = degrees % 2 == 1
    term = cosine if is_odd else 1.0
    total = 0.0
    for power in range(1 if is_odd else 0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (theta + sine * total) if is_odd else sine * total


@cache
def quantile(tail: float, degrees: int) -> float:
    """Return t with P(T > t) = `tail`, for 0 < tail <= 0.5."""
    degrees = min(degrees, _MOST_DEGREES)
    low, high = 0.0, 1.0
    while central_probability(high, degrees) < 1 - 2 * tail:
        low, high = high, high * 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if central_probability(middle, degrees) < 1 - 2 * tail else (low, middle)
    return high


def interval(values: Sequence[float], tail: float) -> Interval:
    """Return the mean of two or more `values` and its bounds; each is wrong with probability `tail`."""
    count = len(values)
    mean = math.fsum(values) / count
    return interval_of(count, mean, math.fsum((value - mean) ** 2 for value in values), tail)


def interval_of(count: int, mean: float, squares: float, tail: float) -> Interval:
    """Return the interval of a mean of two or more values; `squares` is the sum of their squared deviations."""
    variance = max(0.0, squares) / (count - 1)
    half = quantile(tail, count - 1) * math.sqrt(variance / count)
    return Interval(mean - half, mean, mean + half)

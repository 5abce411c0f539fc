"""The times at which the conversations of an open-loop load begin. Pure, given a source of randomness.

Gaps between arrivals follow a gamma distribution with mean `1 / rate` and shape `burstiness`, as in `vllm bench
serve`: 1 is a Poisson process, less comes in bursts, more is even. The squared coefficient of variation is `1 /
burstiness`.
"""

import random


def arrival_times(rate: float, burstiness: float, count: int, rng: random.Random) -> list[float]:
    """Return `count` times in seconds from 0, in order, at `rate` a second on average.

    They are scaled so that the last falls on `count / rate`: the offered load is then the same with every seed.
    """
    if rate <= 0 or burstiness <= 0:
        raise ValueError("rate and burstiness must be above 0")
    times, now = [], 0.0
    for _ in range(count):
        now += rng.gammavariate(burstiness, 1.0 / (rate * burstiness))
        times.append(now)
    scale = count / rate / now if now > 0 else 0.0
    return [time * scale for time in times]

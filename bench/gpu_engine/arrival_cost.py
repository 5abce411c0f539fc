"""The cost of a new request for the running ones: the steps around its prompt, compared with steps without one.

Every `every` steps one request arrives and ends well before the next. A step's *offset* counts from the step
in which the request is scheduled. In vLLM's asynchronous loop that step launches the prompt and returns the tokens of
the step before it, so the excess may lie in any of the first offsets. Their sum is the cost of the request.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

AROUND = 3
"""Offsets whose excess is summed: the step that launches the prompt, the one that waits for it, and the next."""

QUIET_FROM = 2 / 3
"""The share of a period after which the arrived request has ended."""


class Arrivals:
    """Times the steps of an engine in which `arrive` adds a request every `every` steps, `count` times.

    `times` are (offset, seconds). Steps before the first arrival are not in it.
    """

    def __init__(self, every: int, count: int, arrive: Callable[[], Any]) -> None:
        self.times: list[tuple[int, float]] = []
        self.steps = every * (count + 1)
        self._every, self._count, self._arrive = every, count, arrive

    def on_step(self, running: int) -> Callable[[int, list[Any]], bool]:
        """Return the function to call after each step; the first period begins when all `running` decode."""
        begun: set[str] = set()
        number = -1
        latest = time.perf_counter()

        def note(_: int, outputs: list[Any]) -> bool:
            nonlocal number, latest
            now = time.perf_counter()
            begun.update(output.request_id for output in outputs)
            if len(begun) < running:
                latest = time.perf_counter()
                return True
            if number >= self._every:
                self.times.append(((number - self._every) % self._every, now - latest))
            number += 1
            if number >= self.steps:
                return False
            if number >= self._every and number % self._every == 0:
                self._arrive()
            latest = time.perf_counter()
            return True

        return note


def excess(times: Sequence[tuple[int, float]], every: int) -> dict[str, Any]:
    """Return the cost of an arrival from the steps (offset, seconds), in milliseconds.

    `quiet_ms` is the median step long after an arrival; `excess_ms` the time of the first `AROUND` steps beyond as many
    quiet ones, the median over arrivals with quartiles; `by_offset_ms` the median step at each offset. `None` without a
    whole period.
    """
    periods: list[dict[int, float]] = []
    for offset, seconds in times:
        if offset == 0:
            periods.append({})
        periods[-1][offset] = seconds
    whole = [period for period in periods if len(period) == every]
    if not whole:
        return {"quiet_ms": None, "excess_ms": None, "excess_ms_quartiles": None, "by_offset_ms": [], "periods": 0}
    first_quiet = max(AROUND, round(QUIET_FROM * every))
    quiet = statistics.median(period[offset] for period in whole for offset in range(first_quiet, every))
    excesses = [1e3 * sum(period[offset] - quiet for offset in range(AROUND)) for period in whole]
    quartiles = statistics.quantiles(excesses, n=4) if len(excesses) > 1 else [excesses[0]] * 3
    return {
        "quiet_ms": 1e3 * quiet,
        "excess_ms": statistics.median(excesses),
        "excess_ms_quartiles": [quartiles[0], quartiles[2]],
        "by_offset_ms": [1e3 * statistics.median(period[offset] for period in whole) for offset in range(every)],
        "periods": len(whole),
    }

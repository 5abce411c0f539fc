"""A thread beside that of the engine's steps sleeps between the parts of a computation."""

import pytest

from specpilot.engine_adapter.agent import short_holds
from specpilot.engine_adapter.agent.short_holds import HOLD_S, SLEEP_S, ShortHolds


def test_it_sleeps_after_each_hold_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [10.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(short_holds.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(short_holds.time, "sleep", sleep)
    between = ShortHolds()
    between()
    assert slept == [SLEEP_S]
    between()
    now[0] += 0.9 * HOLD_S
    between()
    assert slept == [SLEEP_S]
    now[0] += 0.2 * HOLD_S
    between()
    assert slept == [SLEEP_S, SLEEP_S]

"""How long a step took, and what is idle time."""

from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.plan.probes import PROBE_AFTER
from specpilot.policy.bands import BANDS
from tests.support.k_tables import table
from tests.support.stepped_engine import Engine


def test_a_step_takes_from_the_end_of_the_one_before_or_from_its_beginning_after_idleness() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    engine.end(engine.begin(10.0, a=1), 10.5, a=1)
    engine.meter.take_evidence()
    engine.end(engine.begin(10.6, a=1), 11.0, goes_on=False, a=1)
    assert seconds(engine) == pytest.approx(0.5)
    engine.end(engine.begin(20.0, a=1), 20.3, a=1)
    assert seconds(engine) == pytest.approx(0.3)
    engine.steps.pause()
    engine.end(engine.begin(30.0, a=1), 30.2, a=1)
    assert seconds(engine) == pytest.approx(0.2)


def seconds(engine: Engine) -> float:
    (sums,) = engine.meter.take_evidence().steps.values()
    return sums.seconds


def test_a_step_that_delivers_nothing_after_the_last_one_takes_from_that_ones_end() -> None:
    """The asynchronous scheduler has scheduled it before it knows that the last request has ended."""
    engine = Engine(table(default=3))
    engine.prefill("a")
    engine.meter.take_evidence()
    last = engine.begin(now=0.0, drafted={"a": 3}, a=4)
    beyond = engine.begin(now=0.5, drafted={"a": 3}, a=4)
    engine.end(last, now=1.0, goes_on=False, a=4)
    engine.end(beyond, now=1.25, goes_on=False)
    (sums,) = engine.meter.take_evidence().steps.values()
    assert (sums.steps, sums.seconds) == (2, pytest.approx(1.25))
    engine.end(engine.begin(now=7.0, b=9), now=7.5, b=1)
    assert seconds(engine) == pytest.approx(0.5)


def test_an_idle_engine_earns_time_for_probes_as_a_busy_one_does() -> None:
    assert steps_to_probe(idle_s=0.0) - steps_to_probe(idle_s=10.0) == pytest.approx(100, abs=PROBE_AFTER)


def test_steps_without_a_token_earn_no_time_for_probes() -> None:
    """While all requests wait for a grammar, vLLM's loop takes such a step each millisecond."""
    assert steps_to_probe(empty_steps=100) == steps_to_probe()


def steps_to_probe(idle_s: float = 0.0, empty_steps: int = 0) -> int:
    """Return the number of steps until a request is probed, after others, idle time and steps without a token."""
    engine = Engine(table(0.01, default=[0] * (BANDS - 1) + [7]))
    for number in range(20):
        took = 0.1 if number < 19 else 1e-6  # of the last step nothing depends
        engine.end(engine.begin(0.1 * number, a=1), 0.1 * number + took, a=1, goes_on=number < 19)
    at = 2.0 + idle_s
    engine.end(engine.begin(at, finished=["a"], b=9), at, b=1)
    for _ in range(empty_steps):
        engine.begin(at)
    for step in range(1, 1000):
        engine.end(engine.begin(at + 0.1 * step, b=1), at + 0.1 * step, b=1)
        if engine.steps.states["b"].k:
            return step
    return 1000


def test_how_long_a_step_under_way_has_not_ended() -> None:
    engine = Engine(table(default=0))
    assert engine.steps.waiting_s(100.0) == 0.0
    first = engine.begin(now=10.0, a=9)
    assert engine.steps.waiting_s(12.0) == 2.0
    second = engine.begin(now=11.0, a=1)  # asynchronously: before the first has ended
    engine.end(first, now=15.0, a=1)
    assert engine.steps.waiting_s(18.0) == 3.0
    engine.end(second, now=19.0, goes_on=False, a=1)
    assert engine.steps.waiting_s(500.0) == 0.0


def test_time_in_which_nothing_is_scheduled_is_no_steps() -> None:
    """As while the only request that is there waits for its grammar."""
    engine = Engine(table(default=0))
    engine.end(engine.begin(0.0, a=9), 0.1, a=1)
    engine.end(engine.begin(0.1, a=1), 0.15, a=1)
    engine.begin(0.2, finished=["a"])
    engine.begin(3.0)
    engine.end(engine.begin(4.0, b=9), 4.1, b=1)
    evidence = engine.meter.take_evidence()
    assert sum(sums.seconds for sums in evidence.steps.values()) == pytest.approx(0.1 + 0.05 + 0.1)


def test_a_step_of_nothing_while_one_is_under_way_is_no_idleness() -> None:
    engine = Engine(table(default=0))
    engine.end(engine.begin(0.0, a=9), 0.1, a=1)
    step = engine.begin(0.2, a=1)
    engine.begin(0.25)
    engine.end(step, 0.3, a=1)
    assert sum(sums.seconds for sums in engine.meter.take_evidence().steps.values()) == pytest.approx(0.3)


def test_a_steps_time_is_the_devices_where_it_is_known_and_the_engine_was_not_idle() -> None:
    """In the asynchronous loop the host processes the outcome of a step after it has launched the next one."""
    engine = Engine(table(default=0))
    engine.prefill("a")
    engine.steps.pause()
    first, second = engine.begin(now=1.0, a=1), engine.begin(now=1.1, a=1)
    engine.steps.end(first, delivered(a=1), 1.5, goes_on=True, device_s=40.0)  # of the idle time before
    engine.steps.end(second, delivered(a=1), 2.5, goes_on=True, device_s=0.3)
    [sums] = engine.meter.take_evidence().steps.values()
    assert (sums.steps, sums.seconds) == (2, pytest.approx(0.5 + 0.3))


def delivered(**tokens: int) -> Any:
    items = [SimpleNamespace(request_id=name, new_token_ids=[0] * count) for name, count in tokens.items()]
    return {0: SimpleNamespace(outputs=items)}

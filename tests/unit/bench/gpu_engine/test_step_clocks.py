"""The clocks of a step: the host's calls, the device's work, the processor's speed; and the lock of a timed engine."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specpilot.bench.gpu_engine import host_clock, pace
from specpilot.bench.gpu_engine.arrival_cost import Arrivals, excess
from specpilot.bench.gpu_engine.device_time import Profiled, Spans, busy_ns
from specpilot.bench.gpu_engine.host_clock import HostClock
from tests.support.hand_clock import Clock


@pytest.fixture(autouse=True)
def passing(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the host, which the calls of a core move."""
    found = Clock()
    monkeypatch.setattr(host_clock, "time", SimpleNamespace(perf_counter=found.monotonic))
    return found


class Core:
    """An engine core whose calls take known times."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.scheduler = SimpleNamespace(schedule=self._take(0.02), update_from_output=self._take(0.01))
        self.model_executor = SimpleNamespace(execute_model=self._take(0.03), sample_tokens=self._take(0.02))

    def _take(self, seconds: float) -> Any:
        return lambda *_, **__: self._clock.sleep(seconds)

    def step_fn(self) -> str:
        self.scheduler.schedule()
        self.model_executor.execute_model("batch", non_block=True)
        self.model_executor.sample_tokens(None)
        self._clock.sleep(0.05)  # waits for the device
        self.scheduler.update_from_output()
        return "outputs"


def test_the_hosts_calls_are_told_from_waiting(passing: Clock) -> None:
    core = Core(passing)
    clock = HostClock(core)
    assert core.step_fn() == "outputs"
    step = clock.take()
    assert step.scheduler_s == pytest.approx(0.03)
    assert step.executor_s == pytest.approx(0.05)
    assert step.waiting_s == pytest.approx(0.05)
    assert step.host_s == step.scheduler_s + step.executor_s
    assert clock.take().host_s == 0.0


def test_the_device_is_busy_while_any_kernel_runs() -> None:
    assert busy_ns([]) == 0
    assert busy_ns([(10, 20), (15, 30), (16, 18), (40, 45)]) == 25
    assert busy_ns([(40, 45), (10, 50)]) == 40


class Events:
    """Stands in for CUDA's events: each is recorded at the next whole millisecond."""

    recorded = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0

    def record(self) -> None:
        Events.recorded += 1
        self.at = Events.recorded**2

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "Events") -> float:
        return float(other.at - self.at)


def test_a_steps_span_is_from_its_first_operation_to_its_last(passing: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Events)
    core = Core(passing)
    spans = Spans(core)
    clock = HostClock(core)
    for _ in range(3):
        core.step_fn()
    assert clock.take().executor_s == pytest.approx(0.15)
    assert spans.median_ms(2) == pytest.approx((4**2 - 3**2 + 6**2 - 5**2) / 2)
    assert spans.median_ms(2) is None


def test_without_a_device_its_time_is_unknown(passing: Clock) -> None:
    spans, profiled = Spans(Core(passing)), Profiled(4)
    profiled.begin()
    assert spans.median_ms(4) is None
    assert profiled.end() == {"busy_ms": None, "kernels": None, "launches": None}


def test_a_third_slower_is_another_pace_and_a_few_per_cent_are_not() -> None:
    usual = [1.0, 1.02, 0.97, 1.0, 1.32]
    assert pace.is_typical(1.05, usual)
    assert not pace.is_typical(1.32, usual)
    assert 0 < pace.probe_ms() < 1000


class Outputs:
    def __init__(self, name: str) -> None:
        self.request_id = name


def test_requests_arrive_every_so_many_steps_and_offsets_count_from_them() -> None:
    arrived = list[int]()
    steps = 0
    arrivals = Arrivals(6, 2, lambda: arrived.append(steps))
    on_step = arrivals.on_step(2)
    assert on_step(1, [Outputs("a")])  # the second request has not begun yet
    while on_step(steps + 2, [Outputs("a"), Outputs("b")]):
        steps += 1
    assert arrived == [6, 12]
    assert [offset for offset, _ in arrivals.times] == [*range(6)] * 2


def test_an_arrivals_excess_lies_in_the_steps_after_it() -> None:
    period = [0.012, 0.007, 0.005, 0.005, 0.005, 0.005]
    slower = [0.014, 0.007, 0.005, 0.005, 0.005, 0.005]
    times = [(offset, seconds) for item in (period, period, slower) for offset, seconds in enumerate(item)]
    found = excess([*times, (0, 0.5)], 6)
    assert found["quiet_ms"] == pytest.approx(5.0)
    assert found["excess_ms"] == pytest.approx(9.0)
    assert found["by_offset_ms"][:2] == pytest.approx([12.0, 7.0])
    assert found["periods"] == 3
    assert excess([(0, 0.1)], 6)["excess_ms"] is None

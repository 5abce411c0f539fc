"""Which request may go to an engine, which waits, and which is next."""

from dataclasses import dataclass, field

import pytest

from specpilot.gateway.limits.admission import Admission, Place, without_room
from specpilot.gateway.routing.outlier_detection import OutlierDetection
from specpilot.gateway.wire.errors import GatewayError, QueueFullError


@dataclass(eq=False)
class FakeEngine:
    outstanding_requests: int = 0
    running_limit: int | None = None
    is_draining: bool = False
    outlier_detection: OutlierDetection = field(default_factory=OutlierDetection)
    work_tokens: float | None = 0.0
    ranks: int = 1


@dataclass(eq=False)
class FakeWaiter:
    engines: list[FakeEngine]
    went_at: float | None = None

    def proceed(self, now: float) -> None:
        self.went_at = now
        if self.engines:
            min(self.engines, key=lambda engine: engine.outstanding_requests).outstanding_requests += 1

    def end_with(self, error: GatewayError) -> None:
        raise AssertionError


def busy(count: int = 2, *, draining: bool = False, ejected: bool = False) -> FakeEngine:
    return FakeEngine(count, is_draining=draining, outlier_detection=OutlierDetection(is_ejected=ejected))


@pytest.mark.parametrize(
    ("engines", "waits"),
    [
        ([], False),  # no engine at all: to be refused, not to wait
        ([busy(1)], False),
        ([busy()], True),
        ([busy(), busy(1)], False),
        ([busy(), busy(0, draining=True)], True),
        ([busy(), busy(0, ejected=True)], True),
        ([busy(0, ejected=True)], False),
        ([busy(2, ejected=True)], True),
        ([busy(2, draining=True)], False),
        ([FakeEngine(1, 1)], True),  # an engine may lower its capacity
        ([FakeEngine(1, 2)], False),
        ([FakeEngine(2, 9)], True),  # and not raise it
        ([FakeEngine(5, ranks=3)], False),  # a server has the capacity of its ranks
        ([FakeEngine(6, ranks=3)], True),
        ([FakeEngine(4, 4, ranks=3)], True),
        ([FakeEngine(6, 9, ranks=3)], True),
    ],
)
def test_when_a_request_waits(engines: list[FakeEngine], waits: bool) -> None:
    assert (without_room(engines, 2) is None) == waits


def test_full_engines_are_passed_over() -> None:
    full, free = busy(), busy(1)
    assert without_room([full, free], 2) == (full,)


def line(admission: Admission[FakeEngine], engines: list[FakeEngine], model: str, at: float, name: str) -> FakeWaiter:
    waiter = FakeWaiter(engines)
    admission.join(Place(waiter, model, name, at), 1.0, 0)
    return waiter


def test_a_place_goes_to_who_waited_and_a_newcomer_does_not_pass() -> None:
    engines = [busy(1)]
    admission = Admission(1, 8, lambda _: engines)
    assert not admission.is_open("m", 0.0)
    first, second = (line(admission, engines, "m", at, "default") for at in (0.0, 1.0))
    engines[0].outstanding_requests = 0
    assert not admission.is_open("m", 2.0)  # the free place is the first one's
    assert (first.went_at, second.went_at) == (2.0, None)
    admission.serve(3.0)
    assert second.went_at is None
    engines.append(busy(0))  # an engine joins
    admission.serve(4.0)
    assert second.went_at == 4.0
    assert admission.waiting() == []


def test_who_leaves_frees_the_place_at_once() -> None:
    engines = [busy(1)]
    admission = Admission(1, 1, lambda _: engines)
    waiter = FakeWaiter(engines)
    place = Place(waiter, "m", "chat", 5.0)
    admission.join(place, 1.0, 0)
    with pytest.raises(QueueFullError) as caught:
        line(admission, engines, "m", 12.5, "chat")
    assert caught.value.headers == {"retry-after": "8"}  # so long has the first waited: 7.5 s
    line(admission, engines, "m", 12.5, "code")  # each class has its own
    admission.leave(place)
    line(admission, engines, "m", 13.0, "chat")
    engines.clear()  # the last engine left: every request proceeds, to get the error for that
    admission.serve(14.0)
    assert waiter.went_at is None
    assert admission.waiting() == []


def test_models_that_share_an_engine_take_turns() -> None:
    engines = [busy(1)]
    admission = Admission(1, 8, lambda _: engines)
    waiters = [(model, line(admission, engines, model, 0.0, "default")) for model in ("a", "a", "a", "b", "b", "b")]
    order = []
    for now in range(1, 7):
        engines[0].outstanding_requests = 0
        admission.serve(float(now))
        order += [model for model, waiter in waiters if waiter.went_at == now]
    assert order in (["a", "b"] * 3, ["b", "a"] * 3)


def test_no_queue_at_all_refuses_at_once() -> None:
    engines = [busy(1)]
    with pytest.raises(QueueFullError, match="--queue-limit"):
        line(Admission(1, 0, lambda _: engines), engines, "m", 0.0, "default")

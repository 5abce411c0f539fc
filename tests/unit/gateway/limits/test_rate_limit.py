"""Limits of API keys in one gateway: the bucket, requests under way, what is owed, and the headers that say so."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.limits.rate_limit import DEMAND_S, MINUTE_S, PRIOR, Denied, Meter, Rates, Shares
from specpilot.gateway.wire.heads import duration
from tests.support.limited_keys import L, key, places


def test_a_minutes_requests_at_once_then_one_each_time_that_has_room() -> None:
    meter = Meter(key(60), 1.0, 0.0)
    assert [meter.admit(10, 0.0) for _ in range(60)] == [None] * 60
    denied = meter.admit(10, 0.25)
    assert denied == Denied("requests", 60, 0.75)
    assert meter.admit(10, 0.999) is not None
    assert meter.admit(10, 0.25 + denied.retry_after_s) is None


@given(st.integers(1, 10_000), st.lists(st.tuples(st.floats(0, 20), st.integers(1, 20_000)), max_size=50))
def test_retry_after_is_exact(tokens: int, asked: list[tuple[float, int]]) -> None:
    meter = Meter(key(30, tokens), 1.0, 0.0)
    now = 0.0
    for pause_s, cost in asked:
        now += pause_s
        denied = meter.admit(cost, now)
        if denied is None:
            continue
        if denied.retry_after_s > 0.01:
            assert meter.admit(cost, now + denied.retry_after_s * 0.99 - 1e-6) is not None
        now += denied.retry_after_s + 1e-6
        assert meter.admit(cost, now) is None


def test_a_request_over_one_limit_takes_from_neither() -> None:
    meter = Meter(key(60, 100), 1.0, 0.0)
    assert meter.admit(100, 0.0) is None
    assert meter.admit(50, 0.0) == Denied("tokens", 100, 30.0)
    assert meter.buckets["requests"].held == 59


def test_more_than_a_minutes_tokens_pass_and_are_owed() -> None:
    meter = Meter(key(None, 100), 1.0, 0.0)
    assert meter.admit(250, 0.0) is None
    denied = meter.admit(1, 0.0)
    assert denied is not None
    assert denied.retry_after_s == pytest.approx(151 / 100 * 60)


def test_an_estimate_is_put_right() -> None:
    meter = Meter(key(None, 1000), 1.0, 0.0)
    assert meter.admit(800, 0.0) is None
    assert meter.admit(300, 0.0) is not None
    meter.settle(800, 100, 0.0)
    assert meter.admit(300, 0.0) is None
    meter.settle(300, 700, 0.0)
    assert meter.buckets["tokens"].held == 200


def test_a_larger_share_gives_nothing_at_once_and_a_smaller_one_takes() -> None:
    meter = Meter(key(60), 0.5, 0.0)
    meter.set_share(1.0, 0.0)
    assert meter.buckets["requests"].held == 30
    meter.set_share(0.1, 0.0)
    assert (meter.buckets["requests"].held, meter.buckets["requests"].reset_s) == (6, 0)


def test_a_changed_limit_holds_at_once() -> None:
    rates = Rates()
    assert rates.meter(key(60), 1, 0.0).admit(1, 0.0) is None
    found = rates.meter(key(2), 1, 0.0)
    assert found.buckets["requests"].held == 2
    assert "requests" not in rates.meter(key(None, 5), 1, 0.0).buckets


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 30)), max_size=60))
def test_times_out_of_order_count_once(asked: list[tuple[float, int]]) -> None:
    meter = Meter(key(60), 1.0, 0.0)
    passed = sum(meter.admit(1, now) is None for now, count in asked for _ in range(count))
    assert passed <= 60 + 100


def test_what_a_request_of_several_minutes_used_is_owed() -> None:
    rates = Rates()
    assert rates.meter(key(None, 1000), 100, 0.0).admit(100, 0.0) is None
    assert rates.meter(key(60, 1000), 100, 1.0).admit(100, 1.0) is None  # the limits change while both are under way
    rates.settle("k", 100, 100, 2.0)
    assert rates.demands(300.0) == {}
    rates.settle("k", 100, 5000, 300.0)
    denied = rates.meter(key(60, 1000), 100, 300.0).admit(100, 300.0)
    assert denied == Denied("tokens", 1000, 4000 / 1000 * 60)
    rates.demands(900.0)
    assert rates._meters == {}


def test_idle_keys_are_forgotten_and_their_demand_fades() -> None:
    rates = Rates()
    rates.meter(key(), 1, 0.0).admit(1, 0.0)
    rates.settle("k", 1, 1, 0.0)
    first = rates.demands(0.0)["k"]
    assert first == pytest.approx(MINUTE_S / DEMAND_S / L)
    assert rates.demands(DEMAND_S)["k"] == pytest.approx(first / math.e)
    assert rates.demands(120.0) == {}
    assert rates._meters == {}


def test_requests_under_way_are_bounded_and_an_end_makes_room() -> None:
    meter = Meter(places(2), 1.0, 0.0)
    assert [meter.admit(5, 0.0) for _ in range(3)] == [None, None, Denied("concurrent_requests", 2, 1.0)]
    meter.settle(5, 5, 9.0)
    assert meter.admit(5, 9.0) is None
    assert meter.admit(5, 9.0) is not None
    assert meter.unsettled == 2


def test_a_request_without_a_place_takes_from_no_other_limit() -> None:
    meter = Meter(places(1, requests_per_minute=60, tokens_per_minute=100), 1.0, 0.0)
    assert meter.admit(10, 0.0) is None
    assert meter.admit(10, 0.0) is not None
    assert (meter.buckets["requests"].held, meter.buckets["tokens"].held) == (59, 90)


def test_the_demand_of_requests_under_way_does_not_fade_and_the_key_is_not_forgotten() -> None:
    rates = Rates()
    for _ in range(2):
        rates.meter(places(4), 1, 0.0).admit(1, 0.0)
    assert rates.demands(3600.0) == {"k": 0.5}
    for _ in range(2):
        rates.settle("k", 1, 1, 3600.0)
    assert rates.demands(3600.0 + 120.0) == {}


def test_a_key_that_others_use_begins_with_little() -> None:
    rates = Rates()
    rates.adopt(Shares({"k": 0.5}, 0.5), 0.0)
    found = rates.meter(key(600, 6000), 500, 0.0)
    assert (found.buckets["requests"].held, found.buckets["tokens"].held) == (600 * PRIOR, 500)
    assert found.admit(500, 0.0) is None
    assert found.admit(500, 0.0) is not None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (0.0001, "1ms"), (0.12, "120ms"), (1, "1s"), (8.64, "8.64s"), (59.9999, "1m0s"), (360, "6m0s")],
)
def test_durations_as_openai_writes_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said

"""TTFT and TPOT of each request, by the steps that delivered its tokens."""

from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.plan.latencies import LEAST_OF_A_REST, PART_S, Latencies, Latency
from specpilot.policy.names import CLASS_LIMIT

HOUR_S = 3600.0


def request(name: str, arrived_at: float, traffic_class: str = "chat") -> Any:
    sampling = SimpleNamespace(extra_args={"traffic_class": traffic_class}, temperature=0.0)
    return SimpleNamespace(
        request_id=name, sampling_params=sampling, arrival_time=HOUR_S + arrived_at, num_output_tokens=0
    )


def step(latencies: Latencies, at: float, *requests: Any, tokens: int = 1) -> None:
    """A step that ends at `at` and delivers `tokens` to each of the requests."""
    latencies.step(at, HOUR_S + at)
    for item in requests:
        item.num_output_tokens += tokens
    latencies.note_tokens()


def test_a_request_has_a_ttft_and_once_it_ends_a_tpot() -> None:
    latencies, one = Latencies(), request("one", 1.0)
    latencies.begin(one)
    step(latencies, 2.0)  # a chunk of its prompt
    assert latencies.take() == []
    step(latencies, 2.5, one)
    assert latencies.take() == [Latency("chat", "ttft", pytest.approx(1.5))]
    for at in (3.0, 3.5):
        step(latencies, at, one, tokens=2)
    latencies.end(one)
    assert latencies.take() == [Latency("chat", "tpot", pytest.approx(1.0 / 4))]
    latencies.end(one)
    assert latencies.take() == []


def test_a_request_of_one_token_has_no_tpot() -> None:
    """vLLM ends it while it processes the step that delivers its first token."""
    latencies, one, aborted = Latencies(), request("one", 1.0), request("aborted", 1.0)
    latencies.begin(one)
    latencies.begin(aborted)
    latencies.step(2.0, HOUR_S + 2.0)
    one.num_output_tokens = 1
    latencies.end(one)
    latencies.end(aborted)
    latencies.note_tokens()
    assert [(item.measure, item.seconds) for item in latencies.take()] == [("ttft", pytest.approx(1.0))]


def test_a_request_that_is_aborted_later_ended_with_the_last_step() -> None:
    latencies, one = Latencies(), request("one", 0.0)
    latencies.begin(one)
    for at in (1.0, 2.0, 3.0):
        step(latencies, at, one)
    latencies.take()
    latencies.end(one)  # whenever the client's stop string was found
    assert latencies.take() == [Latency("chat", "tpot", pytest.approx(1.0))]


def test_more_input_of_a_session_begins_anew() -> None:
    latencies, one = Latencies(), request("one", 0.0)
    latencies.begin(one)
    step(latencies, 1.0, one)
    latencies.end(one)
    one.num_output_tokens, one.arrival_time = 0, HOUR_S + 9.0
    latencies.begin(one)
    step(latencies, 9.25, one)
    assert [item.seconds for item in latencies.take()] == [pytest.approx(1.0), pytest.approx(0.25)]


def test_a_long_reply_is_measured_in_parts_while_it_runs() -> None:
    latencies, one = Latencies(), request("one", 0.0)
    latencies.begin(one)
    step(latencies, 10.0, one)
    latencies.take()
    for at in range(11, 10 + 2 * int(PART_S)):
        step(latencies, float(at), one, tokens=2 if at < 10 + PART_S else 1)
    assert [item.seconds for item in latencies.take()] == [pytest.approx(PART_S / (2 * PART_S - 1))]
    step(latencies, 10 + 2 * PART_S, one, tokens=0)  # of another request
    assert [item.seconds for item in latencies.take()] == [pytest.approx(PART_S / (PART_S - 1))]
    step(latencies, 11 + 2 * PART_S, one, tokens=LEAST_OF_A_REST - 1)
    latencies.end(one)
    assert latencies.take() == [], "the mean of a few tokens is noise"


def test_the_time_of_a_part_without_a_token_counts_in_the_next() -> None:
    latencies, one, other = Latencies(), request("one", 0.0), request("other", 0.0)
    for item in (one, other):
        latencies.begin(item)
    step(latencies, 0.0, one, other)
    latencies.end(other)
    latencies.take()
    step(latencies, 1.5 * PART_S)
    assert latencies.take() == []
    step(latencies, 1.5 * PART_S + 8.0, one, tokens=LEAST_OF_A_REST)
    latencies.end(one)
    assert [item.seconds for item in latencies.take()] == [pytest.approx((1.5 * PART_S + 8.0) / LEAST_OF_A_REST)]


def test_the_newest_requests_of_a_class_have_statistics() -> None:
    latencies = Latencies()
    for number in range(1, 301):
        one = request(str(number), 0.0)
        latencies.begin(one)
        step(latencies, 1.0, one)
        step(latencies, 1.0 + number, one)
        latencies.end(one)
        latencies.take()
    measured = latencies.measured_ms()["chat"]
    assert (measured["p50"], measured["p99"]) == (1000 * (44 + 128), 1000 * (44 + 254))
    assert measured["mean"] == pytest.approx(1000 * 172.5)
    latencies.drop()
    assert latencies.take() == []


def test_a_preempted_request_that_v2_schedules_like_a_new_one_goes_on() -> None:
    latencies, one = Latencies(), request("one", 0.0)
    latencies.begin(one)
    step(latencies, 1.0, one)
    latencies.begin(one)
    step(latencies, 41.0, one)
    latencies.end(one)
    found = [(item.measure, item.seconds) for item in latencies.take()]
    assert found == [("ttft", pytest.approx(1.0)), ("tpot", pytest.approx(40.0))]


def test_names_of_classes_that_clients_state_are_bounded() -> None:
    latencies = Latencies()
    for number in range(10 * CLASS_LIMIT):
        one = request(f"{number}", 0.0, f"class-{number}")
        latencies.begin(one)
        for at in (1.0, 2.0):
            step(latencies, at, one)
        latencies.end(one)
        latencies.take()
    assert len(latencies.measured_ms()) == CLASS_LIMIT

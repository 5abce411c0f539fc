from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.telemetry.families import FAMILIES, lasting, total
from specpilot.gateway.telemetry.metrics import GatewayMetrics, exposition_of
from specpilot.gateway.wire.usage import Usage

BY_RULE = {"retries": (2, 3, 5), "in_flight": (2, 3, 5), "returned_keys": (2, 3, 3), "policy_version": (2, 3, 2)}
"""A counter, and a gauge of each rule: one worker's number, another's, and both merged."""

numbers = st.integers(0, 1000)


@st.composite
def workers(draw: st.DrawFn, least: int = 0) -> list[Any]:
    """Tallies of workers that agree about the form of each number."""
    forms = {
        "retries": numbers,
        "ttft_seconds": st.lists(numbers, min_size=3, max_size=3),
        "refusals": st.dictionaries(st.sampled_from(["a", "b", "c"]), numbers),
        "in_flight": numbers,
        "snapshot_age_seconds": st.none() | numbers,
        "policy_version": st.dictionaries(st.sampled_from(["m", "n"]), numbers),
    }
    return draw(st.lists(st.fixed_dictionaries({}, optional=forms), min_size=least, max_size=5))


@given(workers(), st.randoms())
def test_the_order_of_workers_makes_no_difference(found: list[Any], random: Any) -> None:
    shuffled = [*found]
    random.shuffle(shuffled)
    assert total(found) == total(shuffled)


@given(workers(least=2), st.integers(1, 4))
def test_a_total_of_totals_is_the_total(found: list[Any], at: int) -> None:
    assert total([total(found[:at]), total(found[at:])]) == total(found)


@pytest.mark.parametrize("name", BY_RULE)
def test_each_rule(name: str) -> None:
    one, other, both = BY_RULE[name]
    assert total([{name: one}, {name: other}])[name] == both
    assert total([{name: {"a": one, "b": 1}}, {name: {"a": other}}])[name] == {"a": both, "b": 1}  # unknown is not zero


@given(workers(least=1))
def test_only_counters_outlive_a_worker(found: list[Any]) -> None:
    assert lasting(found[0]).keys() == found[0].keys() - {"in_flight", "snapshot_age_seconds", "policy_version"}


def filled(times: int = 1) -> GatewayMetrics:
    metrics = GatewayMetrics()
    for model, traffic_class in [("m", "chat"), ("m", "code"), ("in_flight", "ejected")] * times:
        cell = metrics.cell(model, traffic_class)
        cell.count(200, 0.5)
        cell.count(503, 2.0)
        cell.in_flight += 1
        usage = Usage()
        usage.read_part(b'{"usage":{"completion_tokens":7},"speculative_decoding":{"mean_acceptance_length":2.5}}')
        cell.learn(usage, 3)
        cell.learn(Usage(), 4)
        cell.itl.observe(0.01, times=5)
        cell.ttft.observe(0.25)
        cell.overhead.observe(0.0005)
        metrics.retries += 1
        metrics.count_upstream_error("connect")
        metrics.count_disconnect("wait")
    metrics.policy_version = {"m": 4}
    metrics.engine_ejected = {"e": True, "f": False}
    metrics.snapshot_age_seconds = 1.5
    return metrics


def test_two_workers_show_what_one_would_have_counted() -> None:
    assert exposition_of(b"[%s,%s]" % (filled().tally(), filled(2).tally())) == exposition_of(
        b"[%s]" % filled(3).tally()
    )


def test_a_tally_has_every_metric_and_no_other() -> None:
    assert orjson.loads(filled().tally()).keys() == FAMILIES.keys()


def test_workers_with_other_buckets_are_not_added() -> None:
    with pytest.raises(ValueError, match="shorter"):
        total([{"ttft_seconds": [1, 2]}, {"ttft_seconds": [1]}])

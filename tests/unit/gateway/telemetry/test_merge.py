import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.gateway.telemetry import metrics as metrics_module
from specpilot.gateway.telemetry.cell import CELL_NUMBERS
from specpilot.gateway.telemetry.merge import COUNTERS, LARGEST, LEAST, SUMS, lasting, total
from specpilot.gateway.telemetry.metrics import GAUGES, NUMBERS, GatewayMetrics, exposition
from specpilot.gateway.wire.usage import Usage

numbers = st.integers(0, 1000)
trees: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "retries": numbers,
        "buckets": st.lists(numbers, min_size=3, max_size=3),
        "reasons": st.dictionaries(st.sampled_from(["a", "b", "c"]), numbers),
    },
)
tallies = st.fixed_dictionaries({}, optional=dict.fromkeys((COUNTERS, SUMS, LARGEST, LEAST), trees))


@given(st.lists(tallies, max_size=5), st.randoms())
def test_the_order_of_workers_makes_no_difference(found: list[Any], random: Any) -> None:
    shuffled = [*found]
    random.shuffle(shuffled)
    assert total(found) == total(shuffled)


@given(st.lists(tallies, min_size=2, max_size=5), st.integers(1, 4))
def test_a_total_of_totals_is_the_total(found: list[Any], at: int) -> None:
    assert total([total(found[:at]), total(found[at:])]) == total(found)


def test_each_branch_has_its_rule() -> None:
    one = {branch: {"n": 2, "reasons": {"a": 1}} for branch in (COUNTERS, SUMS, LARGEST, LEAST)}
    other = {branch: {"n": 3, "reasons": {"b": 1}} for branch in (COUNTERS, SUMS, LARGEST, LEAST)}
    found = total([one, other])
    assert [found[branch]["n"] for branch in (COUNTERS, SUMS, LARGEST, LEAST)] == [5, 5, 3, 2]
    assert found[LEAST]["reasons"] == {"a": 1, "b": 1}  # unknown is not zero


@given(tallies)
def test_only_counters_outlive_a_worker(found: Any) -> None:
    assert total([lasting(found)]) == {COUNTERS: found.get(COUNTERS, {})}


def filled(times: int = 1) -> GatewayMetrics:
    metrics = GatewayMetrics()
    for model, traffic_class in [("m", "chat"), ("m", "code"), ("in_flight", "ejected")] * times:
        cell = metrics.cell(model, traffic_class)
        cell.count(200, 0.5)
        cell.count(503, 2.0)
        cell.in_flight += 1
        usage = Usage()
        usage.read(b'{"usage":{"completion_tokens":7},"speculative_decoding":{"mean_acceptance_length":2.5}}')
        cell.learn(usage, 3)
        cell.learn(Usage(), 4)
        cell.itl.observe(0.01, times=5)
        cell.ttft.observe(0.25)
        cell.overhead.observe(0.0005)
        metrics.retries += 1
        metrics.count_upstream_error("connect")
        metrics.count_disconnect("wait")
    metrics.policy_versions = {"m": 4}
    metrics.ejected = {"e": True, "f": False}
    metrics.snapshot_age_s = 1.5
    return metrics


def through_json(metrics: GatewayMetrics) -> Any:
    return orjson.loads(orjson.dumps(metrics.tally(), option=orjson.OPT_NON_STR_KEYS))


def test_a_tally_carries_everything_that_metrics_show() -> None:
    assert exposition(GatewayMetrics.of(through_json(filled()))) == exposition(filled())


def test_two_workers_show_what_one_would_have_counted() -> None:
    found = GatewayMetrics.of(total([through_json(filled()), through_json(filled(2))]))
    assert exposition(found) == exposition(filled(3))


def test_a_tally_is_a_copy() -> None:
    metrics = filled()
    tally = metrics.tally()
    before = orjson.dumps(tally, option=orjson.OPT_NON_STR_KEYS)
    metrics.cell("m", "chat").count(200, 0.5)
    metrics.count_upstream_error("connect")
    assert orjson.dumps(tally, option=orjson.OPT_NON_STR_KEYS) == before


def test_every_gauge_names_its_rule() -> None:
    shown = {family.name: family.type for family in filled().collect()}
    assert sum(kind == "gauge" for kind in shown.values()) == len(GAUGES)
    assert set(GAUGES) <= {*NUMBERS, *CELL_NUMBERS}


def test_every_number_is_carried() -> None:
    source = Path(metrics_module.__file__).with_name("metrics.py").read_text()
    made = source.split("class GatewayMetrics")[1].split("def cell")[0]
    assert set(re.findall(r"self\.(\w+)", made)) == {"cells", *NUMBERS}
    made = Path(metrics_module.__file__).with_name("cell.py").read_text().split("class Cell")[1].split("def count")[0]
    assert set(re.findall(r"self\.(\w+)", made)) == set(CELL_NUMBERS)


def test_workers_with_other_buckets_are_not_added() -> None:
    with pytest.raises(ValueError, match="shorter"):
        total([{COUNTERS: {"counts": [1, 2]}}, {COUNTERS: {"counts": [1]}}])

"""Latency goals as operators write them."""

import pytest

from specpilot.policy.codec import decode, encode, from_plain, to_plain
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.latency_goal import Goal, Slo, Statistic, largest_mean, within_ratio
from specpilot.policy.model_policy import ClassPolicy, Policy


def written(slo: object) -> dict[str, object]:
    return {"model": "m", "classes": {"chat": {"slo": slo}}}


def test_each_measure_has_one_statistic() -> None:
    policy = from_plain(Policy, written({"tpot_ms": {"p95": 30}, "ttft_ms": {"mean": 500}}))
    slo = policy.slo_of("chat")
    assert slo is not None
    assert slo.goals == {"tpot": Goal(Statistic.P95, 30.0), "ttft": Goal(Statistic.MEAN, 500.0)}
    assert [Statistic(name).ratio for name in ("p50", "p99", "mean")] == [0.5, 0.99, None]
    assert policy.slo_of("default") is None
    assert decode(Policy, encode(policy)) == policy
    assert to_plain(policy)["classes"]["chat"]["slo"]["tpot_ms"] == {"p95": 30.0}


@pytest.mark.parametrize(
    ("slo", "field", "problem"),
    [
        ({"tpot_ms": {"p96": 30}}, "classes.chat.slo.tpot_ms.p96", "'p50', 'p90', 'p95', 'p99' or 'mean'"),
        ({"tpot": {"p95": 30}}, "classes.chat.slo.tpot", "is not a known field"),
        ({"tpot_ms": {}}, "classes.chat.slo.tpot_ms", "must have at least 1 item, not 0"),
        ({"ttft_ms": {"p95": 1, "mean": 1}}, "classes.chat.slo.ttft_ms", "must have at most 1 item"),
        ({"tpot_ms": {"p95": 0}}, "classes.chat.slo.tpot_ms.p95", "must be at least 0.01"),
        ({"tpot_ms": {"p95": "fast"}}, "classes.chat.slo.tpot_ms.p95", "a number"),
    ],
)
def test_a_goal_that_is_none_is_a_fault_of_its_field(slo: object, field: str, problem: str) -> None:
    with pytest.raises(InvalidDocumentError) as caught:
        from_plain(Policy, written(slo))
    [fault] = [fault for fault in caught.value.faults if fault.field == field]
    assert problem in fault.problem


def test_the_former_name_is_read_and_the_new_one_is_written() -> None:
    policy = decode(Policy, b'{"model": "m", "classes": {"chat": {"itl_slo_ms": 20}}}')
    assert policy.classes["chat"] == ClassPolicy(slo=Slo(tpot_ms={Statistic.MEAN: 20.0}))
    assert b"itl_slo_ms" not in encode(policy)
    with pytest.raises(InvalidDocumentError, match="former name"):
        from_plain(ClassPolicy, {"itl_slo_ms": 20, "slo": {"ttft_ms": {"p95": 3}}})


@pytest.mark.parametrize(("former", "ms"), [(0.001, 0.01), (1e9, 1e7)])
def test_a_stored_policy_with_any_former_value_stays_readable(former: float, ms: float) -> None:
    """The former field had no bounds, and what cannot be read leaves the model without a policy."""
    policy = decode(Policy, f'{{"model": "m", "classes": {{"chat": {{"itl_slo_ms": {former}}}}}}}'.encode())
    assert policy.classes["chat"].slo == Slo(tpot_ms={Statistic.MEAN: ms})


def test_a_class_without_goals_has_the_models() -> None:
    of_model, own = Slo(tpot_ms={Statistic.P99: 40.0}), Slo(ttft_ms={Statistic.P50: 100.0})
    policy = Policy("m", slo=of_model, classes={"chat": ClassPolicy(), "code": ClassPolicy(slo=own)})
    assert policy.slos == {"default": of_model, "chat": of_model, "code": own}
    assert Policy("m", classes={"chat": ClassPolicy()}).slos == {}


def test_the_same_goals_are_one_requirement_of_the_law() -> None:
    goals = [Slo(tpot_ms={Statistic.P95: 30.0}), Slo(tpot_ms={Statistic.P95: 30.0}), Slo(tpot_ms={Statistic.P99: 30.0})]
    assert len({*goals}) == 2


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.95, 0.99])
def test_the_largest_mean_keeps_the_share_of_requests_within_the_bound(ratio: float) -> None:
    assert within_ratio(largest_mean(30.0, ratio), 30.0) == pytest.approx(ratio)

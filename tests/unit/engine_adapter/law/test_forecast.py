"""Predictions from an engine's own estimates: of K in force, of another choice, and of K by load."""

from collections import Counter

import numpy as np
import pytest

from specpilot.engine_adapter.evidence.request_acceptance import UNPROBED
from specpilot.engine_adapter.law import forecast
from specpilot.engine_adapter.law.batch_choice import Choice, Estimates, Requirements, chosen
from specpilot.engine_adapter.law.contexts import REQUIREMENT_AT
from specpilot.engine_adapter.law.forecast import (
    Decodes,
    breaks_slo,
    chosen_k,
    fixed_k,
    k_by_load,
    loads,
    out_of_reach,
    predicted,
    ranges,
    slowest_s,
)
from specpilot.engine_adapter.law.graphs import Graphs
from specpilot.engine_adapter.law.prices import KNOTS, PARTS, Coefficients, Prices
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.questions import ALL_CLASSES
from specpilot.policy.schedule import ClassGuidance, Guidance, KRange

K_MAX, MOST = 4, 32
LOW, HIGH = 2, 6  # bands


def estimates(slowdown: float = 1.0) -> Estimates:
    """Steps of 10 ms, 1 ms for the drafter, and 0.1 ms for each token to verify; band 6 accepts 9 of 10 tokens."""
    parts = dict.fromkeys(PARTS, 0.0) | {"base": 0.010, "drafter": 0.001}
    prices = Prices(Coefficients(tuple(parts.values()), (1e-4,) * len(KNOTS)), MOST * (1 + K_MAX))
    acceptance = np.array([[0.1]] * 4 + [[0.9]] * 4) ** np.arange(1, K_MAX + 1)
    lengths = np.concatenate([np.ones((8, 1)), 1 + np.cumsum(acceptance, axis=1)], axis=1)
    return Estimates(lengths, prices, slowdown)


def requirements(**classes: ClassGuidance) -> Requirements:
    return Requirements.of(Guidance(classes={"default": ClassGuidance(), **classes}), K_MAX)


BATCH = Counter({Decodes("code", HIGH, 1): 6, Decodes("code", LOW, 1): 2, Decodes("default", HIGH | UNPROBED, 0): 1})
FREE = requirements(code=ClassGuidance(weight=2.0))


def test_the_chosen_k_is_the_laws_and_does_not_touch_its_choosers() -> None:
    shared = estimates()
    k_of = chosen_k(shared.apart(lambda: None), FREE, BATCH)
    counts = Counter({1 << REQUIREMENT_AT | HIGH: 6, 1 << REQUIREMENT_AT | LOW: 2, HIGH | UNPROBED: 1})
    expected = chosen(estimates(), FREE, counts).k_of
    assert list(k_of.values()) == [expected[code] for code in counts]
    assert k_of[Decodes("code", HIGH, 1)] > k_of[Decodes("code", LOW, 1)]
    assert shared.choosers == {}


def test_a_prediction_is_the_step_of_the_batch_with_these_k() -> None:
    in_force = predicted(estimates(), FREE, BATCH, {group: group.k for group in BATCH})
    slower = predicted(estimates(slowdown=2.0), FREE, BATCH, {group: group.k for group in BATCH})
    drafted, decodes = 8, 9
    step_s = 0.010 + 0.001 + (decodes + drafted) * 1e-4
    tokens = 2.0 * (6 * 1.9 + 2 * 1.1) + 1.0
    assert (in_force.step_s, slower.step_s) == pytest.approx((step_s, 2 * step_s))
    assert in_force.throughput == pytest.approx(tokens / step_s)
    assert slower.throughput == pytest.approx(tokens / step_s / 2)
    assert in_force.k == {"code": 1.0, "default": 0.0}
    assert in_force.itl_ms == pytest.approx({"code": 1e3 * step_s * 8 / (6 * 1.9 + 2 * 1.1), "default": 1e3 * step_s})


def test_a_fixed_k_is_that_of_the_class_or_of_default() -> None:
    assert list(fixed_k({"default": 3, "code": 2}, BATCH).values()) == [2, 2, 3]


def test_an_slo_is_broken_by_the_static_k_alone_or_not_at_all() -> None:
    def found(slo_ms: float | None, static_k: int) -> bool | None:
        asked = requirements(code=ClassGuidance(weight=2.0, tpot_bound_ms=slo_ms))
        counts = Counter({1 << REQUIREMENT_AT | HIGH: 8})
        return breaks_slo(chosen(estimates(), asked, counts), static_k)

    assert found(None, 0) is None
    assert (found(8.0, 0), found(8.0, 3)) == (True, False)  # a step at K = 0 takes 10.8 ms a token
    assert found(0.1, 0) is False  # no choice keeps it


def test_k_by_load_is_the_mean_k_of_each_class_and_of_all_requests() -> None:
    seen, numbers = list[None](), [1, 2, 8, 32]
    rows, kept = k_by_load(estimates().apart(lambda: seen.append(None)), FREE, BATCH, numbers)
    assert set(rows) == {"code", "default", ALL_CLASSES}
    assert all((row[0].lo, row[-1].hi) == (1, 32) for row in rows.values())
    assert kept == {}
    one_class, _ = k_by_load(estimates(), FREE, Counter({Decodes("code", HIGH, 0): 5}), numbers)
    for number in numbers:
        code = (1 << REQUIREMENT_AT) | HIGH
        k = chosen(estimates(), FREE, Counter({code: number})).k_of[code]
        [found] = [item.k for item in one_class["code"] if item.lo <= number <= item.hi]
        assert found == k
    assert one_class["code"] == one_class[ALL_CLASSES]
    assert len(seen) > len(numbers)  # other threads ran in between


def test_a_bound_is_kept_up_to_a_load() -> None:
    """At K = 0 a step of n decodes takes 10 ms and 0.1 ms for each, and no draft of a low band helps."""
    batch = Counter({Decodes("code", LOW, 0): 1})
    for slo_ms, most in ((10.85, 8), (9.0, 0), (99.0, 32)):
        asked = requirements(code=ClassGuidance(tpot_bound_ms=slo_ms))
        assert k_by_load(estimates(), asked, batch, [1, 4, 8, 16, 32])[1] == {"code": most}


def test_a_bound_that_is_kept_to_the_last_digit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where K could keep a bound that the choice exceeds, the prediction is the bound itself, in seconds."""
    slo_ms = next(ms for ms in np.arange(10.0, 20.0, 0.001).tolist() if ms / 1000 * 1000 > ms)
    monkeypatch.setattr(forecast, "slowest_s", lambda _: {1: slo_ms / 1000})
    asked, batch = requirements(code=ClassGuidance(tpot_bound_ms=slo_ms)), Counter({Decodes("code", LOW, 0): 1})
    assert k_by_load(estimates(), asked, batch, [1, 4])[1] == {"code": 4}


@pytest.mark.parametrize(
    ("statistic", "slo_ms", "is_out_of_reach"),
    [
        ("mean", 12.0, False),  # K keeps it
        ("mean", 10.5, True),  # fewer requests would
        ("mean", 10.0, False),  # a request alone misses it
        ("p95", 14.0, False),
        ("p95", 12.5, True),  # the mean of 11.6 ms keeps it, and more than 5 % of the requests do not
        ("p95", 12.0, False),
    ],
)
def test_a_bound_is_out_of_reach_if_only_fewer_requests_would_keep_it(
    statistic: str, slo_ms: float, is_out_of_reach: bool
) -> None:
    slo, counts = Slo(tpot_ms={Statistic(statistic): slo_ms}), Counter({1 << REQUIREMENT_AT | LOW: 16})
    asked = requirements(code=ClassGuidance(slo=slo, tpot_bound_ms=slo_ms))
    choice = chosen(estimates(), asked, counts)
    assert (out_of_reach(choice, slowest_s(choice)) == {1}) is is_out_of_reach


def test_the_slowest_group_of_a_bound_is_predicted() -> None:
    asked, counts = (
        requirements(code=ClassGuidance(tpot_bound_ms=50.0)),
        Counter({1 << REQUIREMENT_AT | HIGH: 2, 1 << REQUIREMENT_AT | LOW: 2, HIGH: 1}),
    )
    k_of = {1 << REQUIREMENT_AT | HIGH: 1, 1 << REQUIREMENT_AT | LOW: 0, HIGH: 0}
    choice = Choice(estimates(2.0), asked, counts, k_of)
    assert slowest_s(choice) == pytest.approx({1: 2 * (0.011 + 7e-4)})
    faster = choice._replace(requirements=requirements(code=ClassGuidance(tpot_bound_ms=22.0)))
    assert slowest_s(faster._replace(fastest=dict.fromkeys(k_of, 0))) == pytest.approx({1: 0.022})
    fast = faster._replace(requirements=requirements(code=ClassGuidance(tpot_bound_ms=20.0)))
    assert slowest_s(fast._replace(fastest=dict.fromkeys(k_of, 0))) == pytest.approx({1: 2 * (0.010 + 5e-4)})
    assert slowest_s(Choice(estimates(), FREE, counts, k_of)) == {}


@pytest.mark.parametrize(
    ("statistic", "slow", "is_kept"),
    [("p50", 4, True), ("p90", 1, True), ("p90", 4, False), ("p99", 1, False), ("mean", 1, True), ("mean", 8, False)],
)
def test_a_few_requests_that_no_k_makes_fast_enough_do_not_break_a_percentile(
    statistic: str,
    slow: int,
    is_kept: bool,
) -> None:
    """Those of a low band take 12 ms or more for a token at any K, those of a high one half as long."""
    asked = requirements(
        code=ClassGuidance(tpot_bound_ms=8.0, slo=Slo(tpot_ms={Statistic(statistic): 8.0})),
    )
    counts = Counter({1 << REQUIREMENT_AT | HIGH: 10 - slow, 1 << REQUIREMENT_AT | LOW: slow})
    assert (slowest_s(chosen(estimates(), asked, counts))[1] == pytest.approx(0.008)) is is_kept


def test_a_batch_is_scaled_to_each_number_as_whole_requests() -> None:
    batch = Counter({Decodes("default", band, 0): 1 for band in range(8)})
    assert k_by_load(estimates(), FREE, batch, [1])[0][ALL_CLASSES][0].hi == 1


def test_the_loads_are_dense_where_few_run_and_meet_the_ends_of_cuda_graphs() -> None:
    assert loads(3, K_MAX, None) == [1, 2, 3]
    points = loads(256, 7, None)
    assert points[:9] == [*range(1, 9), 11]
    assert (points[-1], len(points)) == (256, 23)
    graphs = Graphs("FULL", mixed=(8, 64), drafter=(48,))
    ends = {64 // (1 + k) + 1 for k in range(8)} | {48 // (2 * k) + 1 for k in range(1, 8)}
    assert ends <= set(loads(256, 7, graphs))
    assert max(loads(20, 7, graphs)) == 20


def test_neighbours_with_one_k_are_one_range() -> None:
    assert ranges([1, 2, 5, 9], [3, 3, 2, 2]) == (KRange(1, 4, 3), KRange(5, 9, 2))

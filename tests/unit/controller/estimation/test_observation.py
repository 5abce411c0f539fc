from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot.controller.estimation.observation import (
    Evidence,
    Observation,
    Series,
    Snapshot,
    compare,
    evidence_of,
)
from specpilot.controller.telemetry.exposition import PageReader
from specpilot.policy import engine_metrics as names

TRIAL = Series(names.TRIALS, ("4", "1"))
RUNNING = Series(names.RUNNING_DECODES, ("code",))
STEP = Series(names.STEPS, ("decode",))
PAGE = f"""# HELP {names.TRIALS} text
# TYPE {names.TRIALS} counter
{names.TRIALS}{{model_name="demo",band="4",position="1"}} 12.0
{names.DRAFTS}{{k="2",traffic_class="a \\"b\\"}} c",band="4",model_name="demo"}} 3 1712345678
{names.TRIALS}{{model_name="demo",position="3"}} 5.0
{names.ACCEPTS}{{model_name="demo",band="4",position="1"}} NaN
{names.DECODE_TOKENS}{{model_name="demo",traffic_class="code",band="4"}} 7.0
{names.DECODE_TOKENS}{{model_name="demo",traffic_class="code",band="4",pid="2"}} 1.0
{names.PREFIX}trials_created{{model_name="demo",band="4",position="1"}} 1.7e9
{names.STEPS}{{model_name="demo",kind="decode"}} 4.0
{names.STEPS}{{model_name="demo",kind="prefill"
{names.RUNNING_DECODES}{{model_name="demo",traffic_class="code"}} -1
vllm:num_requests_running 3
"""


def seen(values: dict[Series, float], at: float = 0.0) -> Observation:
    return Observation("one", "demo", "cpu", at, 5.0, values)


def changes(before: Observation | None, after: Observation) -> dict[Series, float]:
    return compare(before, after).gained


def test_only_our_lines_with_all_labels_and_a_number_are_read() -> None:
    assert PageReader().read(PAGE) == {
        TRIAL: 12.0,
        Series(names.DRAFTS, ('a "b"} c', "4", "2")): 3.0,
        Series(names.DECODE_TOKENS, ("code", "4")): 8.0,
        STEP: 4.0,
    }


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    PageReader().read(text)
    PageReader().read(names.TRIALS + text)


def test_the_first_scrape_is_no_evidence() -> None:
    assert changes(None, seen({TRIAL: 100.0, STEP: 7.0})) == {}


def test_counters_give_differences_and_gauges_their_value() -> None:
    before = seen({TRIAL: 10.0, RUNNING: 5.0})
    assert changes(before, seen({TRIAL: 15.0, RUNNING: 2.0, STEP: 3.0}, 1.0)) == {TRIAL: 5.0, RUNNING: 2.0, STEP: 3.0}


def test_a_gauge_that_fell_is_no_restart_and_one_that_vanished_is_gone() -> None:
    breaks_slo = Series(names.STATIC_BREAKS_SLO, ())
    before = seen({TRIAL: 10.0, RUNNING: 2.0, breaks_slo: 1.0})
    found = compare(before, seen({TRIAL: 15.0, RUNNING: 1.0}, 1.0))
    assert found.gained == {TRIAL: 5.0, RUNNING: 1.0}
    assert found.merged.values == {TRIAL: 15.0, RUNNING: 1.0}


def test_a_repeated_scrape_gives_nothing() -> None:
    assert changes(seen({TRIAL: 10.0}), seen({TRIAL: 10.0}, 1.0)) == {}


def test_a_fallen_counter_or_a_new_start_is_a_restart() -> None:
    before = seen({TRIAL: 10.0, STEP: 50.0})
    assert changes(before, seen({TRIAL: 60.0, STEP: 4.0}, 1.0)) == {TRIAL: 60.0, STEP: 4.0}
    again = replace(seen({TRIAL: 60.0, STEP: 60.0}, 1.0), started_at=6.0)
    assert changes(before, again) == {TRIAL: 60.0, STEP: 60.0}


def test_a_series_that_vanished_and_is_back_brings_only_what_it_gained() -> None:
    before, without = seen({TRIAL: 10.0, STEP: 50.0}), seen({TRIAL: 12.0}, 1.0)
    assert changes(before, without) == {TRIAL: 2.0}
    kept = compare(before, without).merged
    assert changes(kept, seen({TRIAL: 12.0, STEP: 53.0}, 2.0)) == {STEP: 3.0}


def test_so_it_does_when_another_appears_as_it_vanishes() -> None:
    before, other = seen({TRIAL: 10.0, STEP: 50.0}), Series(names.STEPS, ("prefill",))
    gained, kept = compare(before, seen({STEP: 51.0, other: 2.0}, 1.0))
    assert gained == {STEP: 1.0, other: 2.0}
    assert changes(kept, seen({TRIAL: 11.0, STEP: 51.0, other: 2.0}, 2.0)) == {TRIAL: 1.0}


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_no_difference_is_negative(values: list[float]) -> None:
    for at, (one, two) in enumerate(pairwise(values)):
        assert all(gain >= 0 for gain in changes(seen({TRIAL: one}), seen({TRIAL: two}, float(at + 1))).values())


def test_engines_are_added_up_and_steps_are_kept_by_kind() -> None:
    steps = {
        Series(names.STEPS, ("decode",)): 2.0,
        Series(names.STEPS, (names.CATCH_UP,)): 1.0,
        Series(names.STEP_SECONDS, ("decode",)): 0.02,
        Series(names.STEP_SECONDS, (names.CATCH_UP,)): 0.03,
        Series(names.DECODE_SECONDS, ()): 0.015,
        Series(names.STATIC_BREAKS_SLO, ()): 1.0,
    }
    found = evidence_of([{TRIAL: 3.0, RUNNING: 1.0, **steps}, {TRIAL: 4.0, RUNNING: 2.0, **steps}])
    assert found.trials == {(4, 1): 7.0}
    assert sum(found.running.values()) == 3.0
    assert (found.steps, found.step_seconds, found.decode_s) == (6.0, pytest.approx(0.1), 0.03)
    assert found.static_breaks_slo == 2.0
    assert Snapshot(0.0, 1.0, found).step_s == pytest.approx((0.03 + 0.06) / 6)


def test_the_throughput_is_weighted_tokens_per_second_of_decoding_and_later_catching_up() -> None:
    evidence = Evidence(
        decode_tokens={("a", 3): 8.0, ("b", 3): 6.0},
        steps_by={"decode": 2.0, names.CATCH_UP: 1.0},
        seconds_by={"decode": 0.08, "prefill": 1.0, names.CATCH_UP: 0.02},
        decode_s=0.08,
    )
    snapshot = Snapshot(0.0, 1.0, evidence)
    assert snapshot.weighted_throughput({"default": 1.0}) == pytest.approx(14 / 0.1)
    assert snapshot.weighted_throughput({"default": 1.0, "b": 2.0}) == pytest.approx(20 / 0.1)
    # An engine that does not report the time of decoding has no throughput.
    assert snapshot._replace(evidence=replace(evidence, decode_s=0.0)).weighted_throughput({}) is None
    assert snapshot._replace(evidence=replace(evidence, decode_tokens={})).weighted_throughput({}) is None


def test_malformed_label_values_are_skipped() -> None:
    found = evidence_of([{Series(names.TRIALS, ("4", "x")): 1.0, Series(names.DRAFTS, ("a", "", "0")): 1.0}])
    assert found.trials == {}
    assert found.drafts == {}

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from controller.exposition import parse
from controller.observation import Cell, CellSums, Observation, Series, changes, evidence_of
from policy import engine_metrics as names

TRIAL = Series(names.TRIALS, ("code", "1"))
RUNNING = Series(names.RUNNING_DECODES, ("code",))
STEP = Series(names.STEPS, ("8", "16", "1"))
PAGE = f"""# HELP {names.TRIALS} text
# TYPE {names.TRIALS} counter
{names.TRIALS}{{model_name="demo",traffic_class="code",position="1"}} 12.0
{names.TRIALS}{{position="2",traffic_class="a \\"b\\"}} c",model_name="demo"}} 3 1712345678
{names.TRIALS}{{model_name="demo",position="3"}} 5.0
{names.ACCEPTS}{{model_name="demo",traffic_class="code",position="1"}} NaN
{names.PREFILL_STEPS}{{model_name="demo"}} 7.0
{names.PREFILL_STEPS}{{model_name="demo",pid="2"}} 1.0
{names.PREFIX}trials_created{{model_name="demo",traffic_class="code",position="1"}} 1.7e9
{names.STEPS}{{model_name="demo",decodes="8",verified="16",width="1"}} 4.0
{names.STEPS}{{model_name="demo",decodes="8"
{names.RUNNING_DECODES}{{model_name="demo",traffic_class="code"}} -1
vllm:num_requests_running 3
"""


def seen(values: dict[Series, float], at: float = 0.0) -> Observation:
    return Observation("one", "demo", "cpu", at, 5.0, values)


def test_only_our_lines_with_all_labels_and_a_number_are_read() -> None:
    assert parse(PAGE) == {
        TRIAL: 12.0,
        Series(names.TRIALS, ('a "b"} c', "2")): 3.0,
        Series(names.PREFILL_STEPS, ()): 8.0,
        STEP: 4.0,
    }


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    parse(text)
    parse(names.TRIALS + text)


def test_the_first_scrape_is_a_starting_line_but_for_step_times() -> None:
    assert changes(None, seen({TRIAL: 100.0, STEP: 7.0})) == {STEP: 7.0}


def test_counters_give_differences_and_gauges_their_value() -> None:
    before = seen({TRIAL: 10.0, RUNNING: 5.0})
    assert changes(before, seen({TRIAL: 15.0, RUNNING: 2.0, STEP: 3.0}, 1.0)) == {TRIAL: 5.0, RUNNING: 2.0, STEP: 3.0}


def test_a_repeated_scrape_gives_nothing() -> None:
    assert changes(seen({TRIAL: 10.0}), seen({TRIAL: 10.0}, 1.0)) == {}


def test_a_fallen_or_vanished_counter_or_a_new_start_is_a_restart() -> None:
    before = seen({TRIAL: 10.0, STEP: 50.0})
    assert changes(before, seen({TRIAL: 60.0, STEP: 4.0}, 1.0)) == {TRIAL: 60.0, STEP: 4.0}
    assert changes(before, seen({TRIAL: 60.0}, 1.0)) == {TRIAL: 60.0}
    again = replace(seen({TRIAL: 60.0, STEP: 60.0}, 1.0), started_at=6.0)
    assert changes(before, again) == {TRIAL: 60.0, STEP: 60.0}


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=20))
def test_no_difference_is_negative(values: list[float]) -> None:
    for at, (one, two) in enumerate(pairwise(values)):
        assert all(gain >= 0 for gain in changes(seen({TRIAL: one}), seen({TRIAL: two}, float(at + 1))).values())


def test_engines_are_added_up_and_cells_are_whole() -> None:
    cell = {
        Series(names.STEPS, ("8", "16", "1")): 2.0,
        Series(names.STEP_SECONDS, ("8", "16", "1")): 0.02,
        Series(names.STEP_DECODES, ("8", "16", "1")): 17.0,
        Series(names.STEP_VERIFIED, ("8", "16", "1")): 34.0,
    }
    found = evidence_of([{TRIAL: 3.0, RUNNING: 1.0, **cell}, {TRIAL: 4.0, RUNNING: 2.0, **cell}])
    assert found.trials == {("code", 1): 7.0}
    assert sum(found.running.values()) == 3.0
    assert found.cells == {Cell(8, 16, 1): CellSums(4.0, 0.04, 34.0, 68.0)}


def test_malformed_label_values_are_skipped() -> None:
    found = evidence_of([{Series(names.TRIALS, ("code", "x")): 1.0, Series(names.STEPS, ("8", "", "1")): 1.0}])
    assert found.trials == {}
    assert found.cells == {}

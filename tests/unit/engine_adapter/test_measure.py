from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.measure import CatchUpCell, Cell, CellSums, Draft, Meter, Outcome, StepShape, rounded

NAMES = st.sampled_from(["code", "chat"])
DRAFTS = st.builds(
    lambda name, k, share, probe, refused: Draft(name, k, round(share * k), probe, refused),
    NAMES,
    st.integers(1, 7),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
PLAIN = st.dictionaries(NAMES, st.integers(1, 9))


@given(st.lists(st.tuples(st.lists(DRAFTS, max_size=5), PLAIN, st.lists(NAMES, max_size=3)), max_size=20))
def test_counts_equal_a_brute_force_reading_of_every_draft(
    steps: list[tuple[list[Draft], dict[str, int], list[str]]],
) -> None:
    meter = Meter()
    trials: Counter[tuple[str, int]] = Counter()
    accepts: Counter[tuple[str, int]] = Counter()
    plain: Counter[str] = Counter()
    delivered: Counter[str] = Counter()
    for drafts, undrafted, refused in steps:
        tokens = Counter(undrafted) + Counter({draft.traffic_class: draft.accepted + 1 for draft in drafts})
        outcome = Outcome(drafts, Counter(undrafted), refused, tokens)
        meter.commit(StepShape(len(drafts), 0, 7, has_prefill=False), 0.01, outcome)
        plain.update(undrafted)
        delivered.update(tokens)
        trials.update((name, 1) for name in refused)
        for draft in drafts:
            words = ["accepted"] * draft.accepted + ["rejected"] * (draft.k > draft.accepted)
            words += ["refused"] * (draft.k == draft.accepted and draft.is_refused)
            for position, word in enumerate(words, start=1):
                trials[draft.traffic_class, position] += 1
                accepts[draft.traffic_class, position] += word == "accepted"
    evidence = meter.take()
    every = [draft for drafts, _, _ in steps for draft in drafts]
    assert {name: evidence.drafts[name, 0] for name in plain} == plain
    assert evidence.trials == trials
    assert evidence.accepts == +accepts
    assert sum(evidence.drafts.values()) == len(every) + plain.total()
    assert evidence.tokens == delivered
    assert sum(evidence.probes.values()) == sum(draft.is_probe for draft in every)


def test_a_cut_draft_says_nothing_about_the_position_after_the_cut() -> None:
    meter = Meter()
    meter.commit(StepShape(1, 4, 3, has_prefill=False), 0.01, Outcome([Draft("code", 3, 3)]))
    assert dict(meter.take().trials) == {("code", 1): 1, ("code", 2): 1, ("code", 3): 1}


def test_a_draft_that_the_grammar_cut_was_refused_after_the_cut() -> None:
    """Over drafts of which a grammar refuses every third token, the acceptance at position 3 is 0 and not unknown."""
    meter = Meter()
    shape = StepShape(1, 3, 7, has_prefill=False)
    meter.commit(shape, 0.01, Outcome([Draft("json", 2, 2, is_refused=True)]))
    meter.commit(shape, 0.01, Outcome([Draft("json", 2, 1, is_refused=True)]))
    meter.commit(shape, 0.01, Outcome(plain=Counter(json=1), refused=["json"]))
    evidence = meter.take()
    assert evidence.trials == {("json", 1): 3, ("json", 2): 2, ("json", 3): 1}
    assert evidence.accepts == {("json", 1): 2, ("json", 2): 1}
    assert evidence.drafts == {("json", 2): 2, ("json", 0): 1}


def test_steps_in_which_the_drafter_caught_up_are_kept_apart() -> None:
    meter = Meter()
    meter.commit(StepShape(8, 8, 5, has_prefill=False, read=40), 0.030, Outcome())
    meter.commit(StepShape(9, 64, 0, has_prefill=False, read=56), 0.020, Outcome())
    meter.commit(StepShape(8, 8, 5, has_prefill=True, read=9), 0.040, Outcome())
    evidence = meter.take()
    assert not evidence.cells
    assert evidence.catch_ups[CatchUpCell(8, 5)] == CellSums(1, 0.030, 8, 8, 40)
    assert evidence.catch_ups[CatchUpCell(8, 0)] == CellSums(1, 0.020, 9, 64, 56)
    assert (evidence.prefill_steps, evidence.prefill_seconds) == (1, 0.040)


def test_decode_only_steps_are_kept_apart_from_steps_with_prefill() -> None:
    meter = Meter()
    meter.commit(StepShape(8, 32, 3, has_prefill=False), 0.010, Outcome())
    meter.commit(StepShape(8, 30, 3, has_prefill=False), 0.008, Outcome())
    meter.commit(StepShape(8, 90, 3, has_prefill=True), 0.050, Outcome())
    meter.commit(StepShape(0, 0, 1, has_prefill=True), 0.050, Outcome())
    evidence = meter.take()
    assert set(evidence.cells) == {Cell(8, 32, 3), Cell(8, 28, 3)}
    assert evidence.cells[Cell(8, 28, 3)].verified == 30
    assert (evidence.prefill_steps, evidence.prefill_seconds) == (2, pytest.approx(0.1))


@given(
    st.lists(
        st.tuples(st.lists(DRAFTS, max_size=3), PLAIN, st.lists(NAMES, max_size=2), st.integers(1, 4)), max_size=90
    ),
    st.integers(1, 90),
)
def test_a_step_that_comes_to_the_very_same_counts_as_any_other(
    steps: list[tuple[list[Draft], dict[str, int], list[str], int]], taken_after: int
) -> None:
    in_runs, one_by_one = Meter(), Meter()
    for number, (drafts, plain, refused, count) in enumerate(steps, start=1):
        shape = StepShape(1 + len(drafts), 9, number % 3, has_prefill=number % 4 == 3, read=number % 2)
        outcome = Outcome(drafts, plain, refused, plain)
        for _ in range(count):
            in_runs.commit(shape, 0.25, outcome)
            one_by_one.commit(shape, 0.25, replace(outcome))
            if number % taken_after == 0:
                assert in_runs.take() == one_by_one.take()
    assert in_runs.take() == one_by_one.take()


def test_taking_empties_the_meter() -> None:
    meter = Meter()
    meter.commit(StepShape(1, 1, 0, has_prefill=False), 0.01, Outcome(plain=Counter(code=1)))
    assert sum(meter.take().drafts.values()) == 1
    assert sum(meter.take().drafts.values()) == 0


@given(st.integers(0, 100_000))
def test_the_grid_rounds_down_by_less_than_a_fifth(count: int) -> None:
    assert rounded(count) <= count
    assert count - rounded(count) <= count / 5
    assert rounded(rounded(count)) == rounded(count)


def test_the_grid_bounds_the_number_of_series() -> None:
    assert len({rounded(count) for count in range(1, 4097)}) <= 45

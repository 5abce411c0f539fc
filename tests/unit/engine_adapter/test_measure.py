from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_adapter.measure import Cell, Draft, Meter, StepShape, rounded

DRAFTS = st.builds(
    lambda name, k, share, probe: Draft(name, k, round(share * k), probe),
    st.sampled_from(["code", "chat"]),
    st.integers(1, 7),
    st.floats(0, 1),
    st.booleans(),
)


PLAIN = st.dictionaries(st.sampled_from(["code", "chat"]), st.integers(1, 9))


@given(st.lists(st.tuples(st.lists(DRAFTS, max_size=5), PLAIN), max_size=20))
def test_counts_equal_a_brute_force_reading_of_every_draft(steps: list[tuple[list[Draft], dict[str, int]]]) -> None:
    meter = Meter()
    trials: Counter[tuple[str, int]] = Counter()
    accepts: Counter[tuple[str, int]] = Counter()
    plain: Counter[str] = Counter()
    for drafts, undrafted in steps:
        meter.commit(StepShape(len(drafts), 0, 7, has_prefill=False), 0.01, drafts, undrafted)
        plain.update(undrafted)
        for draft in drafts:
            outcome = ["accepted"] * draft.accepted + ["rejected"] * (draft.k > draft.accepted)
            for position, word in enumerate(outcome, start=1):
                trials[draft.traffic_class, position] += 1
                accepts[draft.traffic_class, position] += word == "accepted"
    evidence = meter.take()
    every = [draft for drafts, _ in steps for draft in drafts]
    assert {name: evidence.drafts[name, 0] for name in plain} == plain
    assert evidence.trials == trials
    assert evidence.accepts == +accepts
    assert sum(evidence.drafts.values()) == len(every) + plain.total()
    assert sum(evidence.tokens.values()) == sum(draft.accepted + 1 for draft in every) + plain.total()
    assert sum(evidence.probes.values()) == sum(draft.is_probe for draft in every)


def test_a_cut_draft_says_nothing_about_the_position_after_the_cut() -> None:
    meter = Meter()
    meter.commit(StepShape(1, 4, 3, has_prefill=False), 0.01, [Draft("code", 3, 3, is_probe=False)], {})
    assert dict(meter.take().trials) == {("code", 1): 1, ("code", 2): 1, ("code", 3): 1}


def test_decode_only_steps_are_kept_apart_from_steps_with_prefill() -> None:
    meter = Meter()
    meter.commit(StepShape(8, 32, 3, has_prefill=False), 0.010, [], {})
    meter.commit(StepShape(8, 30, 3, has_prefill=False), 0.008, [], {})
    meter.commit(StepShape(8, 90, 3, has_prefill=True), 0.050, [], {})
    meter.commit(StepShape(0, 0, 1, has_prefill=True), 0.050, [], {})
    evidence = meter.take()
    assert set(evidence.cells) == {Cell(8, 32, 3), Cell(8, 28, 3)}
    assert evidence.cells[Cell(8, 28, 3)].verified == 30
    assert (evidence.prefill_steps, evidence.prefill_seconds) == (2, pytest.approx(0.1))


def test_taking_empties_the_meter() -> None:
    meter = Meter()
    meter.commit(StepShape(1, 1, 0, has_prefill=False), 0.01, [], {"code": 1})
    assert sum(meter.take().drafts.values()) == 1
    assert sum(meter.take().drafts.values()) == 0


@given(st.integers(0, 100_000))
def test_the_grid_rounds_down_by_less_than_a_fifth(count: int) -> None:
    assert rounded(count) <= count
    assert count - rounded(count) <= count / 5
    assert rounded(rounded(count)) == rounded(count)


def test_the_grid_bounds_the_number_of_series() -> None:
    assert len({rounded(count) for count in range(1, 4097)}) <= 45

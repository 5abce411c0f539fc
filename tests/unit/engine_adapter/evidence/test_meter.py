from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from specpilot.engine_adapter.evidence.meter import (
    Cohort,
    Draft,
    Meter,
    Outcome,
    StepKind,
    StepShape,
    StepSums,
)
from specpilot.policy import engine_metrics as names

NAMES = st.builds(Cohort, st.sampled_from(["code", "chat"]), st.integers(0, 2), st.booleans())
DRAFTS = st.builds(
    lambda group, k, share, probe, refused: Draft(*group[:2], k, round(share * k), probe, refused, group.is_unprobed),
    NAMES,
    st.integers(1, 7),
    st.floats(0, 1),
    st.booleans(),
    st.booleans(),
)
PLAIN = st.dictionaries(NAMES, st.integers(1, 9))
REFUSED = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=3)


@given(st.lists(st.tuples(st.lists(DRAFTS, max_size=5), PLAIN, REFUSED), max_size=20))
def test_counts_equal_a_brute_force_reading_of_every_draft(
    steps: list[tuple[list[Draft], dict[Cohort, int], list[tuple[int, bool]]]],
) -> None:
    meter = Meter()
    trials: Counter[tuple[int, int]] = Counter()
    first_trials: Counter[tuple[int, int]] = Counter()
    accepts: Counter[tuple[int, int]] = Counter()
    first_accepts: Counter[tuple[int, int]] = Counter()
    plain: Counter[tuple[str, int]] = Counter()
    unprobed: Counter[tuple[str, int]] = Counter()
    delivered: Counter[tuple[str, int]] = Counter()
    for drafts, undrafted, refused in steps:
        tokens = Counter(undrafted) + Counter(
            {Cohort(draft.traffic_class, draft.band): draft.accepted + 1 for draft in drafts}
        )
        outcome = Outcome(drafts, Counter(undrafted), refused, tokens)
        meter.commit(StepShape(len(drafts), 0, 7), 0.01, 5, outcome)
        for (name, band, is_unprobed), count in undrafted.items():
            plain[name, band] += count
            unprobed[name, band] += count if is_unprobed else 0
        for (name, band, _), count in tokens.items():
            delivered[name, band] += count
        trials.update((band, 1) for band, _ in refused)
        first_trials.update((band, 1) for band, is_unprobed in refused if is_unprobed)
        for draft in drafts:
            words = ["accepted"] * draft.accepted + ["rejected"] * (draft.k > draft.accepted)
            words += ["refused"] * (draft.k == draft.accepted and draft.is_refused)
            for position, word in enumerate(words, start=1):
                trials[draft.band, position] += 1
                accepts[draft.band, position] += word == "accepted"
                first_trials[draft.band, position] += draft.is_unprobed
                first_accepts[draft.band, position] += draft.is_unprobed and word == "accepted"
    evidence = meter.take_evidence()
    every = [draft for drafts, _, _ in steps for draft in drafts]
    assert {group: evidence.drafts[*group, 0] for group in plain} == plain
    assert evidence.unprobed == +unprobed
    assert evidence.trials == trials
    assert evidence.first_trials == +first_trials
    assert evidence.accepts == +accepts
    assert evidence.first_accepts == +first_accepts
    assert sum(evidence.drafts.values()) == len(every) + plain.total()
    assert evidence.tokens == delivered
    assert sum(evidence.probes.values()) == sum(draft.is_probe for draft in every)


def test_steps_are_counted_by_kind() -> None:
    """A step that prefills is none of the others, whatever else it does."""
    meter = Meter()
    for shape, seconds in (
        (StepShape(8, 32, 24), 0.5),
        (StepShape(8, 30, 31, is_uniform=False), 0.25),
        (StepShape(8, 8, 40, read=40), 2.0),
        (StepShape(9, 70, 0, read=56), 1.0),
        (StepShape(8, 8, 40, prefill=100, read=9), 4.0),
        (StepShape(7, 90, 24, prefill=40), 8.0),
        (StepShape(0, 0, 0, prefill=50), 16.0),
    ):
        meter.commit(shape, seconds, 400, Outcome())
    assert meter.take_evidence().steps == {
        StepKind.DECODE: StepSums(2, 0.75, 16),
        StepKind.CATCH_UP: StepSums(2, 3.0, 17),
        StepKind.PREFILL: StepSums(2, 12.0, 15),
        StepKind.PROMPT: StepSums(1, 16.0, 0),
    }


def test_kinds_have_the_names_that_readers_of_the_metrics_know() -> None:
    assert (StepKind.CATCH_UP, StepKind.PROMPT) == (names.CATCH_UP, names.PROMPT)


def test_steps_are_also_kept_one_by_one_with_their_shape_their_seconds_and_their_context() -> None:
    meter, outcome = Meter(), Outcome()
    steps = [(StepShape(8, 30, 31, 40, 9, is_uniform=False), 0.5, 400), *[(StepShape(8, 8, 0), 0.25, 408)] * 2]
    for step in steps:
        meter.commit(*step, outcome if step[0].prefill == 0 else Outcome())
    meter.take_evidence()
    assert meter.take_steps() == steps
    assert meter.take_steps() == []


def test_of_the_steps_one_by_one_the_latest_are_kept() -> None:
    meter, outcome = Meter(), Outcome()
    for number in range(10_000):
        meter.commit(StepShape(1, 1, 0), 0.25, number, outcome)
    contexts = [context for _, _, context in meter.take_steps()]
    assert contexts == list(range(10_000 - len(contexts), 10_000))
    assert 1000 < len(contexts) < 10_000
    assert meter.take_evidence().steps == {StepKind.DECODE: StepSums(10_000, 2500.0, 10_000)}


@given(
    st.lists(
        st.tuples(st.lists(DRAFTS, max_size=3), PLAIN, REFUSED, st.integers(1, 4)),
        max_size=90,
    ),
    st.integers(1, 90),
)
def test_a_step_that_comes_to_the_very_same_counts_as_any_other(
    steps: list[tuple[list[Draft], dict[Cohort, int], list[tuple[int, bool]], int]], taken_after: int
) -> None:
    in_runs, one_by_one = Meter(), Meter()
    for number, (drafts, plain, refused, count) in enumerate(steps, start=1):
        shape = StepShape(1 + len(drafts), 9, number % 3, prefill=number % 4 // 3, read=number % 2)
        outcome = Outcome(drafts, plain, refused, plain)
        for _ in range(count):
            in_runs.commit(shape, 0.25, number, outcome)
            one_by_one.commit(shape, 0.25, number, replace(outcome))
            if number % taken_after == 0:
                assert in_runs.take_evidence() == one_by_one.take_evidence()
    assert in_runs.take_evidence() == one_by_one.take_evidence()


def test_a_step_that_ends_while_the_evidence_is_taken_does_not_wait_and_counts_later() -> None:
    meter, shape = Meter(), StepShape(1, 1, 7)
    first, later = Draft("code", 2, 7, 3), Draft("code", 2, 5, 5)
    meter.commit(shape, 0.01, 5, Outcome([first]))
    parts: list[int] = []

    def between() -> None:
        if not parts:
            meter.commit(shape, 0.01, 5, Outcome([later]))
        parts.append(1)

    taken = meter.take_evidence(between)
    assert taken.drafts == {("code", 2, 7): 1}
    assert meter.take_evidence().drafts == {("code", 2, 5): 1}


def test_a_shape_without_the_tokens_that_were_not_verified_has_their_context_no_longer() -> None:
    shape = StepShape(2, 10, 8, is_uniform=False, draft_context=8 * 500)
    assert shape.cut(0) is shape
    assert shape.cut(2) == StepShape(2, 8, 8, is_uniform=False, draft_context=6 * 500)
    assert shape.cut(8) == StepShape(2, 2, 8)

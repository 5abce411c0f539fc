"""Which drafts, outcomes and tokens a step counts, and for which class, K and band."""

import pytest

from specpilot.policy.bands import BANDS, band_of
from tests.support.k_tables import table
from tests.support.planning import UP
from tests.support.stepped_engine import Engine, by_position, drafts, named, tokens


def test_each_draft_counts_for_its_class_and_as_a_probe_where_it_is_deeper_than_the_schedule() -> None:
    engine = Engine(table(default=1, code=5))
    engine.prefill("code_1", "chat_1")
    step = engine.begin(drafted={"code_1": 5, "chat_1": 7}, code_1=6, chat_1=8)
    engine.steps.note_draft("code_1", drafted=5, accepted=5, invalid=0)
    engine.steps.note_draft("chat_1", drafted=7, accepted=0, invalid=0)
    engine.end(step, code_1=6, chat_1=1)
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("code", 5): 1, ("default", 7): 1}
    assert +evidence.probes == {"default": 1}
    assert tokens(evidence) == {"code": 6, "default": 1}


def test_a_draft_within_a_ceiling_is_no_probe_and_counts_as_any_other() -> None:
    engine = Engine(table(1.0, default=5))
    engine.requests["a"] = named("a", k_max=2)
    engine.prefill("a")
    engine.verify("a", 2, 2)
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("default", 2): 1}
    assert (by_position(evidence.trials), +evidence.probes) == ({1: 1, 2: 1}, {})


def test_a_draft_is_held_against_the_schedule_under_which_it_was_made() -> None:
    """The asynchronous scheduler plans the next step before it has the outcome of the last one."""
    engine = Engine(table(default=5))
    engine.prefill("a")
    step = engine.begin(drafted={"a": 5}, a=6)
    engine.table = table(default=2)
    following = engine.begin(drafted={"a": 5}, a=6)
    for output in (step, following):
        engine.steps.note_draft("a", drafted=5, accepted=5, invalid=0)
        engine.end(output, a=6)
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("default", 5): 2}
    assert not +evidence.probes


def test_placeholders_that_no_drafter_made_are_no_drafts() -> None:
    engine = Engine(table(default=7))
    engine.prefill("a")
    step = engine.begin(drafted={"a": 7, "joins": 7}, a=8, joins=8)
    engine.steps.note_draft("a", drafted=7, accepted=1, invalid=0)
    engine.steps.note_draft("joins", drafted=7, accepted=0, invalid=0)
    engine.end(step, a=2, joins=1)
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("default", 7): 1}
    assert tokens(evidence) == {"default": 2}


def test_a_token_that_the_grammar_refuses_was_tried_and_not_accepted() -> None:
    engine = Engine(table(default=5))
    engine.prefill("cut", "empty")
    engine.steps.states["cut"].grammar_allows = 2
    engine.steps.states["empty"].grammar_allows = 0
    step = engine.begin(drafted={"cut": 2}, cut=3, empty=1)
    engine.steps.note_draft("cut", drafted=2, accepted=2, invalid=0)
    engine.end(step, cut=3, empty=1)
    step = engine.begin(drafted={"cut": 5}, cut=6, empty=1)
    engine.steps.note_draft("cut", drafted=5, accepted=3, invalid=2)
    engine.end(step, cut=4, empty=1)
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("default", 0): 2, ("default", 2): 1, ("default", 3): 1}
    assert by_position(evidence.trials) == {1: 3, 2: 2, 3: 2, 4: 1}
    assert by_position(evidence.accepts) == {1: 2, 2: 2, 3: 1}
    assert evidence.first_trials == evidence.trials  # each of these drafts was planned before an outcome was known


def test_where_only_a_prefix_of_a_draft_was_verified_the_evidence_is_of_that_prefix() -> None:
    engine = Engine(table(default=5))
    engine.prefill("prefix", "nothing", "whole")
    step = engine.begin(drafted=dict.fromkeys(("prefix", "nothing", "whole"), 5), prefix=6, nothing=6, whole=6)
    before = engine.steps.states["nothing"].acceptance.drafts
    engine.steps.note_draft("prefix", drafted=5, accepted=2, invalid=0, verified=2)
    engine.steps.note_draft("nothing", drafted=5, accepted=0, invalid=0, verified=0)
    engine.steps.note_draft("whole", drafted=5, accepted=1, invalid=0, verified=5)
    engine.end(step, prefix=3, nothing=1, whole=2)
    assert engine.steps.states["nothing"].acceptance.drafts == before
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("default", 0): 1, ("default", 2): 1, ("default", 5): 1}
    assert by_position(evidence.trials) == {1: 2, 2: 2}
    assert by_position(evidence.accepts) == {1: 2, 2: 1}
    assert tokens(evidence) == {"default": 6}
    [(shape, _, _)] = engine.meter.take_steps()
    assert (shape.decodes, shape.verified, shape.is_uniform) == (3, 18 - 3 - 5, False)


def test_a_grammar_refuses_nothing_of_a_draft_that_was_cut_before_the_token_it_does_not_allow() -> None:
    engine = Engine(table(default=5))
    engine.prefill("cut")
    step = engine.begin(drafted={"cut": 5}, cut=6)
    engine.steps.note_draft("cut", drafted=5, accepted=2, invalid=2, verified=2)
    engine.end(step, cut=3)
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("default", 2): 1}
    assert by_position(evidence.trials) == {1: 1, 2: 1}


def test_a_new_schedule_may_know_the_class_of_a_running_request() -> None:
    engine = Engine(table(default=0))
    engine.prefill("code_1", "no class_1")
    engine.end(engine.begin(code_1=1, **{"no class_1": 1}), code_1=1, **{"no class_1": 1})
    assert drafts(engine.meter.take_evidence()) == {("default", 0): 2}
    engine.table = table(default=0, code=0)
    engine.end(engine.begin(code_1=1, **{"no class_1": 1}), code_1=1, **{"no class_1": 1})
    assert drafts(engine.meter.take_evidence()) == {("code", 0): 1, ("default", 0): 1}


def test_a_step_whose_outcome_vllm_dropped_is_not_counted() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    engine.begin(a=1)
    step = engine.begin(a=1)
    engine.steps.skip_to(step)
    engine.end(step, a=1)
    assert tokens(engine.meter.take_evidence()) == {"default": 1}


def test_evidence_counts_for_the_band_in_which_k_was_chosen() -> None:
    """In the asynchronous loop one more step is planned before an outcome is known, so bands lag by a step."""
    engine = Engine(table(default=UP))
    engine.prefill("a")
    state = engine.steps.states["a"]
    begins = state.band
    first = engine.begin(drafted={"a": state.k}, a=1 + state.k)
    second = engine.begin(drafted={"a": state.k}, a=1 + state.k)
    for output in (first, second):
        engine.steps.note_draft("a", drafted=3, accepted=0, invalid=0)
        engine.end(output, a=1)
    assert band_of(0.7) == begins
    assert state.acceptance.band < begins
    evidence = engine.meter.take_evidence()
    assert dict(evidence.drafts) == {("default", begins, 3): 2}
    assert dict(evidence.trials) == {(begins, 1): 2}
    assert dict(evidence.tokens) == {("default", begins): 2}


def test_a_draft_is_a_first_one_if_its_k_was_chosen_before_any_outcome_of_the_request() -> None:
    engine = Engine(table(default=UP))
    engine.prefill("a")
    state = engine.steps.states["a"]
    first = engine.begin(drafted={"a": state.k}, a=1 + state.k)
    second = engine.begin(drafted={"a": state.k}, a=1 + state.k)  # plans the third draft, before any outcome
    for output in (first, second):
        engine.steps.note_draft("a", drafted=3, accepted=1, invalid=0)
        engine.end(output, a=2)
    is_unprobed = []
    for _ in range(2):
        engine.verify("a", 3, 1)
        evidence = engine.meter.take_evidence()
        assert evidence.trials
        assert evidence.first_trials in ({}, evidence.trials)
        assert evidence.first_accepts in ({}, evidence.accepts)
        is_unprobed.append(bool(evidence.first_trials))
    assert is_unprobed == [True, False]


def test_a_request_is_unprobed_until_a_draft_of_it_was_verified() -> None:
    engine = Engine(table(1e-9, default=[0] * (BANDS - 1) + [7]))
    engine.prefill("a", "b")
    for _ in range(3):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    found = engine.meter.take_evidence()
    assert sum(found.unprobed.values()) == sum(found.drafts.values()) == 6
    engine.steps.states["a"].acceptance.note(0, 1)
    engine.table = table(1e-9, default=[0] * (BANDS - 1) + [7])  # planned anew, as after a draft that was verified
    for _ in range(3):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    assert sum(engine.meter.take_evidence().unprobed.values()) == 3  # b's


@pytest.mark.parametrize("ceiling", [None, 0])
def test_a_request_that_is_never_probed_does_not_count_as_unprobed(ceiling: int | None) -> None:
    """A class that is pinned, or a request with a ceiling of 0: no probe will ever show its acceptance."""
    bands = table(1e-9, default=[0] * (BANDS - 1) + [7])
    engine = Engine(table(1e-9, default=0) if ceiling is None else bands)
    engine.requests["a"] = named("a", **{} if ceiling is None else {"k_max": ceiling})
    engine.prefill("a")
    engine.end(engine.begin(a=1), a=1)
    found = engine.meter.take_evidence()
    assert (sum(found.unprobed.values()), sum(found.drafts.values())) == (0, 1)

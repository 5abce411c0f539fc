"""What bounds a request's K: its own ceiling, the tokens that it may or must still deliver, the drafter's length."""

import pytest

from specpilot.engine_adapter.plan.planner import Planner
from tests.support.k_tables import table
from tests.support.planning import K_MAX
from tests.support.stepped_engine import Engine, named


@pytest.mark.parametrize(("asked", "k"), [(0, 0), (2, 2), (9, 5), (-1, 5), ("2", 5), (2.0, 5), (True, 5), (None, 5)])
def test_a_requests_own_ceiling_cuts_its_k_and_what_is_no_whole_number_is_none(asked: object, k: int) -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = named("a", k_max=asked)
    engine.begin(a=9)
    assert [(state.k, state.chosen_k) for state in engine.steps.decoding] == [(k, k)]


def test_nothing_is_drafted_beside_a_request_that_is_too_long() -> None:
    engine = Engine(table(default=5), longest_to_draft=20)
    engine.prefill("a", "b")
    engine.begin(a=1, b=11)
    assert engine.plan.width == 5
    engine.begin(a=1, b=1)
    assert engine.plan.width == 0


@pytest.mark.parametrize(("left", "k"), [(9, 5), (8, 5), (7, 5), (6, 4), (3, 1), (2, 0), (1, 0), (0, 0)])
def test_no_more_is_drafted_than_a_request_may_still_deliver(left: int, k: int) -> None:
    """Of `left` tokens this step delivers one and the draft's step another, besides what it accepts."""
    engine = Engine(table(default=5))
    engine.prefill("a", "b")
    engine.requests["a"].max_tokens, engine.requests["a"].num_output_tokens = 100, 100 - left
    engine.begin(a=1, b=1)
    assert [engine.steps.states[name].k for name in "ab"] == [k, 5]


def test_where_all_need_one_k_a_request_near_its_end_verifies_as_much_as_the_others() -> None:
    """vLLM drops what it may not deliver. A ceiling that a request states still holds."""
    engine = Engine(table(default=5), planner=Planner(K_MAX, 0, one_k=True))
    engine.requests["c"] = named("c", k_max=2)
    engine.prefill("a", "b", "c")
    engine.requests["a"].max_tokens, engine.requests["a"].num_output_tokens = 100, 98
    engine.begin(a=1, b=1, c=1)
    assert [engine.steps.states[name].k for name in "abc"] == [5, 5, 2]


@pytest.mark.parametrize(
    ("short_of", "drafted", "k"),
    [(20, 5, 5), (13, 5, 5), (12, 5, 4), (9, 5, 1), (8, 5, 0), (5, 0, 2), (4, 0, 1), (3, 0, 0), (2, 0, 0), (1, 0, 5)],
)
def test_no_draft_reaches_the_least_number_of_tokens_before_the_request_does(
    short_of: int, drafted: int, k: int
) -> None:
    """vLLM bars stop tokens by how long a request is before a step; here it is then `short_of` as many tokens."""
    engine = Engine(table(default=5))
    engine.requests |= {"a": named("a", min_tokens=30), "b": named("b")}
    engine.end(engine.begin(a=9, b=9), a=1, b=1)
    engine.requests["a"].num_output_tokens = 30 - short_of
    engine.begin(drafted={"a": drafted}, a=1 + drafted, b=1)
    assert [engine.steps.states[name].k for name in "ab"] == [k, 5]


def test_asynchronously_all_tokens_under_way_count() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a", min_tokens=30)
    engine.begin(a=9)
    request.num_output_tokens, request.num_output_placeholders = 10, 12
    engine.begin(drafted={"a": 5}, a=6)
    assert engine.steps.states["a"].k == 5
    request.num_output_tokens, request.num_output_placeholders = 13, 12
    engine.begin(drafted={"a": 5}, a=6)
    assert engine.steps.states["a"].k == 3


def test_where_nothing_could_end_a_request_before_its_least_number_of_tokens_it_does_not_matter() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a", min_tokens=30)
    request.sampling_params.all_stop_token_ids = set()
    engine.begin(a=9)
    request.num_output_tokens = 25
    engine.begin(a=1)
    assert engine.steps.states["a"].k == 5


def test_a_request_that_is_long_enough_to_stop_is_drafted_for_at_once() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a", min_tokens=6)
    found = []
    for length, tokens in enumerate([9] + [1] * 8):
        request.num_output_tokens = length
        engine.end(engine.begin(a=tokens), a=1)
        found.append(engine.steps.states["a"].k)
    assert found == [3, 2, 1, 0, 0, 5, 5, 5, 5]


def test_a_session_that_goes_on_has_the_least_number_of_tokens_and_the_ceiling_of_its_new_turn() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a")
    request.num_output_tokens = 20
    engine.end(engine.begin(a=9), a=1)
    engine.end(engine.begin(a=1), a=1)
    request.num_output_tokens = 0
    request.sampling_params = named("a", min_tokens=5, k_max=3).sampling_params
    engine.begin(continued=["a"], a=9)
    assert engine.steps.states["a"].k == 2
    request.sampling_params.min_tokens = 50
    engine.begin(continued=["a"], a=9)
    assert engine.steps.states["a"].k == 3


def test_a_prompt_for_one_token_is_not_drafted_for() -> None:
    engine = Engine(table(default=5))
    engine.requests |= {"a": named("a"), "b": named("b")}
    engine.requests["a"].max_tokens, engine.requests["b"].max_tokens = 1, 3
    engine.begin(a=9, b=9)
    assert [engine.steps.states[name].k for name in "ab"] == [0, 1]

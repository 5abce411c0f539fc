"""A request from its prompt to its end: what is read, where it begins, pre-emption, more input to a session."""

from specpilot.engine_adapter.evidence.meter import StepKind, StepShape
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.step_room import StepRoom
from tests.support.k_tables import table
from tests.support.planning import K_MAX, UP
from tests.support.stepped_engine import Engine, drafts, named, prefill_steps, steps_by_kind, tokens

ROOM = StepRoom(12, 2048, is_parallel=True)
"""In which only one running request has room for seven drafts."""


def test_a_prompt_with_an_image_is_not_held() -> None:
    """Where a model has positions in three dimensions, those of an image are not the ones before the next token's."""
    engine = Engine(table(default=0))
    engine.requests["image"] = named("image")
    engine.requests["image"].mm_features = [object()]
    engine.begin(image=9, text=9)
    assert (engine.plan.deferred, engine.plan.read) == (("text",), 8)
    assert [engine.steps.backlog(name) for name in ("image", "text")] == [1, 9]


def test_a_request_decodes_from_the_step_after_its_whole_prompt_on() -> None:
    engine = Engine(table(default=3))
    first = engine.begin(a=5, prefilling=["a"])
    assert (engine.plan.width, engine.steps.decoding) == (0, [])
    engine.end(first)
    second = engine.begin(a=5)
    assert (engine.plan.width, engine.plan.catch_up) == (3, ("a",))
    engine.end(second, a=1)
    engine.verify("a", 3, 2)
    evidence = engine.meter.take_evidence()
    assert engine.meter.take_steps() == [
        (StepShape(0, 0, 0, prefill=5), 0.0, 5),
        (StepShape(0, 0, 3, prefill=5, read=5, passes=2), 0.0, 10),
        (StepShape(1, 4, 3, draft_context=3 * 14, passes=2), 0.0, 14),
    ]
    assert steps_by_kind(evidence) == {StepKind.PROMPT: 2, StepKind.DECODE: 1}
    assert drafts(evidence) == {("default", 3): 1}
    assert tokens(evidence) == {"default": 3}


def test_a_request_that_ended_meanwhile_counts_for_nothing_and_is_forgotten() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a", "b")
    engine.end(engine.begin(a=1, b=1), a=1)
    assert tokens(engine.meter.take_evidence()) == {"default": 1}
    engine.begin(a=1, finished=["b"])
    assert set(engine.steps.states) == {"a"}


def test_a_preempted_request_prefills_anew() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a", "b")
    engine.end(engine.begin(a=1, b=1), a=1, b=1)
    engine.steps.restart("b")
    engine.steps.restart("nobody")
    engine.end(engine.begin(a=1, b=12), a=1, b=1)
    evidence = engine.meter.take_evidence()
    assert (prefill_steps(evidence), tokens(evidence)) == (1, {"default": 3})
    assert [state.backlog for state in engine.steps.decoding] == [9 + 2, 12]


def test_more_input_to_a_session_is_prefilled() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    for _ in range(3):
        engine.end(engine.begin(a=1), a=1)
    assert engine.steps.backlog("a") == 9 + 3
    engine.meter.take_evidence()
    engine.table = table(default=3)
    engine.end(engine.begin(continued=["a"], a=500), a=1)
    evidence = engine.meter.take_evidence()
    assert steps_by_kind(evidence) == {StepKind.PROMPT: 1}
    assert engine.plan.catch_up == ()


def test_one_more_token_of_input_does_not_repeat_the_step_before() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    for _ in range(3):
        engine.end(engine.begin(a=1), a=1)
    engine.meter.take_evidence()
    engine.end(engine.begin(continued=["a"], a=1), a=1)
    assert prefill_steps(engine.meter.take_evidence()) == 1


def test_a_step_without_requests_changes_nothing() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    step = engine.begin(a=1)
    empty = engine.begin()
    engine.steps.skip_to(empty)
    engine.end(empty)
    assert [state.request_id for state in engine.steps.decoding] == ["a"]
    engine.end(step, a=1)
    assert tokens(engine.meter.take_evidence()) == {"default": 1}


def test_k_never_depends_on_a_draft_whose_outcome_is_not_known() -> None:
    engine, other = Engine(table(default=UP)), Engine(table(default=UP))
    for one, accepted in ((engine, 3), (other, 0)):
        one.prefill("a")
        one.verify("a", 3, accepted)  # the next draft's K is planned at its beginning
    assert engine.steps.states["a"].k == other.steps.states["a"].k == 3
    for one in (engine, other):
        one.begin(drafted={"a": 3}, a=4)
    assert engine.steps.states["a"].k > other.steps.states["a"].k


def test_a_preempted_request_keeps_what_is_known_of_it() -> None:
    engine = Engine(table(default=UP))
    engine.prefill("a")
    for _ in range(10):
        engine.verify("a", 3, 0)
    engine.steps.restart("a")
    assert engine.steps.states["a"].acceptance.band == 1


def test_new_requests_begin_where_others_of_their_kind_did() -> None:
    engine = Engine(table(default=UP))
    for number in range(12):
        name = f"chat_{number}"
        engine.prefill(name)
        for _ in range(6):
            engine.verify(name, 3, 0)
    engine.begin(chat_new=9, code_new=9)
    states = engine.steps.states
    assert (states["chat_new"].band, states["chat_new"].k) == (0, 0)
    assert len(engine.steps.starts.known()) == 1
    assert states["code_new"].band == 0  # of a class never seen: the start of all


def test_requests_of_which_nothing_was_verified_begin_where_their_kind_does_by_now() -> None:
    """When traffic changes, the outcomes of the first new request set the start of those that came with it."""
    engine = Engine(table(default=UP))
    engine.prefill("chat_a", "chat_b", "code_c")
    before = engine.steps.states["chat_b"].acceptance.accepts
    for _ in range(3):
        engine.verify("chat_a", 3, 0, chat_b=1, code_c=1)
    engine.begin(chat_a=1, chat_b=1, code_c=1)
    states = engine.steps.states
    assert states["chat_b"].acceptance.accepts < before / 1.5
    assert states["code_c"].acceptance.accepts == before  # of another kind


def test_running_decodes_without_a_token_in_the_step_are_counted() -> None:
    engine = Engine(table(default=7), planner=Planner(K_MAX, 64, room=ROOM))
    engine.prefill("a", "b", "c")
    engine.end(engine.begin(drafted=dict.fromkeys("abc", 2), a=3, b=3, c=3), a=1, b=1, c=1)
    everyone = [engine.requests[name] for name in "abc"]
    step = engine.begin(drafted={"a": 2}, running=everyone, a=3)
    assert engine.plan.width == ROOM.largest_k(3) < 7
    engine.end(step, a=1)
    for name in "bc":  # their last tokens are under way
        engine.requests[name].num_output_placeholders = engine.requests[name].max_tokens
    engine.begin(drafted={"a": 2}, running=everyone, a=3)
    assert engine.plan.width == 7


def test_a_running_prompt_without_a_token_in_the_step_is_no_decode() -> None:
    engine = Engine(table(default=7), planner=Planner(K_MAX, 64, room=ROOM))
    engine.prefill("a")
    engine.end(engine.begin(a=8, drafted={"a": 7}, b=9, prefilling=["b"]), a=1)
    engine.begin(a=8, drafted={"a": 7}, running=[engine.requests["a"], engine.requests["b"]])
    assert engine.plan.width == 7

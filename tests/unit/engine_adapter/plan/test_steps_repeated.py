"""Steps that repeat the one before: planned once, with the result of planning each."""

from collections.abc import Collection
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.policy.bands import BANDS
from tests.support.k_tables import BandLaw, table
from tests.support.planning import K_MAX
from tests.support.probe_prices import DEMO
from tests.support.stepped_engine import Engine, drafts, tokens


class CountingPlanner(Planner):
    """Counts the steps that it plans."""

    planned = 0

    def plan(self, *args: Any, **kwargs: Any) -> StepPlan:
        self.planned += 1
        return super().plan(*args, **kwargs)


class NeverRepeating(CountingPlanner):
    """Plans every step."""

    def identical_steps_ahead(self, *_: Any) -> int:
        return 0


SPELLS = st.one_of(
    st.tuples(st.just("decode"), st.integers(1, 40)),
    st.tuples(
        st.sampled_from(["decode all but one", "decode, and one is gone", "decode, and one is cut"]),
        st.integers(1, 3),
    ),
    st.tuples(st.sampled_from(["join", "join in chunks", "end", "preempt", "idle", "ask", "take"]), st.just(1)),
    st.tuples(st.sampled_from(["schedule", "schedule json"]), st.sampled_from([0, 0, 1, 3, K_MAX])),
)


@given(
    st.lists(SPELLS, max_size=30),
    st.sampled_from([0.0, 0.03, 1.0]),
    st.sampled_from([0, 12, 40, 4096]),
    st.sampled_from([30, 1000]),
    st.sampled_from([0, 0, 1, K_MAX]),
)
@example([("decode", 23), ("end", 1), ("decode", 10)], 0.03, 12, 1000, 0)
@example([*[("decode", 1)] * 2, ("decode", 11), ("decode", 40), ("join", 1), ("decode", 26)], 0.03, 12, 1000, 0)
def test_steps_that_repeat_the_one_before_come_to_what_planning_each_would(
    spells: list[tuple[str, int]], probe_ratio: float, rows: int, longest: int, least_width: int
) -> None:
    quick, slow = (
        Engine(
            table(probe_ratio, default=[0] * BANDS),
            longest,
            planner(K_MAX, rows, catch_up_rows=16, least_width=least_width),
        )
        for planner in (CountingPlanner, NeverRepeating)
    )
    for spell in [("join", 1), *spells]:
        assert play(quick, *spell) == play(slow, *spell)
        assert quick.steps.backlog_tokens == slow.steps.backlog_tokens
    names = list(slow.steps.states)
    assert [quick.steps.backlog(name) for name in names] == [slow.steps.backlog(name) for name in names]
    assert quick.meter.take_evidence() == slow.meter.take_evidence()
    assert quick.meter.take_steps() == slow.meter.take_steps()


def play(engine: Engine, what: str, count: int) -> list[Any]:
    """Let something happen, and return the plan of each step of it, or the evidence."""
    states, drafted, plans = engine.steps.states, engine.steps.decoding, list[Any]()
    if what.startswith("schedule"):
        by_band, law = [0] * (BANDS - 3) + [count] * 3, engine.table.law
        assert isinstance(law, BandLaw)
        k = {**law.rows, "json" if what.endswith("json") else "default": by_band}
        engine.table = table(engine.table.probe_ratio, **k)
    elif what == "preempt" and states:
        engine.steps.restart(min(states))
    elif what == "ask" and states:
        plans.append(engine.steps.backlog(min(states)))
    elif what == "end" and states:
        engine.begin(finished=[min(states)])
    elif what.startswith("join"):
        name = f"{'json' if len(engine.requests) % 3 == 1 else 'chat'}_{len(engine.requests)}"
        chunks = [name] if what.endswith("chunks") else []
        plans.append(step(engine, {name: 5, **decodes(drafted)}, drafted, chunks))
        drafted = engine.steps.decoding
    elif what == "take":
        plans.append(engine.meter.take_evidence())
    for _ in range(count if what.startswith("decode") else 0):
        some = engine.steps.decoding[1 if what.endswith("one") else 0 :]
        gone = [state.request_id for state in some[:1]] if what.endswith("gone") else []
        tokens = decodes(some)
        for state in [state for state in some[:1] if what.endswith("cut") and state.k]:
            state.grammar_allows = min(state.chosen_k, state.k - 1)  # a probe is cut to the scheduled K
            tokens[state.request_id] = 1 + state.grammar_allows
        plans.append(step(engine, tokens, some, gone=gone))
    return plans


def decodes(states: Collection[DraftState]) -> dict[str, int]:
    return {state.request_id: 1 + state.k for state in states}


def step(
    engine: Engine,
    tokens: dict[str, int],
    drafted: Collection[DraftState],
    prefilling: Collection[str] = (),
    gone: Collection[str] = (),
) -> StepPlan:
    """Do a step in which all drafts except those of "chat" are accepted; it delivers nothing to `gone` requests."""
    k = {state.request_id: tokens[state.request_id] - 1 for state in drafted if tokens[state.request_id] > 1}
    output = engine.begin(drafted=k, prefilling=prefilling, **tokens)
    accepted = {name: 0 if name.startswith("chat") else count for name, count in k.items()}
    for name, count in k.items():
        engine.steps.note_draft(name, count, accepted[name], 0)
    delivered = {name: count if name in prefilling else 1 + accepted.get(name, 0) for name, count in tokens.items()}
    engine.end(output, **{name: count for name, count in delivered.items() if name not in gone})
    return engine.plan


def test_a_request_that_ends_while_the_others_repeat_their_steps_is_dropped() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a", "waits")
    engine.steps.restart("waits")
    for _ in range(3):
        engine.end(engine.begin(a=1), a=1)
    engine.end(engine.begin(a=1, finished=["waits"]), a=1)
    assert set(engine.steps.states) == {"a"}


def test_a_spell_at_k_0_is_planned_once() -> None:
    planner = CountingPlanner(K_MAX, backlog_rows=4096, prices=DEMO)
    engine = Engine(table(default=0), planner=planner)
    engine.prefill("a", "b")
    planned = planner.planned
    for _ in range(500):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    # The first, the one in which the deferred prompts go through the drafter, and the first after it.
    assert planner.planned == planned + 3
    assert engine.steps.backlog_tokens == engine.steps.backlog("a") + engine.steps.backlog("b") > 800
    assert tokens(engine.meter.take_evidence()) == {"default": 1000}


def test_steps_that_draft_are_each_planned_because_an_outcome_may_change_k() -> None:
    planner = CountingPlanner(K_MAX, backlog_rows=4096, prices=DEMO)
    engine = Engine(table(default=3, json=0), longest_to_draft=100, planner=planner)
    engine.prefill("a", "json_b")
    widths = [step(engine, decodes(engine.steps.decoding), engine.steps.decoding).width for _ in range(30)]
    # The prompt has 9 tokens, a step at most 4 more: after 22 steps 97, after 23 too many.
    assert widths == [3] * 22 + [0] * 8
    assert planner.planned == 1 + 22 + 2  # the prompt, those that draft, the first after drafts, the first without
    evidence = engine.meter.take_evidence()
    assert drafts(evidence) == {("default", 3): 23, ("default", 0): 7, ("json", 0): 30}


def test_steps_tell_how_long_their_sequences_are_whether_they_are_planned_or_repeat_the_one_before() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a", "b")
    for _ in range(10):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    assert [context for _, _, context in engine.meter.take_steps()] == [2 * (9 + step) for step in range(1, 11)]


def test_a_spell_at_k_0_with_probes_is_planned_once_in_each_of_them() -> None:
    planner = CountingPlanner(K_MAX, backlog_rows=4096, prices=DEMO)
    engine = Engine(table(0.5, default=[0] * BANDS), planner=planner)
    engine.prefill("a", "b")
    planned = planner.planned
    probes = 0
    for _ in range(320):
        states = engine.steps.decoding
        probes += any(state.k for state in states)
        k = {state.request_id: state.k for state in states if state.k}
        output = engine.begin(drafted=k, **decodes(states))
        for name, count in k.items():
            engine.steps.note_draft(name, count, 0, 0)
        engine.end(output, a=1, b=1)
    assert probes >= 15  # due again 16 steps after each
    assert planner.planned - planned <= 4 * probes + 1


def test_as_many_tokens_as_before_may_be_another_s() -> None:
    engine = Engine(table(default=0, json=3))
    engine.prefill("a", "json_b")
    for name in ("json_b", "a"):
        output = engine.begin(drafted={"json_b": 3}, a=1, json_b=4)
        engine.steps.note_draft("json_b", 3, 3, 0)
        engine.end(output, **{name: 4 if name == "json_b" else 1})
    assert drafts(engine.meter.take_evidence()) == {("json", 3): 1, ("default", 0): 1}


def test_new_prices_of_probes_end_the_repetition() -> None:
    """While they are unknown no probe is made, so without a change of the table thousands of steps would repeat."""
    probed_after = []
    for planner in (CountingPlanner, NeverRepeating):
        engine = Engine(table(0.05, default=[0] * (BANDS - 1) + [7]), planner=planner(K_MAX, 4096))
        engine.prefill("chat_1")
        steps = 0
        while not engine.steps.states["chat_1"].k and steps < 3000:
            steps += 1
            if steps == 200:
                engine.steps._planner.prices = DEMO
            play(engine, "decode", 1)
        probed_after.append(steps)
    assert abs(probed_after[0] - probed_after[1]) <= 1
    assert max(probed_after) < 400

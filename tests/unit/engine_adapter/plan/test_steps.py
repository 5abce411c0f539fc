from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specpilot.engine_adapter.evidence.meter import Evidence, Meter, StepKind, StepShape
from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.planner import Planner
from specpilot.engine_adapter.plan.speculation_control import KTable
from specpilot.engine_adapter.plan.step_plan import StepPlan
from specpilot.engine_adapter.plan.steps import Steps
from specpilot.policy.bands import BANDS, band_of
from tests.support.k_tables import by_load, table
from tests.support.probe_prices import DEMO

K_MAX = 7


class Engine:
    """Hands `Steps` what vLLM's scheduler would, step by step."""

    def __init__(self, in_force: KTable, longest_to_draft: int = 1000, planner: Planner | None = None) -> None:
        self.meter = Meter()
        self.table = in_force
        self.steps = Steps(planner or Planner(K_MAX, rows=4096, prices=DEMO), self.meter, in_force, longest_to_draft)
        self.requests: dict[str, Any] = {}
        self.plan = StepPlan(0)

    def begin(
        self,
        now: float = 0.0,
        drafted: Mapping[str, int] | None = None,
        finished: Collection[str] = (),
        prefilling: Collection[str] = (),
        continued: Collection[str] = (),
        running: Sequence[Any] = (),
        **tokens: int,
    ) -> Any:
        """Schedule `tokens` of each request, after `drafted` of them; `prefilling` have more of their prompt to go.

        `continued` are sessions that were given more input, `running` all that run.
        """
        output = SimpleNamespace(
            num_scheduled_tokens=tokens,
            scheduled_spec_decode_tokens={name: [-1] * count for name, count in (drafted or {}).items()},
            finished_req_ids=set(finished),
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name) for name in tokens if name in continued or name not in self.requests
            ],
        )
        for name, count in tokens.items():
            request = self.requests.setdefault(name, named(name))
            request.num_computed_tokens += count
            request.is_prefill_chunk = name in prefilling
        self.plan = self.steps.begin(output, self.requests, self.table, now, running)
        return output

    def end(self, output: Any, now: float = 0.0, *, goes_on: bool = True, **delivered: int) -> None:
        items = [
            SimpleNamespace(request_id=name, new_token_ids=[0] * count) for name, count in delivered.items() if count
        ]
        self.steps.end(output, {0: SimpleNamespace(outputs=items)}, now, goes_on=goes_on)

    def prefill(self, *names: str) -> None:
        """Process the requests' prompts, and drop the counts of that."""
        self.end(self.begin(**dict.fromkeys(names, 9)), **dict.fromkeys(names, 1))
        self.drop()

    def drop(self) -> None:
        """Drop all counts, and the steps one by one."""
        self.meter.take()
        self.meter.take_steps()


def named(name: str) -> Any:
    """Return a request whose class is the part of its name before the underscore."""
    traffic_class, _, rest = name.partition("_")
    extra = {"traffic_class": traffic_class} if rest else None
    return SimpleNamespace(
        request_id=name,
        num_computed_tokens=0,
        num_output_placeholders=0,
        max_tokens=10**6,
        num_output_tokens=0,
        sampling_params=SimpleNamespace(extra_args=extra, temperature=0.0, min_tokens=0, all_stop_token_ids={2}),
        use_structured_output=False,
        mm_features=[],
    )


def prefill_steps(evidence: Evidence) -> int:
    found = steps_by_kind(evidence)
    return found.get(StepKind.PREFILL, 0) + found.get(StepKind.PROMPT, 0)


def steps_by_kind(evidence: Evidence) -> dict[StepKind, int]:
    return {kind: sums.steps for kind, sums in evidence.steps.items()}


def drafts(evidence: Evidence) -> dict[tuple[str, int], int]:
    """By class and K, whatever the band."""
    found: Counter[tuple[str, int]] = Counter()
    for (name, _, k), count in evidence.drafts.items():
        found[name, k] += count
    return dict(+found)


def tokens(evidence: Evidence) -> dict[str, int]:
    """By class, whatever the band."""
    found: Counter[str] = Counter()
    for (name, _), count in evidence.tokens.items():
        found[name] += count
    return dict(found)


def by_position(counts: Mapping[tuple[int, int], int]) -> dict[int, int]:
    """By position, whatever the band."""
    found: Counter[int] = Counter()
    for (_, position), count in counts.items():
        found[position] += count
    return dict(found)


def test_a_prompt_with_an_image_is_not_held() -> None:
    """Where a model has positions in three dimensions, those of an image are not the ones before the next token's."""
    engine = Engine(table(default=0))
    engine.requests["image"] = named("image")
    engine.requests["image"].mm_features = [object()]
    engine.begin(image=9, text=9)
    assert (engine.plan.held, engine.plan.read) == (("text",), 8)
    assert [engine.steps.backlog(name) for name in ("image", "text")] == [1, 9]


def test_a_request_decodes_from_the_step_after_its_whole_prompt_on() -> None:
    engine = Engine(table(default=3))
    first = engine.begin(a=5, prefilling=["a"])
    assert (engine.plan.width, engine.steps.decoding) == (0, [])
    engine.end(first)
    second = engine.begin(a=5)
    assert (engine.plan.width, engine.plan.catch_up) == (3, ("a",))
    engine.end(second, a=1)
    third = engine.begin(drafted={"a": 3}, a=4)
    engine.steps.verified("a", drafted=3, accepted=2, invalid=0)
    engine.end(third, a=3)
    evidence = engine.meter.take()
    assert engine.meter.take_steps() == [
        (StepShape(0, 0, 0, prefill=5), 0.0, 5),
        (StepShape(0, 0, 3, prefill=5, read=5), 0.0, 10),
        (StepShape(1, 4, 3), 0.0, 14),
    ]
    assert steps_by_kind(evidence) == {StepKind.PROMPT: 2, StepKind.DECODE: 1}
    assert drafts(evidence) == {("default", 3): 1}
    assert tokens(evidence) == {"default": 3}


def test_each_draft_counts_for_its_class_and_as_a_probe_where_it_is_deeper_than_the_schedule() -> None:
    engine = Engine(table(default=1, code=5))
    engine.prefill("code_1", "chat_1")
    step = engine.begin(drafted={"code_1": 5, "chat_1": 7}, code_1=6, chat_1=8)
    engine.steps.verified("code_1", drafted=5, accepted=5, invalid=0)
    engine.steps.verified("chat_1", drafted=7, accepted=0, invalid=0)
    engine.end(step, code_1=6, chat_1=1)
    evidence = engine.meter.take()
    assert drafts(evidence) == {("code", 5): 1, ("default", 7): 1}
    assert +evidence.probes == {"default": 1}
    assert tokens(evidence) == {"code": 6, "default": 1}


@pytest.mark.parametrize(("asked", "k"), [(0, 0), (2, 2), (9, 5), (-1, 5), ("2", 5), (2.0, 5), (True, 5), (None, 5)])
def test_a_requests_own_ceiling_cuts_its_k_and_what_is_no_whole_number_is_none(asked: object, k: int) -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = named("a")
    engine.requests["a"].sampling_params.extra_args = {"k_max": asked}
    engine.begin(a=9)
    assert [(state.k, state.scheduled_k) for state in engine.steps.decoding] == [(k, k)]


def test_a_draft_within_a_ceiling_is_no_probe_and_counts_as_any_other() -> None:
    engine = Engine(table(1.0, default=5))
    engine.requests["a"] = named("a")
    engine.requests["a"].sampling_params.extra_args = {"k_max": 2}
    engine.prefill("a")
    output = engine.begin(drafted={"a": 2}, a=3)
    engine.steps.verified("a", drafted=2, accepted=2, invalid=0)
    engine.end(output, a=3)
    evidence = engine.meter.take()
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
        engine.steps.verified("a", drafted=5, accepted=5, invalid=0)
        engine.end(output, a=6)
    evidence = engine.meter.take()
    assert drafts(evidence) == {("default", 5): 2}
    assert not +evidence.probes


def test_placeholders_that_no_drafter_made_are_no_drafts() -> None:
    engine = Engine(table(default=7))
    engine.prefill("a")
    step = engine.begin(drafted={"a": 7, "joins": 7}, a=8, joins=8)
    engine.steps.verified("a", drafted=7, accepted=1, invalid=0)
    engine.steps.verified("joins", drafted=7, accepted=0, invalid=0)
    engine.end(step, a=2, joins=1)
    evidence = engine.meter.take()
    assert drafts(evidence) == {("default", 7): 1}
    assert tokens(evidence) == {"default": 2}


def test_a_request_that_ended_meanwhile_counts_for_nothing_and_is_forgotten() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a", "b")
    engine.end(engine.begin(a=1, b=1), a=1)
    assert tokens(engine.meter.take()) == {"default": 1}
    engine.begin(a=1, finished=["b"])
    assert set(engine.steps.states) == {"a"}


def test_a_token_that_the_grammar_refuses_was_tried_and_not_accepted() -> None:
    engine = Engine(table(default=5))
    engine.prefill("cut", "empty")
    engine.steps.states["cut"].grammar_allows = 2
    engine.steps.states["empty"].grammar_allows = 0
    step = engine.begin(drafted={"cut": 2}, cut=3, empty=1)
    engine.steps.verified("cut", drafted=2, accepted=2, invalid=0)
    engine.end(step, cut=3, empty=1)
    step = engine.begin(drafted={"cut": 5}, cut=6, empty=1)
    engine.steps.verified("cut", drafted=5, accepted=3, invalid=2)
    engine.end(step, cut=4, empty=1)
    evidence = engine.meter.take()
    assert drafts(evidence) == {("default", 0): 2, ("default", 2): 1, ("default", 3): 1}
    assert by_position(evidence.trials) == {1: 3, 2: 2, 3: 2, 4: 1}
    assert by_position(evidence.accepts) == {1: 2, 2: 2, 3: 1}


def test_where_only_a_prefix_of_a_draft_was_verified_the_evidence_is_of_that_prefix() -> None:
    engine = Engine(table(default=5))
    engine.prefill("prefix", "nothing", "whole")
    step = engine.begin(drafted=dict.fromkeys(("prefix", "nothing", "whole"), 5), prefix=6, nothing=6, whole=6)
    before = engine.steps.states["nothing"].acceptance.drafts
    engine.steps.verified("prefix", drafted=5, accepted=2, invalid=0, verified=2)
    engine.steps.verified("nothing", drafted=5, accepted=0, invalid=0, verified=0)
    engine.steps.verified("whole", drafted=5, accepted=1, invalid=0, verified=5)
    engine.end(step, prefix=3, nothing=1, whole=2)
    assert engine.steps.states["nothing"].acceptance.drafts == before
    evidence = engine.meter.take()
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
    engine.steps.verified("cut", drafted=5, accepted=2, invalid=2, verified=2)
    engine.end(step, cut=3)
    evidence = engine.meter.take()
    assert drafts(evidence) == {("default", 2): 1}
    assert by_position(evidence.trials) == {1: 1, 2: 1}


def test_a_new_schedule_may_know_the_class_of_a_running_request() -> None:
    engine = Engine(table(default=0))
    engine.prefill("code_1", "no class_1")
    engine.end(engine.begin(code_1=1, **{"no class_1": 1}), code_1=1, **{"no class_1": 1})
    assert drafts(engine.meter.take()) == {("default", 0): 2}
    engine.table = table(default=0, code=0)
    engine.end(engine.begin(code_1=1, **{"no class_1": 1}), code_1=1, **{"no class_1": 1})
    assert drafts(engine.meter.take()) == {("code", 0): 1, ("default", 0): 1}


def test_a_preempted_request_prefills_anew() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a", "b")
    engine.end(engine.begin(a=1, b=1), a=1, b=1)
    engine.steps.restart("b")
    engine.steps.restart("nobody")
    engine.end(engine.begin(a=1, b=12), a=1, b=1)
    evidence = engine.meter.take()
    assert (prefill_steps(evidence), tokens(evidence)) == (1, {"default": 3})
    assert [state.backlog for state in engine.steps.decoding] == [9 + 2, 12]


def test_nothing_is_drafted_beside_a_request_that_is_too_long() -> None:
    engine = Engine(table(default=5), longest_to_draft=20)
    engine.prefill("a", "b")
    engine.begin(a=1, b=11)
    assert engine.plan.width == 5
    engine.begin(a=1, b=1)
    assert engine.plan.width == 0


def test_a_step_takes_from_the_end_of_the_one_before_or_from_its_beginning_after_idleness() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    engine.end(engine.begin(10.0, a=1), 10.5, a=1)
    engine.meter.take()
    engine.end(engine.begin(10.6, a=1), 11.0, goes_on=False, a=1)
    assert seconds(engine) == pytest.approx(0.5)
    engine.end(engine.begin(20.0, a=1), 20.3, a=1)
    assert seconds(engine) == pytest.approx(0.3)
    engine.steps.pause()
    engine.end(engine.begin(30.0, a=1), 30.2, a=1)
    assert seconds(engine) == pytest.approx(0.2)


def seconds(engine: Engine) -> float:
    (sums,) = engine.meter.take().steps.values()
    return sums.seconds


def test_a_step_that_delivers_nothing_after_the_last_one_takes_from_that_ones_end() -> None:
    """The asynchronous scheduler has scheduled it before it knows that the last request has ended."""
    engine = Engine(table(default=3))
    engine.prefill("a")
    engine.meter.take()
    last = engine.begin(now=0.0, drafted={"a": 3}, a=4)
    beyond = engine.begin(now=0.5, drafted={"a": 3}, a=4)
    engine.end(last, now=1.0, goes_on=False, a=4)
    engine.end(beyond, now=1.25, goes_on=False)
    (sums,) = engine.meter.take().steps.values()
    assert (sums.steps, sums.seconds) == (2, pytest.approx(1.25))
    engine.end(engine.begin(now=7.0, b=9), now=7.5, b=1)
    assert seconds(engine) == pytest.approx(0.5)


def test_more_input_to_a_session_is_prefilled() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    for _ in range(3):
        engine.end(engine.begin(a=1), a=1)
    assert engine.steps.backlog("a") == 9 + 3
    engine.meter.take()
    engine.table = table(default=3)
    engine.end(engine.begin(continued=["a"], a=500), a=1)
    evidence = engine.meter.take()
    assert steps_by_kind(evidence) == {StepKind.PROMPT: 1}
    assert engine.plan.catch_up == ()


def test_one_more_token_of_input_does_not_repeat_the_step_before() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    for _ in range(3):
        engine.end(engine.begin(a=1), a=1)
    engine.meter.take()
    engine.end(engine.begin(continued=["a"], a=1), a=1)
    assert prefill_steps(engine.meter.take()) == 1


def test_a_step_whose_outcome_vllm_dropped_is_not_counted() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    engine.begin(a=1)
    step = engine.begin(a=1)
    engine.steps.skip_to(step)
    engine.end(step, a=1)
    assert tokens(engine.meter.take()) == {"default": 1}


def test_a_step_without_requests_changes_nothing() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a")
    step = engine.begin(a=1)
    empty = engine.begin()
    engine.steps.skip_to(empty)
    engine.end(empty)
    assert [state.request_id for state in engine.steps.decoding] == ["a"]
    engine.end(step, a=1)
    assert tokens(engine.meter.take()) == {"default": 1}


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
    st.sampled_from([12, 40, 4096]),
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
            planner(K_MAX, rows, rows_per_step=16, least_width=least_width),
        )
        for planner in (CountingPlanner, NeverRepeating)
    )
    for spell in [("join", 1), *spells]:
        assert play(quick, *spell) == play(slow, *spell)
        assert quick.steps.backlog_tokens == slow.steps.backlog_tokens
    names = list(slow.steps.states)
    assert [quick.steps.backlog(name) for name in names] == [slow.steps.backlog(name) for name in names]
    assert quick.meter.take() == slow.meter.take()
    assert quick.meter.take_steps() == slow.meter.take_steps()


def play(engine: Engine, what: str, count: int) -> list[Any]:
    """Let something happen, and return the plan of each step of it, or the evidence."""
    states, drafted, plans = engine.steps.states, engine.steps.decoding, list[Any]()
    if what.startswith("schedule"):
        k: dict[str, Any] = {name: [row[0] for row in rows] for name, rows in engine.table.rows.items()}
        by_band = [0] * (BANDS - 3) + [count] * 3
        engine.table = table(engine.table.probe_ratio, **k | {"json" if what.endswith("json") else "default": by_band})
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
        plans.append(engine.meter.take())
    for _ in range(count if what.startswith("decode") else 0):
        some = engine.steps.decoding[1 if what.endswith("one") else 0 :]
        gone = [state.request_id for state in some[:1]] if what.endswith("gone") else []
        tokens = decodes(some)
        for state in [state for state in some[:1] if what.endswith("cut") and state.k]:
            state.grammar_allows = min(state.scheduled_k, state.k - 1)  # a probe is cut to the scheduled K
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
        engine.steps.verified(name, count, accepted[name], 0)
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
    planner = CountingPlanner(K_MAX, rows=4096, prices=DEMO)
    engine = Engine(table(default=0), planner=planner)
    engine.prefill("a", "b")
    planned = planner.planned
    for _ in range(500):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    # The first, the one in which the held prompts go through the drafter, and the first after it.
    assert planner.planned == planned + 3
    assert engine.steps.backlog_tokens == engine.steps.backlog("a") + engine.steps.backlog("b") > 800
    assert tokens(engine.meter.take()) == {"default": 1000}


def test_steps_that_draft_are_each_planned_because_an_outcome_may_change_k() -> None:
    planner = CountingPlanner(K_MAX, rows=4096, prices=DEMO)
    engine = Engine(table(default=3, json=0), longest_to_draft=100, planner=planner)
    engine.prefill("a", "json_b")
    widths = [step(engine, decodes(engine.steps.decoding), engine.steps.decoding).width for _ in range(30)]
    # The prompt has 9 tokens, a step at most 4 more: after 22 steps 97, after 23 too many.
    assert widths == [3] * 22 + [0] * 8
    assert planner.planned == 1 + 22 + 2  # the prompt, those that draft, the first after drafts, the first without
    evidence = engine.meter.take()
    assert drafts(evidence) == {("default", 3): 23, ("default", 0): 7, ("json", 0): 30}


def test_steps_tell_how_long_their_sequences_are_whether_they_are_planned_or_repeat_the_one_before() -> None:
    engine = Engine(table(default=0))
    engine.prefill("a", "b")
    for _ in range(10):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    assert [context for _, _, context in engine.meter.take_steps()] == [2 * (9 + step) for step in range(1, 11)]


UP = [0, 0, 0, 0, 0, 3, 5, 7]
"""K by band."""


def test_evidence_counts_for_the_band_in_which_k_was_chosen() -> None:
    """In the asynchronous loop one more step is planned before an outcome is known, so bands lag by a step."""
    engine = Engine(table(default=UP))
    engine.prefill("a")
    state = engine.steps.states["a"]
    begins = state.band
    first = engine.begin(drafted={"a": state.k}, a=1 + state.k)
    second = engine.begin(drafted={"a": state.k}, a=1 + state.k)
    for output in (first, second):
        engine.steps.verified("a", drafted=3, accepted=0, invalid=0)
        engine.end(output, a=1)
    assert band_of(0.7) == begins
    assert state.acceptance.band < begins
    evidence = engine.meter.take()
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
        engine.steps.verified("a", drafted=3, accepted=1, invalid=0)
        engine.end(output, a=2)
    is_first = []
    for _ in range(2):
        output = engine.begin(drafted={"a": 3}, a=4)
        engine.steps.verified("a", drafted=3, accepted=1, invalid=0)
        engine.end(output, a=2)
        evidence = engine.meter.take()
        assert evidence.trials
        assert evidence.first_trials in ({}, evidence.trials)
        assert evidence.first_accepts in ({}, evidence.accepts)
        is_first.append(bool(evidence.first_trials))
    assert is_first == [True, False]


def test_k_never_depends_on_a_draft_whose_outcome_is_not_known() -> None:
    engine, other = Engine(table(default=UP)), Engine(table(default=UP))
    for one, accepted in ((engine, 3), (other, 0)):
        one.prefill("a")
        output = one.begin(drafted={"a": 3}, a=4)  # the next draft's K is planned here
        one.steps.verified("a", drafted=3, accepted=accepted, invalid=0)
        one.end(output, a=1 + accepted)
    assert engine.steps.states["a"].k == other.steps.states["a"].k == 3
    for one in (engine, other):
        one.begin(drafted={"a": 3}, a=4)
    assert engine.steps.states["a"].k > other.steps.states["a"].k


def test_a_preempted_request_keeps_what_is_known_of_it() -> None:
    engine = Engine(table(default=UP))
    engine.prefill("a")
    for _ in range(10):
        output = engine.begin(drafted={"a": 3}, a=4)
        engine.steps.verified("a", drafted=3, accepted=0, invalid=0)
        engine.end(output, a=1)
    engine.steps.restart("a")
    assert engine.steps.states["a"].acceptance.band == 1


def test_new_requests_begin_where_others_of_their_kind_did() -> None:
    engine = Engine(table(default=UP))
    for number in range(12):
        name = f"chat_{number}"
        engine.prefill(name)
        for _ in range(6):
            output = engine.begin(drafted={name: 3}, **{name: 4})
            engine.steps.verified(name, drafted=3, accepted=0, invalid=0)
            engine.end(output, **{name: 1})
    engine.begin(chat_new=9, code_new=9)
    states = engine.steps.states
    assert (states["chat_new"].band, states["chat_new"].k) == (0, 0)
    assert len(engine.steps.priors.known()) == 1
    assert states["code_new"].band == 0  # of a class never seen: the start of all


def test_requests_of_which_nothing_was_verified_begin_where_their_kind_does_by_now() -> None:
    """When traffic changes, the outcomes of the first new request set the start of those that came with it."""
    engine = Engine(table(default=UP))
    engine.prefill("chat_a", "chat_b", "code_c")
    before = engine.steps.states["chat_b"].acceptance.accepts
    for _ in range(3):
        output = engine.begin(drafted={"chat_a": 3}, chat_a=4, chat_b=1, code_c=1)
        engine.steps.verified("chat_a", drafted=3, accepted=0, invalid=0)
        engine.end(output, chat_a=1, chat_b=1, code_c=1)
    engine.begin(chat_a=1, chat_b=1, code_c=1)
    states = engine.steps.states
    assert states["chat_b"].acceptance.accepts < before / 1.5
    assert states["code_c"].acceptance.accepts == before  # of another kind


def test_a_request_is_unprobed_until_a_draft_of_it_was_verified() -> None:
    engine = Engine(table(1e-9, default=[0] * (BANDS - 1) + [7]))
    engine.prefill("a", "b")
    for _ in range(3):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    found = engine.meter.take()
    assert sum(found.unprobed.values()) == sum(found.drafts.values()) == 6
    engine.steps.states["a"].acceptance.note(0, 1)
    engine.table = table(1e-9, default=[0] * (BANDS - 1) + [7])  # planned anew, as after a draft that was verified
    for _ in range(3):
        engine.end(engine.begin(a=1, b=1), a=1, b=1)
    assert sum(engine.meter.take().unprobed.values()) == 3  # b's


@pytest.mark.parametrize("ceiling", [None, 0])
def test_a_request_that_is_never_probed_does_not_count_as_unprobed(ceiling: int | None) -> None:
    """A class that is pinned, or a request with a ceiling of 0: no probe will ever show its acceptance."""
    bands = table(1e-9, default=[0] * (BANDS - 1) + [7])
    engine = Engine(table(1e-9, default=0) if ceiling is None else bands)
    engine.requests["a"] = named("a")
    if ceiling is not None:
        engine.requests["a"].sampling_params.extra_args = {"k_max": ceiling}
    engine.prefill("a")
    engine.end(engine.begin(a=1), a=1)
    found = engine.meter.take()
    assert (sum(found.unprobed.values()), sum(found.drafts.values())) == (0, 1)


def test_an_idle_engine_earns_time_for_probes_as_a_busy_one_does() -> None:
    def steps_to_probe(idle_s: float) -> int:
        engine = Engine(table(0.01, default=[0] * (BANDS - 1) + [7]))
        for number in range(20):
            took = 0.1 if number < 19 else 1e-6  # of the last step nothing depends
            engine.end(engine.begin(0.1 * number, a=1), 0.1 * number + took, a=1, goes_on=number < 19)
        at = 2.0 + idle_s
        engine.begin(at, finished=["a"], b=9)
        for step in range(1, 1000):
            engine.end(engine.begin(at + 0.1 * step, b=1), at + 0.1 * step, b=1)
            if engine.steps.states["b"].k:
                return step
        return 1000

    assert steps_to_probe(0.0) - steps_to_probe(10.0) == pytest.approx(100, abs=6)


def test_a_spell_at_k_0_with_probes_is_planned_once_in_each_of_them() -> None:
    planner = CountingPlanner(K_MAX, rows=4096, prices=DEMO)
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
            engine.steps.verified(name, count, 0, 0)
        engine.end(output, a=1, b=1)
    assert probes >= 15  # due again 16 steps after each
    assert planner.planned - planned <= 4 * probes + 1


def test_as_many_tokens_as_before_may_be_another_s() -> None:
    engine = Engine(table(default=0, json=3))
    engine.prefill("a", "json_b")
    for name in ("json_b", "a"):
        output = engine.begin(drafted={"json_b": 3}, a=1, json_b=4)
        engine.steps.verified("json_b", 3, 3, 0)
        engine.end(output, **{name: 4 if name == "json_b" else 1})
    assert drafts(engine.meter.take()) == {("json", 3): 1, ("default", 0): 1}


@pytest.mark.parametrize(("left", "k"), [(9, 5), (8, 5), (7, 5), (6, 4), (3, 1), (2, 0), (1, 0), (0, 0)])
def test_no_more_is_drafted_than_a_request_may_still_deliver(left: int, k: int) -> None:
    """Of `left` tokens this step delivers one and the draft's step another, besides what it accepts."""
    engine = Engine(table(default=5))
    engine.prefill("a", "b")
    engine.requests["a"].max_tokens, engine.requests["a"].num_output_tokens = 100, 100 - left
    engine.begin(a=1, b=1)
    assert [engine.steps.states[name].k for name in "ab"] == [k, 5]


@pytest.mark.parametrize(
    ("short_of", "drafted", "k"),
    [(20, 5, 5), (13, 5, 5), (12, 5, 4), (9, 5, 1), (8, 5, 0), (5, 0, 2), (4, 0, 1), (3, 0, 0), (2, 0, 0), (1, 0, 5)],
)
def test_no_draft_reaches_the_least_number_of_tokens_before_the_request_does(
    short_of: int, drafted: int, k: int
) -> None:
    """vLLM bars stop tokens by how long a request is before a step; here it is then `short_of` as many tokens."""
    engine = Engine(table(default=5))
    engine.requests |= {"a": named("a"), "b": named("b")}
    engine.requests["a"].sampling_params.min_tokens = 30
    engine.end(engine.begin(a=9, b=9), a=1, b=1)
    engine.requests["a"].num_output_tokens = 30 - short_of
    engine.begin(drafted={"a": drafted}, a=1 + drafted, b=1)
    assert [engine.steps.states[name].k for name in "ab"] == [k, 5]


def test_asynchronously_all_tokens_under_way_count() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a")
    request.sampling_params.min_tokens = 30
    engine.begin(a=9)
    request.num_output_tokens, request.num_output_placeholders = 10, 12
    engine.begin(drafted={"a": 5}, a=6)
    assert engine.steps.states["a"].k == 5
    request.num_output_tokens, request.num_output_placeholders = 13, 12
    engine.begin(drafted={"a": 5}, a=6)
    assert engine.steps.states["a"].k == 3


def test_where_nothing_could_end_a_request_before_its_least_number_of_tokens_it_does_not_matter() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a")
    request.sampling_params.min_tokens, request.sampling_params.all_stop_token_ids = 30, set()
    engine.begin(a=9)
    request.num_output_tokens = 25
    engine.begin(a=1)
    assert engine.steps.states["a"].k == 5


def test_a_request_that_is_long_enough_to_stop_is_drafted_for_at_once() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a")
    request.sampling_params.min_tokens = 6
    found = []
    tokens = 9
    for length in range(9):
        request.num_output_tokens = length
        engine.end(engine.begin(a=tokens), a=1)
        tokens = 1
        found.append(engine.steps.states["a"].k)
    assert found == [3, 2, 1, 0, 0, 5, 5, 5, 5]


def test_a_session_that_goes_on_has_the_least_number_of_tokens_and_the_ceiling_of_its_new_turn() -> None:
    engine = Engine(table(default=5))
    engine.requests["a"] = request = named("a")
    request.num_output_tokens = 20
    engine.end(engine.begin(a=9), a=1)
    engine.end(engine.begin(a=1), a=1)
    request.num_output_tokens = 0
    request.sampling_params = named("a").sampling_params
    request.sampling_params.min_tokens, request.sampling_params.extra_args = 5, {"k_max": 3}
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


def test_how_long_a_step_under_way_has_not_ended() -> None:
    engine = Engine(table(default=0))
    assert engine.steps.waiting_s(100.0) == 0.0
    first = engine.begin(now=10.0, a=9)
    assert engine.steps.waiting_s(12.0) == 2.0
    second = engine.begin(now=11.0, a=1)  # asynchronously: before the first has ended
    engine.end(first, now=15.0, a=1)
    assert engine.steps.waiting_s(18.0) == 3.0
    engine.end(second, now=19.0, goes_on=False, a=1)
    assert engine.steps.waiting_s(500.0) == 0.0


def test_time_in_which_nothing_is_scheduled_is_no_steps() -> None:
    """As while the only request that is there waits for its grammar."""
    engine = Engine(table(default=0))
    engine.end(engine.begin(0.0, a=9), 0.1, a=1)
    engine.end(engine.begin(0.1, a=1), 0.15, a=1)
    engine.begin(0.2, finished=["a"])
    engine.begin(3.0)
    engine.end(engine.begin(4.0, b=9), 4.1, b=1)
    evidence = engine.meter.take()
    assert sum(sums.seconds for sums in evidence.steps.values()) == pytest.approx(0.1 + 0.05 + 0.1)


def test_a_step_of_nothing_while_one_is_under_way_is_no_idleness() -> None:
    engine = Engine(table(default=0))
    engine.end(engine.begin(0.0, a=9), 0.1, a=1)
    step = engine.begin(0.2, a=1)
    engine.begin(0.25)
    engine.end(step, 0.3, a=1)
    assert sum(sums.seconds for sums in engine.meter.take().steps.values()) == pytest.approx(0.3)


def test_running_decodes_without_a_token_in_the_step_are_counted() -> None:
    engine = Engine(by_load(7, 7, 2))
    engine.prefill("a", "b", "c")
    engine.end(engine.begin(drafted=dict.fromkeys("abc", 2), a=3, b=3, c=3), a=1, b=1, c=1)
    everyone = [engine.requests[name] for name in "abc"]
    step = engine.begin(drafted={"a": 2}, running=everyone, a=3)
    assert engine.plan.width == 2
    engine.end(step, a=1)
    for name in "bc":  # their last tokens are under way
        engine.requests[name].num_output_placeholders = engine.requests[name].max_tokens
    engine.begin(drafted={"a": 2}, running=everyone, a=3)
    assert engine.plan.width == 7


def test_a_running_prompt_without_a_token_in_the_step_is_no_decode() -> None:
    engine = Engine(by_load(7, 2))
    engine.prefill("a")
    engine.end(engine.begin(a=8, drafted={"a": 7}, b=9, prefilling=["b"]), a=1)
    engine.begin(a=8, drafted={"a": 7}, running=[engine.requests["a"], engine.requests["b"]])
    assert engine.plan.width == 7


def test_a_steps_time_is_the_devices_where_it_is_known_and_the_engine_was_not_idle() -> None:
    """In the asynchronous loop the host processes the outcome of a step after it has launched the next one."""
    engine = Engine(table(default=0))
    engine.prefill("a")
    engine.steps.pause()
    first, second = engine.begin(now=1.0, a=1), engine.begin(now=1.1, a=1)
    engine.steps.end(first, delivered(a=1), 1.5, goes_on=True, device_s=40.0)  # of the idle time before
    engine.steps.end(second, delivered(a=1), 2.5, goes_on=True, device_s=0.3)
    [sums] = engine.meter.take().steps.values()
    assert (sums.steps, sums.seconds) == (2, pytest.approx(0.5 + 0.3))


def delivered(**tokens: int) -> Any:
    items = [SimpleNamespace(request_id=name, new_token_ids=[0] * count) for name, count in tokens.items()]
    return {0: SimpleNamespace(outputs=items)}

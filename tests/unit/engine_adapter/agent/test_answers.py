"""What an engine says to a controller's question, from its own estimates."""

from types import SimpleNamespace
from typing import Any

import pytest

from specpilot.engine_adapter.agent.answers import Answers
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.engine_adapter.plan.latencies import Latencies
from specpilot.engine_adapter.plan.speculation_control import SpeculationControl, law_table
from specpilot.policy.codec import decode, encode
from specpilot.policy.questions import ALL_CLASSES, Answer, Kind, Question
from specpilot.policy.schedule import Cause, ClassGuidance, Guidance, Override, Schedule
from tests.support.hand_clock import Clock
from tests.support.measured_law import HIGH, LOW, measured

K_MAX = 4
GUIDANCE = Guidance(classes={"default": ClassGuidance(), "chat": ClassGuidance(k_max=2)}, static_k=1)


def state(band: int, name: str, k: int) -> Any:
    acceptance = SimpleNamespace(code=band)
    return SimpleNamespace(label=name, traffic_class=name, acceptance=acceptance, chosen_k=k, context=100)


def engine(*, is_measured: bool = True) -> Any:
    """One that runs 4 predictable requests of `default`, and 4 of `chat`."""
    law = EngineLaw(K_MAX, 3, 32)
    control = SpeculationControl("m", "p", K_MAX, 3, 32, engine_id="one")
    control.offer(Schedule("m", "p", 7, 0.0, GUIDANCE), 0.0)
    law.follow(GUIDANCE)
    if is_measured:
        measured(law, K_MAX)
    control.by_law = law_table(law, 0.0)
    decoding = [state(HIGH, "default", 4)] * 4 + [state(LOW, "chat", 0)] * 3 + [state(LOW, "unheard", 0)]
    law.k_of(decoding)
    return SimpleNamespace(
        law=law, control=control, graphs=None, steps=SimpleNamespace(decoding=decoding),
        has_unfinished_requests=lambda: True, latencies=Latencies(),
    )  # fmt: skip


def said(scheduler: Any, kind: str = Kind.EXPLAIN, guidance: Guidance | None = None) -> Answer:
    clock = Clock()
    answer = Answers(scheduler, clock, lambda: None).answer(Question("q", kind, ("one",), guidance))
    assert decode(Answer, encode(answer)) == answer  # as it crosses Redis
    return answer


def test_it_explains_its_batch_and_predicts_the_static_k_beside_it() -> None:
    answer = said(engine())
    assert (answer.question_id, answer.engine_id, answer.version) == ("q", "one", 7)
    assert (answer.source, answer.cause, answer.decodes, answer.unknown) == ("law", None, 8, "")
    assert answer.in_force is not None
    assert answer.static is not None
    assert answer.in_force == answer.chosen  # the law's K runs
    assert answer.in_force.k == {"default": 3.2, "chat": 0.0}  # a class that no policy names is `default`
    assert answer.static.k == {"default": 1.0, "chat": 1.0}
    assert answer.in_force.throughput > answer.static.throughput > 0
    assert {(group["band"], group["k"]) for group in answer.groups} >= {(HIGH, 4), (LOW, 0)}


def test_it_forecasts_a_policy_and_weighs_the_present_k_by_it_too() -> None:
    scheduler = engine()
    tried = Guidance(classes={"default": ClassGuidance(k_max=1), "chat": ClassGuidance(weight=10.0, k_min=1)})
    answer = said(scheduler, guidance=tried)
    assert answer.chosen is not None
    assert answer.in_force is not None
    assert answer.chosen.k == {"default": 0.8, "chat": 1.0}
    assert answer.groups == ()
    same = said(scheduler, guidance=GUIDANCE)
    assert same.in_force is not None
    assert answer.in_force.throughput > 2 * same.in_force.throughput  # the weights, not the speed
    assert scheduler.law.guidance == GUIDANCE


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (Override(1, Cause.OFF), {"default": 1.0, "chat": 1.0}),
        (Override(None, Cause.FROZEN), {"default": 3.2, "chat": 0.0}),
    ],
)
def test_a_policy_that_fixes_k_is_forecast_with_this_k(override: Override, expected: dict[str, float]) -> None:
    answer = said(engine(), guidance=Guidance(GUIDANCE.objective, GUIDANCE.classes, override=override))
    assert answer.chosen is not None
    assert answer.chosen.k == expected


def test_where_a_freeze_keeps_the_groups_of_the_law_k_is_fixed() -> None:
    scheduler = engine()
    frozen = Guidance(GUIDANCE.objective, GUIDANCE.classes, override=Override(None, Cause.FROZEN))
    scheduler.control.offer(Schedule("m", "p", 8, 0.0, frozen), 0.0)
    answer = said(scheduler)
    assert (answer.source, answer.cause) == ("fixed", "frozen")


def test_where_k_is_fixed_it_says_why_and_what_the_law_would_choose() -> None:
    scheduler = engine()
    fixed = Guidance(GUIDANCE.objective, GUIDANCE.classes, override=Override(0, Cause.ADVISE))
    scheduler.control.offer(Schedule("m", "p", 8, 0.0, fixed), 0.0)
    for each in scheduler.steps.decoding:
        each.chosen_k = 0
    answer = said(scheduler)
    assert (answer.source, answer.cause) == ("fixed", "advise")
    assert answer.in_force is not None
    assert answer.chosen is not None
    assert answer.in_force.k == {"default": 0.0, "chat": 0.0}
    assert answer.chosen.k["default"] == 3.2


def test_k_by_load_is_for_requests_like_the_latest_also_while_none_runs() -> None:
    scheduler = engine()
    scheduler.has_unfinished_requests = lambda: False
    answer = said(scheduler, Kind.K_BY_LOAD)
    assert (answer.decodes, answer.unknown) == (0, "")
    assert set(answer.k_by_load) == {"default", "chat", ALL_CLASSES}
    assert answer.k_by_load["default"][0].lo == 1
    assert answer.k_by_load["default"][-1].hi == 32
    assert answer.k_by_load["default"][0].k > answer.k_by_load["chat"][0].k


def test_it_says_why_it_knows_nothing() -> None:
    idle = engine()
    idle.has_unfinished_requests = lambda: False
    new = engine(is_measured=False)
    fresh = engine()
    fresh.steps.decoding = []
    broken = engine()
    broken.steps.decoding = [SimpleNamespace()]
    assert said(idle).unknown == "nothing runs: K depends on the load"
    assert said(fresh, Kind.K_BY_LOAD).unknown == "nothing runs: K depends on the load"
    assert said(new).unknown == said(new, Kind.K_BY_LOAD).unknown
    assert said(new).unknown == "too few steps were measured, or no traffic was seen yet"
    assert said(engine(), "horoscope").unknown == "this engine's version knows no question 'horoscope'"
    assert said(broken).unknown == "the engine failed at it: AttributeError"

"""Questions to engines: which are asked, how long they are waited for, and what their answers say together."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specpilot.controller.admin.asking import SAMPLE, WAIT_S, Asked, Asker, MissedGoal, sample
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.latency_goal import Slo, Statistic
from specpilot.policy.model_policy import ClassPolicy, Mode, Policy
from specpilot.policy.questions import Answer, Kind, Prediction, Question
from specpilot.policy.schedule import Cause, ClassGuidance, Guidance, KRange, Override, Schedule
from tests.simulation.engine import MODEL, POOL
from tests.support.controller_store import MemoryStore
from tests.support.hand_clock import Clock
from tests.support.loop_rig import registered

Says = Callable[[Question, str], Answer | InvalidDocumentError | None]


def prediction(throughput: float, **k: float) -> Prediction:
    return Prediction(k, throughput, 0.01, dict.fromkeys(k, 10.0))


class Fleet:
    """A store with engines that answer as `says`; a wait of the asker is time that passes."""

    def __init__(self, count: int, says: Says) -> None:
        self.store, self.clock, self.waits = MemoryStore(), Clock(), 0
        for number in range(count):
            self.store.heartbeat(registered(f"e{number:03d}"), 5.0)
        self.questions: list[Question] = []
        put_question = self.store.put_question

        def put(model: str, pool: str, question: Question) -> None:
            put_question(model, pool, question)
            self.questions.append(question)
            for name in question.engines:
                answer = says(question, name)
                if answer is not None:
                    self.store.answered[question.question_id, name] = answer

        self.store.put_question = put  # type: ignore[method-assign]

    async def _sleep(self, seconds: float) -> None:
        self.waits += 1
        self.clock.at += seconds

    @property
    def asker(self) -> Asker:
        return Asker(self.store, self.clock, self._sleep)  # type: ignore[arg-type]

    async def ask(self, kind: Kind = Kind.EXPLAIN) -> Asked:
        return await self.asker.ask(MODEL, POOL, kind)


def explains(question: Question, name: str) -> Answer:
    rate = 100.0 + int(name[1:])
    return Answer(
        question.question_id, name, decodes=4, in_force=prediction(rate, code=2.0),
        chosen=prediction(2 * rate, code=4.0), static=prediction(50.0, code=1.0),
    )  # fmt: skip


def test_a_sample_is_small_spread_and_the_same_each_time() -> None:
    names = [f"e{number:03d}" for number in range(100)]
    assert sample(names) == sample(names[::-1])
    assert sample(names) == tuple(f"e{number:03d}" for number in (0, 12, 25, 37, 50, 62, 75, 87))
    assert sample(names[:3]) == ("e000", "e001", "e002")
    assert sample([]) == ()


async def test_of_a_large_pool_a_sample_is_asked_and_stands_for_all() -> None:
    fleet = Fleet(100, explains)
    found = await fleet.ask()
    assert (found.engines, len(found.answers), found.silent, fleet.waits) == (100, SAMPLE, {}, 0)
    mean = 100.0 + sum(int(name[1:]) for name in fleet.questions[0].engines) / SAMPLE
    assert found.in_force is not None
    assert found.chosen is not None
    assert found.in_force.throughput == pytest.approx(mean)
    assert (found.chosen.k, found.gain_ratio) == ({"code": 4.0}, pytest.approx(1.0))
    assert fleet.store.questions(MODEL, POOL) == []  # nothing is left to be answered


async def test_an_engine_that_does_not_answer_in_time_is_named_and_the_others_count() -> None:
    fleet = Fleet(3, lambda question, name: None if name == "e001" else explains(question, name))
    began = fleet.clock.at
    found = await fleet.ask()
    assert found.silent == {"e001": "no answer within 1 s"}
    assert [answer.engine_id for answer in found.answers] == ["e000", "e002"]
    assert found.in_force is not None
    assert found.in_force.throughput == pytest.approx(101.0)
    assert WAIT_S <= fleet.clock.at - began <= WAIT_S + 0.05


async def test_an_answer_that_cannot_be_read_is_named_and_not_waited_for() -> None:
    broken = InvalidDocumentError("Answer", ())
    fleet = Fleet(2, lambda question, name: broken if name == "e001" else explains(question, name))
    found = await fleet.ask()
    assert (found.silent, len(found.answers), fleet.waits) == ({"e001": "its answer cannot be read"}, 1, 0)


async def test_where_no_engine_predicts_the_reason_is_that_of_an_engine() -> None:
    def unknown(question: Question, name: str) -> Answer:
        return Answer(question.question_id, name, unknown="nothing runs")

    assert (await Fleet(2, unknown).ask()).unknown == "nothing runs"
    assert (await Fleet(2, lambda *_: None).ask()).unknown == "no engine answers"
    nobody = Fleet(0, explains)
    assert (await nobody.ask()).unknown == "no engine of the pool can speculate"
    nobody.store.heartbeat(replace(registered("plain"), k_max=0), 5.0)
    assert (await nobody.ask()).unknown == "no engine of the pool can speculate"
    assert nobody.questions == []


async def test_an_engine_that_knows_nothing_yet_leaves_the_numbers_to_the_others() -> None:
    def partly(question: Question, name: str) -> Answer:
        return Answer(question.question_id, name, unknown="new") if name == "e000" else explains(question, name)

    found = await Fleet(2, partly).ask()
    assert found.in_force is not None
    assert (found.in_force.throughput, found.unknown, len(found.answers)) == (101.0, "", 2)


async def test_k_by_load_is_the_mean_of_the_engines_at_each_load() -> None:
    rows: dict[str, Any] = {
        "e000": {"*": (KRange(1, 4, 7), KRange(5, 32, 2))},
        "e001": {"*": (KRange(1, 8, 5), KRange(9, 64, 1)), "code": (KRange(1, 64, 3),)},
    }
    fleet = Fleet(2, lambda question, name: Answer(question.question_id, name, k_by_load=rows[name]))
    found = await fleet.ask(Kind.K_BY_LOAD)
    assert found.k_by_load == {
        "*": (KRange(1, 4, 6), KRange(5, 8, 4), KRange(9, 64, 2)),
        "code": (KRange(1, 64, 3),),
    }
    assert (fleet.questions[0].kind, found.unknown) == ("k_by_load", "")


async def test_a_percentile_is_predicted_from_the_mean_by_what_was_measured() -> None:
    tpot = {"e000": {"code": {Statistic.MEAN: 8.0, Statistic.P95: 12.0}}, "e001": {"code": {Statistic.MEAN: 12.0}}}
    loads = {"e000": {"code": 8}, "e001": {"code": 11}}

    def says(question: Question, name: str) -> Answer:
        return replace(explains(question, name), tpot_ms=tpot[name], keeps_up_to=loads[name])

    found = await Fleet(2, says).ask()
    assert found.tpot_ms == {"code": {"mean": 10.0, "p95": 12.0}}
    assert found.predicted_tpot_ms["chosen"] == {"code": {"mean": 10.0, "p95": 12.0}}
    assert found.keeps_up_to == {"code": 8}


async def test_a_forecast_is_by_the_margins_in_force() -> None:
    slo = Slo(tpot_ms={Statistic.P95: 30.0})
    policy, fleet = Policy(MODEL, classes={"code": ClassPolicy(slo=slo)}), Fleet(1, explains)
    in_force = Guidance(classes={"default": ClassGuidance(), "code": ClassGuidance(tpot_bound_ms=24.0, slo=slo)})
    fleet.store.published[MODEL, POOL] = Schedule(MODEL, POOL, 3, 0.0, in_force)
    await fleet.asker.forecast(MODEL, policy, Mode.ACT)
    [question] = fleet.questions
    assert question.guidance is not None
    assert question.guidance.classes["code"].tpot_bound_ms == 24.0


MEASURED = {"code": {Statistic.MEAN: 8.0, Statistic.P95: 12.0}}


@pytest.mark.parametrize(
    ("classes", "of_default", "measured", "missed"),
    [
        ({"code": {Statistic.MEAN: 10.0}}, None, {}, None),
        ({"code": {Statistic.MEAN: 9.9}}, None, {}, None),  # a bound has a price, so a choice may exceed it a little
        ({"code": {Statistic.MEAN: 9.0}}, None, {}, MissedGoal(Statistic.MEAN, 10.0, 9.0)),
        # A percentile is missed by itself though the mean is below it.
        ({"code": {Statistic.P95: 15.0}}, None, MEASURED, None),
        ({"code": {Statistic.P95: 14.0}}, None, MEASURED, MissedGoal(Statistic.P95, 15.0, 14.0)),
        # A class without a goal has that of the default.
        ({}, {Statistic.MEAN: 5.0}, {}, MissedGoal(Statistic.MEAN, 10.0, 5.0)),
        ({}, None, {}, None),
    ],
)
async def test_a_forecast_says_which_goals_its_choice_misses(
    classes: dict[str, Any], of_default: Any, measured: dict[str, Any], missed: MissedGoal | None
) -> None:
    slo = Slo(tpot_ms=of_default) if of_default else None
    policy = Policy(
        MODEL, slo=slo, classes={name: ClassPolicy(slo=Slo(tpot_ms=goal)) for name, goal in classes.items()}
    )
    fleet = Fleet(1, lambda question, name: replace(explains(question, name), tpot_ms=measured))
    [found] = await fleet.asker.forecast(MODEL, policy, Mode.ACT)
    assert found.missed_goals == ({"code": missed} if missed else {})


@pytest.mark.parametrize(
    ("policy", "freeze", "override"),
    [
        (Policy(MODEL, k_max=2), None, None),
        (Policy(MODEL, mode=Mode.OFF, static_k=2), None, Override(2, Cause.OFF)),
        (None, None, Override(3, Cause.ADVISE)),  # the defaults
        (Policy(MODEL, k_max=2), Freeze(MODEL, Hold.CURRENT, 0.0), Override(None, Cause.FROZEN)),
        (Policy(MODEL, k_max=2), Freeze(MODEL, Hold.CURRENT, 0.0, until=1.0), None),  # is over
    ],
)
async def test_a_forecast_asks_every_pool_what_the_policy_would_do(
    policy: Policy | None, freeze: Freeze | None, override: Override | None
) -> None:
    fleet = Fleet(1, explains)
    fleet.store.heartbeat(replace(registered("e100"), pool="other"), 5.0)
    fleet.store.heartbeat(replace(registered("e200"), model="another"), 5.0)
    if freeze is not None:
        fleet.store.frozen[MODEL] = freeze
    found = await fleet.asker.forecast(MODEL, policy, Mode.ADVISE)
    assert [item.pool for item in found] == [POOL, "other"]
    assert [question.engines for question in fleet.questions] == [("e000",), ("e100",)]
    for question in fleet.questions:
        assert question.guidance is not None
        assert question.guidance.override == override
        assert question.guidance.classes["default"].k_max == (2 if policy and policy.k_max else 64)

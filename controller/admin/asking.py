"""Asks engines about K: what they run and why, what they would choose, what a policy would do (`policy.questions`).

A few engines stand for a large pool. An engine that has not answered within `WAIT_S` is named as silent. Numbers of a
pool are sums or means over the engines that answered.
"""

import asyncio
import math
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TypeVar

from specpilot.controller.decision.context import PoolContext
from specpilot.controller.decision.latency_margin import BROKEN
from specpilot.controller.pools import pool_contexts
from specpilot.policy.clock import Clock
from specpilot.policy.freeze import freeze_of
from specpilot.policy.latency_goal import Statistic
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.names import DEFAULT_CLASS, PoolKey
from specpilot.policy.questions import Answer, Kind, Prediction, Question
from specpilot.policy.schedule import Guidance, KRange
from specpilot.policy.store import Store

T = TypeVar("T")
U = TypeVar("U")
_Key = TypeVar("_Key", bound=str)
ByStatistic = Mapping[str, Mapping[Statistic, float]]

SAMPLE = 8
"""Largest number of engines of a pool that are asked."""

WAIT_S = 1.0
"""Seconds in which engines must answer. An engine reads questions at least every half second."""

_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class MissedGoal:
    """A statistic of TPOT that is predicted above its limit: a goal's, or the bound on the mean."""

    statistic: Statistic
    predicted_ms: float
    limit_ms: float


@dataclass(frozen=True, slots=True)
class Asked:
    """The answers to one question to a pool. `silent`: by engine, why there is no answer of it.

    `in_force`, `chosen` and `static` are means over the answers that predict, `gain_ratio` is the throughput of
    `chosen` over that in force, minus 1, and `k_by_load` has the mean K. `tpot_ms` is the measured TPOT by class and
    statistic, `predicted_tpot_ms` the same for the K in force and the choice: the predicted mean, times the measured
    statistic over the measured mean. `keeps_up_to` is that of the engine with the least. `missed_goals` of a
    forecast are by class the goals on TPOT that `chosen` misses. `unknown`: why nothing is predicted.
    """

    model: str
    pool: str
    engines: int
    answers: tuple[Answer, ...] = ()
    silent: Mapping[str, str] = field(default_factory=dict)
    in_force: Prediction | None = None
    chosen: Prediction | None = None
    static: Prediction | None = None
    gain_ratio: float | None = None
    k_by_load: Mapping[str, tuple[KRange, ...]] = field(default_factory=dict)
    tpot_ms: ByStatistic = field(default_factory=dict)
    predicted_tpot_ms: Mapping[str, ByStatistic] = field(default_factory=dict)
    keeps_up_to: Mapping[str, int] = field(default_factory=dict)
    missed_goals: Mapping[str, MissedGoal] = field(default_factory=dict)
    unknown: str = ""


class Asker:
    """Asks engines through `store`; one question to a pool at a time."""

    def __init__(self, store: Store, clock: Clock, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._store = store
        self._clock = clock
        self._sleep = sleep
        self._asking: defaultdict[PoolKey, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ask(self, model: str, pool: str, kind: Kind, guidance: Guidance | None = None) -> Asked:
        """Ask the engines of a pool; raises `StoreUnavailableError`."""
        engines = await asyncio.to_thread(self._store.engines)
        able = [item.engine_id for item in engines if (item.model, item.pool) == (model, pool) and item.k_max > 0]
        question = Question(secrets.token_hex(8), kind.value, sample(able), guidance)
        if not able:
            return combined(model, pool, question, {}, 0)
        async with self._asking[model, pool]:
            await asyncio.to_thread(self._store.put_question, model, pool, question)
            until = self._clock.monotonic() + WAIT_S
            while True:
                answers = await asyncio.to_thread(self._store.answers, question)
                if len(answers) == len(question.engines) or self._clock.monotonic() >= until:
                    break
                await self._sleep(_LOOK_S)
            await asyncio.to_thread(self._store.remove_question, model, pool, question.question_id)
        return combined(model, pool, question, answers, len(able))

    async def forecast(self, model: str, policy: Policy | None, default_mode: Mode) -> list[Asked]:
        """Ask every pool of a model what `policy` would do (`None`: the defaults); K of a frozen model stays."""
        tried = policy or Policy(model, mode=default_mode)
        store = self._store
        engines, freezes, schedules = await asyncio.to_thread(
            lambda: (store.engines(), store.freezes(), store.schedules())
        )
        freeze = freeze_of(freezes, model, self._clock.now())
        of_model = [item for item in engines if item.model == model]
        contexts = [item.with_margins() for item in pool_contexts(of_model, {model: tried}, schedules, default_mode)]
        return await asyncio.gather(
            *(self.ask(model, item.pool, Kind.EXPLAIN, _guidance(replace(item, freeze=freeze))) for item in contexts)
        )


def sample(engines: Sequence[str]) -> tuple[str, ...]:
    """Return at most `SAMPLE` of the engines, spread over their order."""
    names, count = sorted(engines), min(len(engines), SAMPLE)
    return tuple(names[at * len(names) // count] for at in range(count))


def combined(
    model: str, pool: str, question: Question, answers: Mapping[str, Answer | Exception], engines: int
) -> Asked:
    """Return what the answers say together; `engines` is the number of engines of the pool that can speculate."""
    readable = tuple(item for name in question.engines if isinstance(item := answers.get(name), Answer))
    silent = {
        name: "its answer cannot be read" if name in answers else f"no answer within {WAIT_S:g} s"
        for name in question.engines
        if not isinstance(answers.get(name), Answer)
    }
    predicting = [item for item in readable if item.chosen is not None]
    in_force, chosen, static = (
        _mean([each for item in predicting if (each := getattr(item, way)) is not None])
        for way in ("in_force", "chosen", "static")
    )
    rows = [item.k_by_load for item in readable if item.k_by_load]
    reasons = [item.unknown for item in readable if item.unknown]
    unknown = ""
    if chosen is None and not rows:
        unknown = reasons[0] if reasons else "no engine answers" if engines else "no engine of the pool can speculate"
    return Asked(
        model, pool, engines, readable, silent, in_force, chosen, static,
        gain_ratio=chosen.throughput / in_force.throughput - 1 if chosen and in_force else None,
        tpot_ms=(measured := _by_class([item.tpot_ms for item in readable], lambda each: _by_class(each, fmean))),
        predicted_tpot_ms=(
            predicted := {
                way: _predicted(prediction, measured)
                for way, prediction in (("in_force", in_force), ("chosen", chosen))
                if prediction is not None
            }
        ),
        keeps_up_to=_by_class([item.keeps_up_to for item in readable], min),
        k_by_load=_by_class(rows, _mean_row),
        missed_goals=_missed(chosen, question.guidance, predicted.get("chosen", {})),
        unknown=unknown,
    )  # fmt: skip


def _guidance(context: PoolContext) -> Guidance:
    return context.guidance() if context.freeze is None else context.frozen_guidance(context.freeze)


def _missed(chosen: Prediction | None, guidance: Guidance | None, predicted: ByStatistic) -> dict[str, MissedGoal]:
    """Return the goals on TPOT that the choice misses: by their statistic; by their bound while none was measured."""
    missed = {}
    for name, mean_ms in chosen.itl_ms.items() if chosen is not None and guidance is not None else ():
        assert guidance is not None
        item = guidance.classes.get(name) or guidance.classes[DEFAULT_CLASS]
        goal = item.slo.tpot if item.slo is not None else None
        of_goal = predicted.get(name, {}).get(goal.statistic) if goal is not None else None
        if goal is not None and of_goal is not None:
            figures = MissedGoal(goal.statistic, of_goal, goal.ms)
        else:
            figures = MissedGoal(Statistic.MEAN, mean_ms, item.tpot_bound_ms or math.inf)
        if figures.predicted_ms > BROKEN * figures.limit_ms:
            missed[name] = figures
    return missed


def _by_class(rows: Sequence[Mapping[_Key, T]], joined: Callable[[list[T]], U]) -> dict[_Key, U]:
    """Return for each class, or other key, what `joined` makes of the values of all rows that have one for it."""
    keys = sorted({key for row in rows for key in row})
    return {key: joined([row[key] for row in rows if key in row]) for key in keys}


def _mean(predictions: Sequence[Prediction]) -> Prediction | None:
    if not predictions:
        return None
    return Prediction(
        k=_by_class([item.k for item in predictions], fmean),
        throughput=fmean(item.throughput for item in predictions),
        step_s=fmean(item.step_s for item in predictions),
        itl_ms=_by_class([item.itl_ms for item in predictions], fmean),
    )


def _predicted(prediction: Prediction, measured: ByStatistic) -> dict[str, dict[Statistic, float]]:
    return {
        name: {key: prediction.itl_ms[name] * ms / statistics[Statistic.MEAN] for key, ms in statistics.items()}
        for name, statistics in measured.items()
        if name in prediction.itl_ms and statistics.get(Statistic.MEAN)
    }


def _mean_row(rows: Sequence[Sequence[KRange]]) -> tuple[KRange, ...]:
    """Return the rounded mean K of several engines; above its last range the last K of a row applies."""
    mean: list[KRange] = []
    low = 1
    for high in sorted({item.hi for row in rows for item in row}):
        ks = [next((item.k for item in row if low <= item.hi), row[-1].k) for row in rows]
        k = int(sum(ks) / len(ks) + 0.5)
        if mean and mean[-1].k == k:
            mean[-1] = mean[-1]._replace(hi=high)
        else:
            mean.append(KRange(low, high, k))
        low = high + 1
    return tuple(mean)

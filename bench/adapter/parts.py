"""The cost of a part of the adapter in a step, from pieces of the same replies that run with it and without it.

Two engines that alternate differ by the machine's other load and by the placement of their memory: by one or two
percent here. Neighbouring steps of one engine share both. A piece has eight steps, because a step also pays for the
state of the processor's caches that the last one left. A random draw decides which of two neighbouring pieces has the
part.

Measured are only parts that a step can omit without an effect on the next step, and only while all requests run.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from specpilot.bench.gpu_engine.engine import runner_of

EVERYTHING = "all three"
"""The adapter's work in a step at K = 0."""

AT_K_MAX = "planning, cutting and counting"
"""Its work in a step at K_max."""

WIDTH = "draft width"
"""Its saving at a K below K_max."""

STEPS_IN_A_PIECE = 8
"""Takes 20 to 120 ms: shorter than changes of the machine's speed, longer than a cold start of the caches."""

AT_K_0 = ("keeping rows", "planning and counting", EVERYTHING, "steps run as without speculation")
"""Parts that can be omitted at K = 0."""

_DRAWS = 300
_LEVEL = 0.95


class Pair(NamedTuple):
    """Seconds of a step in two neighbouring pieces of a reply, with the part and without it."""

    with_it: float
    without: float


class Estimate(NamedTuple):
    """A median with a bootstrap interval of 95 %."""

    median: float
    low: float
    high: float


class Cost(NamedTuple):
    """The cost of a part in a step, from `pairs` pairs.

    `step` is the median step with the part, in microseconds; `part` the difference within a pair; `ratio` a step
    without the part over one with it.
    """

    step: float
    part: Estimate
    ratio: Estimate
    pairs: int


def cost(pairs: Sequence[Pair]) -> Cost:
    """Return the cost of the part that `pairs` measured; raises `StatisticsError` when there are none."""
    return Cost(
        1e6 * statistics.median(pair.with_it for pair in pairs),
        _estimate([1e6 * (with_it - without) for with_it, without in pairs]),
        _estimate([without / with_it for with_it, without in pairs]),
        len(pairs),
    )


def _estimate(values: Sequence[float]) -> Estimate:
    rng = random.Random(0)  # noqa: S311 - a resampling
    drawn = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(_DRAWS))
    tail = round((1.0 - _LEVEL) / 2.0 * _DRAWS)
    return Estimate(statistics.median(values), drawn[tail], drawn[-1 - tail])


@contextmanager
def leaving_out(llm: Any, part: str, seed: int) -> Iterator[list[Pair]]:
    """Omit `part` (a key of `PARTS`) in every other piece of the steps of `llm`; yields the pairs as they end.

    Not yielded are the first pair, which has the prefill, and pairs in which a request ends or fewer run than began.
    """
    rng = random.Random(seed)  # noqa: S311 - a reproducible order
    engine, pairs = llm.llm_engine, list[Pair]()
    step, count, most, is_out, begins_without = engine.step, 0, 0, False, False
    seconds = [0.0, 0.0]  # of the pair's steps: with the part, without it

    def timed() -> Any:
        nonlocal count, most, is_out, begins_without
        most = max(most, engine.get_num_unfinished_requests())
        place = count % (2 * STEPS_IN_A_PIECE)
        if place == 0:
            begins_without = rng.random() < 0.5  # noqa: PLR2004 - half
            seconds[:] = 0.0, 0.0
        is_out = begins_without == (place < STEPS_IN_A_PIECE)
        began = time.perf_counter()
        outputs = step()
        seconds[is_out] += time.perf_counter() - began
        count += 1
        is_whole = count % (2 * STEPS_IN_A_PIECE) == 0 and count > 2 * STEPS_IN_A_PIECE
        if is_whole and engine.get_num_unfinished_requests() == most:
            pairs.append(Pair(*(total / STEPS_IN_A_PIECE for total in seconds)))
        return outputs

    replaced = [
        (owner, name, _either(getattr(owner, name), other, lambda: is_out))
        for owner, name, other in PARTS[part](engine.engine_core.engine_core)
    ]
    for owner, name, method in (*replaced, (engine, "step", timed)):
        setattr(owner, name, method)
    try:
        yield pairs
    finally:
        for owner, name, _ in (*replaced, (engine, "step", timed)):
            delattr(owner, name)  # uncovers the class's own method


def _either(method: Callable[..., Any], other: Callable[..., Any], is_out: Callable[[], bool]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (other if is_out() else method)(*args, **kwargs)

    return call


_STOCK_AT_K_MAX = "update_draft_token_ids", "make_spec_decoding_stats", "update_from_output"

_Replacement = tuple[Any, str, Callable[..., Any]]  # object, name of its method, the replacement


def _keeping(core: Any) -> list[_Replacement]:
    """The rows that wait for the drafter."""
    backlog = _drafting(core).backlog
    return [(backlog, name, lambda *_: None) for name in ("keep", "keep_plain")]


def _planning_and_counting(core: Any) -> list[_Replacement]:
    """K of each request, and the evidence of each step; a step without a plan gives no evidence."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - as above

    from specpilot.engine_adapter.plan.step_plan import PLAN, StepPlan  # noqa: PLC0415 - as above

    scheduler = core.scheduler

    def without(output: Any) -> None:
        Scheduler._update_after_schedule(scheduler, output)  # noqa: SLF001 - vLLM's, without the adapter's
        output.num_spec_tokens_to_schedule = 0
        setattr(output, PLAN, StepPlan(0))

    return [(scheduler, "_update_after_schedule", without)]


def _at_k_max(core: Any) -> list[_Replacement]:
    """K of each request, its draft cut to K, the catch-up, and the evidence of each step."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - as above

    scheduler, backlog, k_max = core.scheduler, _drafting(core).backlog, core.scheduler.control.k_max
    stock = [(scheduler, name, getattr(Scheduler, name).__get__(scheduler)) for name in _STOCK_AT_K_MAX]

    def without(output: Any) -> None:
        Scheduler._update_after_schedule(scheduler, output)  # noqa: SLF001 - vLLM's, without the adapter's
        output.num_spec_tokens_to_schedule = k_max  # until a plan sets it, it has the value of the last reply's end

    backlog_methods = [(backlog, name, lambda *_: None) for name in ("catch_up", "keep_of")]
    return [(scheduler, "_update_after_schedule", without), *stock, *backlog_methods]


def _everything(core: Any) -> list[_Replacement]:
    return [*_keeping(core), *_planning_and_counting(core)]


def _plainness(core: Any) -> list[_Replacement]:
    """Steps at K = 0 run as without speculation; without this part vLLM runs them as steps that speculate."""
    from specpilot.engine_adapter.vllm.scheduler_output import (  # noqa: PLC0415 - beside vLLM's, at first use
        forget_useless,
        plan_of,
    )

    runner, drafting = runner_of(core), _drafting(core)
    execute_model = type(runner).execute_model.__wrapped__

    def not_plainly(scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        forget_useless(drafting.backlog.rows, scheduler_output)
        drafting.plan, drafting.is_plain = plan_of(scheduler_output), False
        return execute_model(runner, scheduler_output, *args, **kwargs)

    return [(runner, "execute_model", not_plainly)]


def _width(core: Any) -> list[_Replacement]:
    """The drafter lays out slots for the step's largest K; without this part for K_max in every step."""
    steps, k_max = core.scheduler.steps, core.scheduler.control.k_max
    begin = steps.begin

    def at_full_width(*args: Any) -> Any:
        return replace(begin(*args), width=k_max)

    return [(steps, "begin", at_full_width)]


def _drafting(core: Any) -> Any:
    """Return the adapter's state of the drafter of an engine's `core` in this process."""
    from specpilot.engine_adapter.vllm.v1.drafting import of_runner  # noqa: PLC0415 - beside vLLM's, at first use

    return of_runner(runner_of(core))


PARTS: dict[str, Callable[[Any], list[_Replacement]]] = {
    "keeping rows": _keeping,
    "planning and counting": _planning_and_counting,
    EVERYTHING: _everything,
    "steps run as without speculation": _plainness,
    AT_K_MAX: _at_k_max,
    WIDTH: _width,
}
"""Parts that can be omitted, by name: `AT_K_0` at K = 0 for all, `AT_K_MAX` at K_max, `WIDTH` at any K."""

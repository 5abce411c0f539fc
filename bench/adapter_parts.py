"""What a part of the adapter takes of a step: steps with it and without it, drawn at random within the same replies.

Two engines in turns differ by what the machine does meanwhile, and by where their memory happens to lie: by one or two
percent here. Neighbouring steps of one engine share both, so a few thousand of them tell some 30 microseconds apart;
but what a step leaves in the processor's caches is charged to the next one, whichever that is.

Only at K = 0 or at K_max for all, where what a step leaves out is not missed by the next.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

EVERYTHING = "all three"
"""What the adapter does in a step at K = 0."""

AT_K_MAX = "planning, cutting and counting"
"""What it does in a step at K_max."""

_DRAWS = 300
_LEVEL = 0.95


class Step(NamedTuple):
    """A step of an engine: whether the part was left out of it, and how long it took."""

    without: bool
    seconds: float


class Cost(NamedTuple):
    """What a part takes of a step, in microseconds, with a bootstrap interval of 95 %; `step` is the step with it."""

    step: float
    part: float
    low: float
    high: float


def cost(steps: Sequence[Step], seed: int = 0) -> Cost:
    """Return the difference of the medians of steps with the part and without it; raises `StatisticsError` on none."""
    with_it = [1e6 * seconds for without, seconds in steps if not without]
    without_it = [1e6 * seconds for without, seconds in steps if without]
    rng = random.Random(seed)  # noqa: S311 - a resampling
    drawn = sorted(
        statistics.median(rng.choices(with_it, k=len(with_it)))
        - statistics.median(rng.choices(without_it, k=len(without_it)))
        for _ in range(_DRAWS)
    )
    tail = round((1.0 - _LEVEL) / 2.0 * _DRAWS)
    median = statistics.median(with_it)
    return Cost(median, median - statistics.median(without_it), drawn[tail], drawn[-1 - tail])


@contextmanager
def leaving_out(llm: Any, part: str, seed: int) -> Iterator[list[Step]]:
    """Leave `part` out of half of the steps of `llm`, drawn at random; yields the steps as they end.

    `part` is a key of `PARTS`.
    """
    rng = random.Random(seed)  # noqa: S311 - a reproducible order
    engine, is_out, steps = llm.llm_engine, False, list[Step]()
    step = engine.step

    def timed() -> Any:
        nonlocal is_out
        is_out = rng.random() < 0.5  # noqa: PLR2004 - half
        began = time.perf_counter()
        outputs = step()
        steps.append(Step(is_out, time.perf_counter() - began))
        return outputs

    replaced = [
        (owner, name, _either(getattr(owner, name), other, lambda: is_out))
        for owner, name, other in PARTS[part](engine.engine_core.engine_core)
    ]
    for owner, name, method in (*replaced, (engine, "step", timed)):
        setattr(owner, name, method)
    try:
        yield steps
    finally:
        for owner, name, _ in (*replaced, (engine, "step", timed)):
            delattr(owner, name)  # the class's own shows again


def _either(method: Callable[..., Any], other: Callable[..., Any], is_out: Callable[[], bool]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (other if is_out() else method)(*args, **kwargs)

    return call


_STOCK_AT_K_MAX = "_update_after_schedule", "update_draft_token_ids", "make_spec_decoding_stats", "update_from_output"

_Replacement = tuple[Any, str, Callable[..., Any]]  # object, name of its method, what to call instead


def _keeping(core: Any) -> list[_Replacement]:
    """The rows that wait for the drafter."""
    from engine_adapter.backlog import BACKLOG  # noqa: PLC0415 - beside vLLM's, at first use

    backlog = getattr(runner_of(core).drafter, BACKLOG)
    return [(backlog, name, lambda *_: None) for name in ("keep", "keep_plain")]


def _planning_and_counting(core: Any) -> list[_Replacement]:
    """K of each request, and the evidence of each step; a step that was not planned is not counted."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - as above

    from engine_adapter.plan import CATCH_UP  # noqa: PLC0415 - as above

    scheduler = core.scheduler

    def without(output: Any) -> None:
        Scheduler._update_after_schedule(scheduler, output)  # noqa: SLF001 - vLLM's, without the adapter's
        output.num_spec_tokens_to_schedule = 0
        setattr(output, CATCH_UP, ())

    return [(scheduler, "_update_after_schedule", without)]


def _at_k_max(core: Any) -> list[_Replacement]:
    """K of each request, its draft cut to that, who catches up, and the evidence of each step."""
    from vllm.v1.core.sched.scheduler import Scheduler  # noqa: PLC0415 - as above

    from engine_adapter.backlog import BACKLOG  # noqa: PLC0415 - as above

    scheduler, backlog = core.scheduler, getattr(runner_of(core).drafter, BACKLOG)
    stock = [(scheduler, name, getattr(Scheduler, name).__get__(scheduler)) for name in _STOCK_AT_K_MAX]
    return [*stock, *((backlog, name, lambda *_: None) for name in ("catch_up", "keep_waiting"))]


def _everything(core: Any) -> list[_Replacement]:
    return [*_keeping(core), *_planning_and_counting(core)]


def _plainness(core: Any) -> list[_Replacement]:
    """Steps run as without speculation: without it, vLLM runs them as any step of an engine that speculates."""
    from engine_adapter.undrafted import PLAIN  # noqa: PLC0415 - beside vLLM's, at first use

    runner = runner_of(core)
    execute_model = type(runner).execute_model.__wrapped__

    def not_plainly(*args: Any, **kwargs: Any) -> Any:
        setattr(runner, PLAIN, False)
        return execute_model(runner, *args, **kwargs)

    return [(runner, "execute_model", not_plainly)]


def runner_of(core: Any) -> Any:
    """Return the model runner of an engine's `core` in this process."""
    return core.model_executor.driver_worker.worker.model_runner


PARTS: dict[str, Callable[[Any], list[_Replacement]]] = {
    "keeping rows": _keeping,
    "planning and counting": _planning_and_counting,
    EVERYTHING: _everything,
    "steps run as without speculation": _plainness,
    AT_K_MAX: _at_k_max,
}
"""What may be left out, by name: at K_max the last, the others at K = 0."""

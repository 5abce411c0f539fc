"""Forecasts the choice of K under another policy. The state of the control law does not change.

The control law decides twice for each policy, on copies of the pool's state: the first decision is the choice; the
second assumes that this choice is in force, and so predicts its throughput. When a window of the control group runs,
the forecast ignores it: it ends within seconds and does not depend on the policy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.law.reason import Reason, meaning_of
from specpilot.policy.bands import row_parts
from specpilot.policy.freeze import Hold
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.schedule import KRange, Ranges, Schedule

_UNKNOWN = {
    Reason.STALE: "the evidence is stale: no engine of the pool was scraped lately",
    Reason.IDLE: "nothing runs: the policy's gain depends on the load",
    Reason.UNPRICED: "no busy engine has measured enough steps yet",
}


@dataclass(frozen=True, slots=True)
class Outlook:
    """The choice of K under one policy for one pool at the present load; `None` is unknown.

    `k` is K by row (a class, or a band of a class) on the engines; `schedule` is K by row and running decodes.
    `throughput` is predicted in tokens per second and engine, `itl_ms` the predicted mean inter-token latency by row.
    """

    reason: str
    meaning: str
    k: Mapping[str, int]
    schedule: Mapping[str, tuple[KRange, ...]]
    throughput: float | None
    itl_ms: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class PoolForecast:
    """One pool under the present policy (`today`) and under the new one (`then`), both from the same estimates.

    `gain_ratio` is the predicted throughput over today's, minus 1. `unknown` is the reason for which there is no
    forecast; it is empty if there is one.
    """

    pool: str
    today: Outlook | None
    then: Outlook | None
    gain_ratio: float | None = None
    unknown: str = ""


Forecast = Callable[[str, Policy | None], Sequence[PoolForecast]]
"""Forecasts every pool of a model under a policy; `None` is the defaults. Does no I/O."""


@dataclass(frozen=True, slots=True)
class LawView:
    """The state of a running loop that a forecast reads: the control law, every pool with its present policy, the time.

    `now` is steady seconds, `at` Unix seconds.
    """

    law: ControlLaw
    pools: Sequence[PoolContext]
    now: float
    at: float


def forecaster(view: Callable[[], LawView | None], default_mode: Mode) -> Forecast:
    """Return the forecast over `view`; `default_mode` is the mode of models that have no policy."""

    def forecast(model: str, policy: Policy | None) -> list[PoolForecast]:
        state = view()
        if state is None:
            return []
        tried = policy or Policy(model, mode=default_mode)
        return [forecast_of(state, context, tried) for context in state.pools if context.model == model]

    return forecast


def forecast_of(view: LawView, context: PoolContext, policy: Policy) -> PoolForecast:
    """Return the choice of K for one pool under the present policy and under `policy`."""
    today, then = (_outlook(view, replace(context, policy=each)) for each in (context.policy, policy))
    unknown = "" if then.throughput is not None else _why_unknown(then.reason, today.reason)
    # Both throughputs are weighted by `policy`: a change of weights alone is no gain.
    before = _throughput(_decided_with(view, replace(context, policy=policy), today.schedule))
    gain = then.throughput / before - 1 if then.throughput and before else None
    return PoolForecast(context.pool, today, then, gain, unknown)


def _why_unknown(*reasons: str) -> str:
    """Return why nothing can be predicted: the first of `reasons` that explains it. Mode `off` hides other reasons."""
    return next((_UNKNOWN[Reason(reason)] for reason in reasons if reason in _UNKNOWN), "nothing is predicted yet")


def _outlook(view: LawView, context: PoolContext) -> Outlook:
    chosen = view.law.forecast(context, view.now, view.at)
    if chosen.reason is Reason.CONTROL_GROUP:
        context = replace(context, policy=replace(context.policy, control_group_ratio=0.0))
        chosen = view.law.forecast(context, view.now, view.at)
    rows = _applied(context, chosen)
    result = _decided_with(view, context, rows)
    k = chosen.k(rows)
    step_s = result.evidence.get("step_s", {}).get("predicted")
    bands = result.evidence.get("bands", {})
    return Outlook(
        reason=chosen.reason.value,
        meaning=meaning_of(chosen.reason, context.mode),
        k=k,
        schedule=rows,
        throughput=_throughput(result),
        itl_ms={name: _itl_ms(step_s, name, depth, bands) for name, depth in k.items()},
    )


def _decided_with(view: LawView, context: PoolContext, rows: Ranges) -> TickResult:
    """Return the decision, with its predictions, as if `rows` were in force."""
    schedule = Schedule(context.model, context.pool, 1, 0.0, 60.0, 0.0, rows)
    return view.law.forecast(replace(context, in_force=schedule, hold=Hold.CURRENT), view.now, view.at)


def _throughput(result: TickResult) -> float | None:
    throughput: float | None = result.evidence.get("throughput", {}).get("predicted_in_force")
    return throughput


def _applied(context: PoolContext, chosen: TickResult) -> Ranges:
    """Return the rows on the engines: those published, or in mode `advise`, which publishes none, the static K."""
    if chosen.applied is not None:
        return chosen.applied
    return context.unsteered_rows


def _itl_ms(step_s: float | None, row: str, k: int, bands: Mapping[str, Any]) -> float | None:
    """Return the mean inter-token latency T / AL(K) in ms; a row without a band averages over the bands that run."""
    _, band = row_parts(row)
    row_bands = bands if band is None else {str(band): bands.get(str(band), {})}
    known = [(facts.get("share", 0.0), facts["survival"]) for facts in row_bands.values() if "survival" in facts]
    if band is not None:
        known = [(1.0, survival) for _, survival in known]
    weight = sum(share for share, _ in known)
    if step_s is None or not weight or any(len(survival) < k for _, survival in known):
        return None
    length = sum(share * (1 + sum(survival[:k])) for share, survival in known) / weight
    return float(1000 * step_s / length)

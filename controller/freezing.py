"""Applies a freeze to one pool's tick, before and after the decision. Pure.

While a pool is frozen the control law decides as in mode `advise`: it goes on learning, and does not assume that its
choice is in force. The freeze determines the published schedule.
"""

from collections.abc import Iterable
from dataclasses import replace

from specpilot.controller.estimation.switchback import Draw
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.reason import Reason
from specpilot.controller.law.rows import static_rows
from specpilot.policy.codec import to_plain
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.model_policy import Mode
from specpilot.policy.schedule import Guidance, Ranges


def as_frozen(context: PoolContext, freeze: Freeze | None) -> PoolContext:
    """Return the context for the decision: during a freeze with mode `advise`, which publishes nothing."""
    if freeze is None:
        return context
    mode = Mode.ADVISE if context.policy.mode is Mode.ACT else context.policy.mode
    return replace(context, policy=replace(context.policy, mode=mode), hold=freeze.hold)


def ended_within(freezes: Iterable[Freeze], after: float, at: float) -> list[Freeze]:
    """Return the freezes that expired after `after` (the last tick) and by `at`, both in Unix seconds.

    The leader writes them to the audit. A freeze that expires while no controller leads is not written: the next leader
    has no record of whether the last one wrote it.
    """
    return [freeze for freeze in freezes if freeze.until is not None and after < freeze.until <= at]


def undecided(context: PoolContext) -> TickResult:
    """Return the result of a tick in which the control law failed: no schedule and no evidence."""
    proposed = context.operator_rows if context.in_force is None else context.in_force.classes
    return TickResult(Reason.FROZEN, proposed, publish=None, probe_ratio=0.0, gain_ratio=None, evidence={})


def held(context: PoolContext, result: TickResult, freeze: Freeze | None) -> TickResult:
    """Return `result` with the schedule that `freeze` publishes; K is at most every engine's K_max.

    A freeze of the current K publishes the baseline that was in force when it began, not the schedule of a window of
    the control group or a canary. If engines choose K, the baseline is the estimate of their choice; until there is an
    estimate, they go on choosing by the present policy. If no schedule is in force yet, the freeze publishes the static
    K; in mode `advise` it publishes nothing and the engines keep their own K.
    """
    if freeze is None:
        return result
    if freeze.hold is Hold.CURRENT and _is_unestimated(context, result):
        return _frozen(
            result, freeze, static_rows(context),
            probe_ratio=context.policy.probe_ratio, guidance=context.guidance(),
        )  # fmt: skip
    publish: Ranges | None
    baseline = _baseline(context, result) if freeze.hold is Hold.CURRENT else None
    if baseline is not None:
        publish = {
            name: tuple(item._replace(k=min(item.k, context.k_max)) for item in ranges)
            for name, ranges in baseline[0].items()
        }
    elif freeze.hold is Hold.CURRENT and context.policy.mode is Mode.ADVISE and not context.engines_version:
        publish = None
    else:
        publish = context.operator_rows
    return _frozen(result, freeze, publish, probe_ratio=0.0 if baseline is None else baseline[1])


def _frozen(
    result: TickResult, freeze: Freeze, publish: Ranges | None, *, probe_ratio: float, guidance: Guidance | None = None
) -> TickResult:
    return replace(
        result,
        reason=Reason.FROZEN,
        publish=publish,
        probe_ratio=probe_ratio,
        guidance=guidance,
        fleet=None,
        drawn_guidance=None,
        draw=Draw(),
        is_own_choice=guidance is not None,
        evidence={**result.evidence, "freeze": to_plain(freeze)},
    )


def _is_unestimated(context: PoolContext, result: TickResult) -> bool:
    """Return whether engines choose K and there is no estimate yet; not if the control law failed (`undecided`)."""
    is_guided = context.in_force is not None and context.in_force.guidance is not None
    may_choose = context.policy.mode is Mode.ACT and result.reason not in (Reason.FROZEN, Reason.NO_DRAFTER)
    return is_guided and may_choose and result.baseline is None


def _baseline(context: PoolContext, result: TickResult) -> tuple[Ranges, float] | None:
    """Return the rows and the probe ratio of the baseline schedule; `None` when no schedule is in force."""
    if result.baseline is not None or context.in_force is None:
        return result.baseline
    return context.in_force.classes, context.in_force.probe_ratio

"""What a freeze makes of one pool's tick. Pure: the loop asks before and after the law.

While frozen the law decides as in mode `advise`: it goes on learning, and does not take what it chose for what is in
force. What is published is what the freeze says.
"""

from collections.abc import Iterable
from dataclasses import replace

from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.k_table import Ranges
from specpilot.controller.law.reason import Reason
from specpilot.policy.codec import to_plain
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.types import DEFAULT_CLASS, KRange, Mode


def as_frozen(context: PoolContext, freeze: Freeze | None) -> PoolContext:
    """Return a pool as the law decides for it: under a freeze nothing that it chooses is published."""
    if freeze is None:
        return context
    mode = Mode.ADVISE if context.policy.mode is Mode.ACT else context.policy.mode
    return replace(context, policy=replace(context.policy, mode=mode), hold=freeze.hold)


def ended_within(freezes: Iterable[Freeze], after: float, at: float) -> list[Freeze]:
    """Return those of `freezes` whose time ended after `after`, the time of the last tick, and by `at`.

    The leader writes them to the audit. One that ends in the seconds in which nobody leads is in none: the next leader
    cannot tell whether the last one wrote it.
    """
    return [freeze for freeze in freezes if freeze.until is not None and after < freeze.until <= at]


def undecided(context: PoolContext) -> TickResult:
    """Return the result of a tick in which the law failed: it knows nothing to publish or to tell."""
    proposed = _static(context) if context.in_force is None else context.in_force.classes
    return TickResult(Reason.FROZEN, proposed, publish=None, probe_ratio=0.0, gain_ratio=None, evidence={})


def held(context: PoolContext, result: TickResult, freeze: Freeze | None) -> TickResult:
    """Return `result` with what a freeze publishes; K never exceeds what every engine of the pool can do.

    The current K is the one in force when the freeze began, but not one that only had its turn, by the hold-out or a
    canary. With nothing in force yet there is nothing to hold: the static K is published, but in mode `advise` engines
    stay on their own.
    """
    if freeze is None:
        return result
    publish: Ranges | None
    standing = _standing(context, result) if freeze.hold is Hold.CURRENT else None
    if standing is not None:
        publish = {
            name: tuple(item._replace(k=min(item.k, context.k_max)) for item in ranges)
            for name, ranges in standing[0].items()
        }
    elif freeze.hold is Hold.CURRENT and context.policy.mode is Mode.ADVISE and not context.engines_version:
        publish = None
    else:
        publish = _static(context)
    return replace(
        result,
        reason=Reason.FROZEN,
        publish=publish,
        probe_ratio=0.0 if standing is None else standing[1],
        trial=None,
        evidence={**result.evidence, "freeze": to_plain(freeze)},
    )


def _static(context: PoolContext) -> Ranges:
    return {DEFAULT_CLASS: (KRange(1, max(1, context.max_num_seqs), context.fallback_k),)}


def _standing(context: PoolContext, result: TickResult) -> tuple[Ranges, float] | None:
    """Return the rows and the share of probes to hold; `None` where nothing is in force."""
    if result.standing is not None or context.in_force is None:
        return result.standing
    return context.in_force.classes, context.in_force.probe_ratio

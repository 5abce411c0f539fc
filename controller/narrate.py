"""Turns recorded decisions into an answer to "why this K?": which K, why, from what, with what gain.

Pure. The decisions come newest first; the newest one is the moment asked about, the older ones tell what held before
the latest change and so what the change brought.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from controller.guard import MEANING, Reason
from controller.rows import k_at
from policy.codec import to_plain
from policy.types import Decision, Mode

_GOODPUTS = (
    ("measured", "measured"),
    ("predicted_in_force", "predicted, schedule in force"),
    ("predicted_best", "predicted, best schedule known"),
    ("predicted_static", "predicted, static K"),
)
_CHANGES = (Reason.GAIN, Reason.ROLLBACK)
_NEAR_S = 10.0
"""Of what was decided long ago only some is kept: what is farther from a change than this tells nothing about it."""


def explain(decisions: Sequence[Decision]) -> dict[str, Any]:
    """Return the explanation of `decisions[0]`; `decisions` is not empty."""
    moment = decisions[0]
    evidence = moment.evidence
    decodes = evidence.get("decodes")
    goodput = evidence.get("goodput", {})
    schedule = to_plain(moment.schedule) if moment.schedule else None
    return {
        "at": moment.at,
        "model": moment.model,
        "pool": moment.pool,
        "mode": moment.mode.value,
        "version": moment.version,
        "published": moment.published,
        "reason": moment.reason,
        "meaning": _meaning(moment.reason),
        "running_decodes": decodes,
        "k": dict(moment.k) or _k_advised(moment),
        "k_advised": _k_advised(moment),
        "schedule": schedule,
        "classes": evidence.get("classes", {}),
        "goodput": goodput,
        "step_s": evidence.get("step_s", {}),
        "predicted_gain_ratio": moment.predicted_gain_ratio,
        "predicted_gain_over_static_ratio": _ratio(goodput.get("predicted_in_force"), goodput.get("predicted_static")),
        "latest_change": _latest_change(decisions),
        "canary": evidence.get("canary"),
        "evidence": dict(evidence),
    }


def text(found: dict[str, Any]) -> str:
    """Return an explanation as lines for a person."""
    lines = [
        f"{found['model']} in pool {found['pool']}, schedule version {found['version']}, mode {found['mode']}",
        f"why: {found['reason']}: {found['meaning']}",
    ]
    if found["running_decodes"] is not None:
        lines.append(f"load: {found['running_decodes']:.1f} running decodes per step")
    for name, k in sorted(found["k"].items()):
        lines.append(_class_line(name, k, found["k_advised"].get(name, k), found["classes"].get(name, {})))
    goodput = found["goodput"]
    lines += [
        f"goodput {label}: {goodput[key]:.0f} tokens/s" for key, label in _GOODPUTS if goodput.get(key) is not None
    ]
    step = found["step_s"]
    if step.get("measured") is not None and step.get("predicted") is not None:
        lines.append(f"step: {step['measured'] * 1000:.2f} ms measured, {step['predicted'] * 1000:.2f} ms predicted")
    if found["predicted_gain_ratio"] is not None:
        lines.append(f"the best schedule would gain {found['predicted_gain_ratio']:+.1%} now (predicted)")
    if found["predicted_gain_over_static_ratio"] is not None:
        lines.append(f"the schedule gains {found['predicted_gain_over_static_ratio']:+.1%} over static K (predicted)")
    change = found["latest_change"]
    if change:
        predicted, measured = _percent(change["predicted_gain_ratio"]), _percent(change["measured_gain_ratio"])
        lines.append(f"latest change ({change['reason']}): predicted {predicted}, measured {measured}")
    return "\n".join(lines + _canary_lines(found["canary"])) + "\n"


def _canary_lines(canary: Mapping[str, Any] | None) -> list[str]:
    if canary is None:
        return []
    end = canary["outcome"]
    state = f"ended, {end}" if end else f"turn of the {canary['arm']} policy" if canary["arm"] else "between two turns"
    lost = ", ".join(f"{count} {cause}" for cause, count in sorted(canary["lost_blocks"].items()))
    lines = [f"canary: {state}; {canary['blocks']} of {canary['blocks_at_most']} blocks, lost: {lost or 'none'}"]
    for key, label in (("goodput_gain_ratio", "goodput"), ("itl_gain_ratio", "inter-token latency")):
        bounds = canary[key]
        if bounds:
            lines.append(
                f"  gain in {label}: {bounds['mean']:+.1%}, between {bounds['low']:+.1%} and {bounds['high']:+.1%}"
            )
    return lines


def _class_line(name: str, k: int, advised: int, facts: Mapping[str, Any]) -> str:
    line = f"  {name}: K = {k}" + ("" if advised == k else f" (advised: {advised})")
    if facts.get("share"):
        line += f", {facts['share']:.0%} of the traffic"
    if facts.get("measured_length"):
        line += f", {facts['measured_length']:.2f} tokens a step measured"
    if facts.get("survival"):
        line += ", S = " + " ".join(f"{value:.2f}" for value in facts["survival"])
    return line


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:+.1%}"


def _meaning(reason: str) -> str:
    try:
        return MEANING[Reason(reason)]
    except ValueError:
        return "a reason of another version of the controller"


def _k_advised(decision: Decision) -> dict[str, int]:
    """K by class at the load of the tick as the law would have it: in mode `act`, as it is."""
    decodes = max(1, round(decision.evidence.get("decodes") or 1))
    if decision.schedule is None:
        return {}
    return {name: k_at(ranges, decodes) for name, ranges in decision.schedule.classes.items()}


def _latest_change(decisions: Sequence[Decision]) -> dict[str, Any] | None:
    """What the latest change within `decisions` was predicted to gain, and the goodput before and after it."""
    for item in decisions:
        if item.reason in _CHANGES and item.mode is Mode.ACT:
            # The tick that changes still measured the schedule before; what exploring yielded is no comparison.
            near = [other for other in decisions if abs(other.at - item.at) <= _NEAR_S]
            at = near.index(item)
            before = [_measured(older) for older in near[at : at + 4] if not _is_explored(older, near)]
            after = [_measured(newer) for newer in near[max(0, at - 5) : max(0, at - 1)]]
            return {
                "at": item.at,
                "reason": item.reason,
                "predicted_gain_ratio": item.predicted_gain_ratio,
                "measured_before": _mean(before),
                "measured_after": _mean(after),
                "measured_gain_ratio": _ratio(_mean(after), _mean(before)),
            }
    return None


def _is_explored(decision: Decision, decisions: Sequence[Decision]) -> bool:
    """Whether the engines were exploring in the tick that `decision` ended."""
    at = decisions.index(decision)
    return at + 1 < len(decisions) and decisions[at + 1].reason == Reason.EXPLORE


def _measured(decision: Decision) -> float | None:
    value = decision.evidence.get("goodput", {}).get("measured")
    return None if value is None else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ratio(new: float | None, old: float | None) -> float | None:
    return new / old - 1 if new and old else None

"""Explains a recorded decision: the measured K, the reason, the evidence, the measured gain. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.controller.decision.reason import MEANING, Reason
from specpilot.controller.recording import gain_figures
from specpilot.policy.clock import utc
from specpilot.policy.codec import to_plain
from specpilot.policy.gain import DailyGain, day_of
from specpilot.policy.records import Decision
from specpilot.policy.schedule import Cause


def explain(moment: Decision, gains: Sequence[DailyGain] = ()) -> dict[str, Any]:
    """Return the explanation of a decision. `gains` are by day, newest first."""
    guidance = in_force = moment.schedule.guidance if moment.schedule else None
    if moment.schedule and moment.reason == Reason.CONTROL_GROUP:
        in_force = moment.schedule.drawn_guidance
    recorded: dict[str, Any] = to_plain(moment)
    del recorded["schedule"]
    return recorded | {
        "meaning": MEANING[Reason(moment.reason)] if moment.reason in tuple(Reason) else "unknown to this version",
        "guidance": to_plain(guidance) if guidance else None,
        "override": to_plain(in_force.override) if in_force and in_force.override else None,
        "control_group": moment.evidence.get("control_group"),
        "control_group_days": gain_figures.described([item for item in gains if item.day <= day_of(moment.at)]),
    }


def lines(explanation: dict[str, Any]) -> list[str]:
    """Return an explanation as lines for a person."""
    version, mode, evidence = explanation["version"], explanation["mode"], explanation["evidence"]
    shown = [
        f"{explanation['model']} in pool {explanation['pool']}, schedule version {version}, mode {mode}",
        f"why: {explanation['reason']}: {explanation['meaning']}",
        *([override_line(explanation["override"])] if explanation["override"] else []),
    ]
    running = evidence.get("decodes")
    shown.append("load: unknown, or nothing decodes" if running is None else f"load: {running:.1f} decodes per step")
    shown += [_class_line(name, facts) for name, facts in sorted(evidence.get("classes", {}).items())]
    shown += [
        slo_line(name, measure, facts)
        for name, measures in sorted((evidence.get("slo") or {}).items())
        for measure, facts in measures.items()
    ]
    shown += [_band_line(band, facts) for band, facts in sorted(evidence.get("bands", {}).items())]
    if evidence.get("throughput") is not None:
        shown.append(f"throughput measured: {evidence['throughput']:.0f} tokens/s")
    if evidence.get("step_s") is not None:
        shown.append(f"step measured: {evidence['step_s'] * 1000:.2f} ms")
    return shown + _control_group_lines(explanation) + canary_lines(evidence.get("canary"))


def override_line(override: Mapping[str, Any]) -> str:
    """Return the line of K that is fixed in place of the law's choice."""
    k, until = override["k"], override["until"]
    fixed = "as it was when the freeze began" if k is None else f"{k} for every request"
    if override["cause"] in (Cause.CONTROL_GROUP, Cause.FALLEN_BACK):
        fixed += ", within the bounds of its class"
    return f"K is fixed: {fixed}" + ("" if until is None else f", until {utc(until)}")


def canary_lines(canary: Mapping[str, Any] | None) -> list[str]:
    """Return the numbers of a canary, as in the evidence of a decision, as lines for a person."""
    if canary is None:
        return []
    end = canary["outcome"]
    window = f"window of the {canary['arm']} policy" if canary["arm"] else "runs"
    state = f"ended, {end}" if end else window
    lost = ", ".join(f"{count} {cause}" for cause, count in sorted(canary["lost_blocks"].items()))
    lines = [f"canary: {state}; {canary['blocks']} of {canary['blocks_at_most']} blocks, lost: {lost or 'none'}"]
    return lines + _gain_lines(canary)


def _gain_lines(evidence: Mapping[str, Any]) -> list[str]:
    return [f"  gain in {measure}: {gain}" for measure, gain in gain_figures.gain_texts(evidence)]


def _class_line(name: str, facts: Mapping[str, Any]) -> str:
    """Return the line of a class; its K and length are means over its decodes."""
    length = facts.get("measured_length")
    line = f"  class {name}: {facts['share']:.0%} of the traffic, K {facts['k']:.1f}"
    return line + ("" if length is None else f", {length:.2f} tokens a step")


def slo_line(name: str, measure: str, facts: Mapping[str, Any]) -> str:
    """Return the line of a latency goal: what was attained, and the margin of its bound."""
    attained = [f"{value:.1%} in {window}" for window, value in facts["attained_ratio"].items() if value is not None]
    line = f"  goal of {name}: {measure.upper()} {facts['statistic']} {facts['goal_ms']:g} ms, "
    line += f"within it {', '.join(attained)}" if attained else "no request has ended yet"
    if facts["mean_ms"] is not None:
        line += f", mean {facts['mean_ms']:.3g} ms"
    if (ratio := facts["budget_left_ratio"]) is not None:
        line += f", budget left {ratio:.0%}" if ratio >= 0 else f", budget of a day used {1 - ratio:.1f} times"
    if "margin" in facts:
        line += f", margin {facts['margin']:.2f}"
    if (error := facts.get("forecast_error_ratio")) is not None:
        line += f", mean in 1h {abs(error):.0%} {'below' if error < 0 else 'above'} the forecast"
    return line + ("; unreachable: no K keeps it at this load" if facts.get("is_unreachable") else "")


def _band_line(band: str, facts: Mapping[str, Any]) -> str:
    share = facts.get("share")
    line = f"  band {band}: " + ("no decodes" if share is None else f"{share:.0%} of the decodes, K {facts['k']:.1f}")
    if not facts.get("survival"):
        return line + ", no draft yet"
    return line + ", survival " + " ".join(f"{value:.2f}" for value in facts["survival"])


def _control_group_lines(explained: Mapping[str, Any]) -> list[str]:
    days = gain_figures.lines(explained["control_group_days"])
    override = (explained["guidance"] or {}).get("override") or {}
    is_static = override.get("cause") == Cause.FALLEN_BACK
    return _latest_gain_lines(explained["control_group"], is_static=is_static) + (
        ["gain over the static K by day (UTC):", *days] if days else []
    )


def _latest_gain_lines(control_group: Mapping[str, Any] | None, *, is_static: bool) -> list[str]:
    if control_group is None:
        return []
    gain, state = control_group["gain_ratio"], ""
    if control_group["has_lost"]:
        state = "; the static K is in force" if is_static else "; the static K was found to be better"
    state += "; paused" if control_group.get("is_paused") else ""
    if gain is None:
        return [f"control group: {gain_figures.counted(control_group['windows'])}, too few for an interval{state}"]
    bounds = f"between {gain['low']:+.1%} and {gain['high']:+.1%} (95 %, {control_group['windows']} windows)"
    head = f"control group: adaptive K gains {gain['mean']:+.1%} over the static K, {bounds}{state}"
    return [head, *_gain_lines(control_group)]

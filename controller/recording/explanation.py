"""Explains a K from a recorded decision: its value, the reason, the evidence, the gain. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.controller.law.reason import Reason, meaning_of
from specpilot.controller.recording import gain_figures
from specpilot.controller.recording.survival_interval import with_intervals
from specpilot.policy.bands import BANDS, row_of, row_parts, serving_rows
from specpilot.policy.codec import to_plain
from specpilot.policy.gain import DailyGain, day_of
from specpilot.policy.model_policy import Mode
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.records import Decision
from specpilot.policy.schedule import k_at

_THROUGHPUTS = (
    ("measured", "measured"),
    ("predicted_in_force", "predicted, K in force"),
    ("predicted_best", "predicted, the engines' choice"),
    ("predicted_static", "predicted, static K"),
)


def explain(moment: Decision, gains: Sequence[DailyGain] = ()) -> dict[str, Any]:
    """Return the explanation of a decision. `gains` are by day, newest first."""
    evidence = moment.evidence
    decodes = evidence.get("decodes")
    throughput = evidence.get("throughput", {})
    schedule = to_plain(moment.schedule) if moment.schedule else None
    return {
        "at": moment.at,
        "model": moment.model,
        "pool": moment.pool,
        "mode": moment.mode.value,
        "version": moment.version,
        "published": moment.published,
        "reason": moment.reason,
        "meaning": _meaning(moment.reason, moment.mode),
        "running_decodes": decodes,
        "k": dict(moment.k) or _k_advised(moment),
        "k_advised": _k_advised(moment),
        "schedule": schedule,
        "guidance": schedule["guidance"] if schedule else None,
        "is_estimate": moment.is_estimate,
        "classes": evidence.get("classes", {}),
        "bands": with_intervals(evidence.get("bands", {})),
        "control_group": evidence.get("control_group"),
        "control_group_days": gain_figures.described([item for item in gains if item.day <= day_of(moment.at)]),
        "throughput": throughput,
        "step_s": evidence.get("step_s", {}),
        "predicted_gain_ratio": moment.predicted_gain_ratio,
        "predicted_gain_over_static_ratio": _ratio(
            throughput.get("predicted_in_force"), throughput.get("predicted_static")
        ),
        "canary": evidence.get("canary"),
        "evidence": dict(evidence),
    }


def text(explanation: dict[str, Any]) -> str:
    """Return an explanation as lines for a person."""
    version, mode = explanation["version"], explanation["mode"]
    lines = [
        f"{explanation['model']} in pool {explanation['pool']}, schedule version {version}, mode {mode}",
        f"why: {explanation['reason']}: {explanation['meaning']}",
    ]
    running = explanation["running_decodes"]
    if running:
        lines.append(f"load: {running:.1f} running decodes per step")
    else:
        lines.append(f"load: {'unknown' if running is None else 'nothing decodes'}; K is that for one running decode")
    lines += [_class_line(name, facts) for name, facts in sorted(explanation["classes"].items())]
    if explanation["is_estimate"]:
        lines.append("K is the engines' own choice; the rows are the controller's estimate of it")
    lines += _k_lines(explanation["k"], explanation["k_advised"])
    lines += [_band_line(band, facts) for band, facts in sorted(explanation["bands"].items())]
    throughput = explanation["throughput"]
    lines += [
        f"throughput {label}: {throughput[key]:.0f} tokens/s"
        for key, label in _THROUGHPUTS
        if throughput.get(key) is not None
    ]
    step = explanation["step_s"]
    if step.get("measured") is not None and step.get("predicted") is not None:
        lines.append(f"step: {step['measured'] * 1000:.2f} ms measured, {step['predicted'] * 1000:.2f} ms predicted")
    if explanation["predicted_gain_ratio"] is not None:
        lines.append(f"the engines' choice would gain {explanation['predicted_gain_ratio']:+.1%} now (predicted)")
    over_static = explanation["predicted_gain_over_static_ratio"]
    if over_static is not None:
        lines.append(f"the K in force gains {over_static:+.1%} over static K (predicted)")
    return "\n".join(lines + _control_group_lines(explanation) + canary_lines(explanation["canary"])) + "\n"


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
    share, length = facts.get("share"), facts.get("measured_length")
    line = f"  class {name}: " + ("share of the traffic unknown" if share is None else f"{share:.0%} of the traffic")
    return line + ("" if length is None else f", {length:.2f} tokens a step measured")


def _k_lines(k: Mapping[str, int], advised: Mapping[str, int]) -> list[str]:
    """Return a line for each class, its bands side by side."""
    rows: dict[str, list[str]] = {}
    for name in serving_rows(k):
        rows.setdefault(row_parts(name)[0], []).append(name)
    lines = []
    for traffic_class, names in rows.items():
        bands = [str(band) for _, band in map(row_parts, names) if band is not None]
        line = f"  K of {traffic_class}" + (f", bands {bands[0]} to {bands[-1]}" if bands else "")
        line += ": " + " ".join(str(k[name]) for name in names)
        if DEFAULT_CLASS in k and DEFAULT_CLASS in advised:
            in_force, other = ([row_of(rows, traffic_class, band) for band in range(BANDS)] for rows in (k, advised))
            if in_force != other:
                line += f" (advised: {' '.join(map(str, other if len(set(other)) > 1 else other[:1]))})"
        lines.append(line)
    return lines


def _band_line(band: str, facts: Mapping[str, Any]) -> str:
    share = facts.get("share")
    line = f"  band {band}: " + ("no running decodes" if share is None else f"{share:.0%} of the running decodes")
    if not facts.get("survival"):
        return line + ", no draft yet"
    bounds = zip(facts["survival"], facts["survival_low"], facts["survival_high"], strict=False)
    return line + ", S = " + " ".join(f"{value:.2f}{_between(low, high)}" for value, low, high in bounds)


def _between(low: float | None, high: float | None) -> str:
    return " (assumed)" if low is None or high is None else f" ({low:.2f}..{high:.2f})"


def _control_group_lines(explained: Mapping[str, Any]) -> list[str]:
    days = gain_figures.lines(explained["control_group_days"])
    return _latest_gain_lines(explained["control_group"], is_static=not explained["is_estimate"]) + (
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


def _meaning(reason: str, mode: Mode) -> str:
    try:
        return meaning_of(Reason(reason), mode)
    except ValueError:
        return "unknown to this version of the controller"


def _k_advised(decision: Decision) -> dict[str, int]:
    """Return the estimate of the engines' choice, by row, at the load of the tick."""
    decodes = max(1, round(decision.evidence.get("decodes") or 1))
    if decision.schedule is None:
        return {}
    return {name: k_at(ranges, decodes) for name, ranges in decision.schedule.classes.items()}


def _ratio(new: float | None, old: float | None) -> float | None:
    return new / old - 1 if new and old else None

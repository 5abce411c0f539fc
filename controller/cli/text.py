"""Formats changes, forecasts and durations for the command line, and prints lines.

Every line is made printable, because a reply of the controller may contain text from an unauthenticated caller: the
audit has rejected calls.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.policy.clock import utc
from specpilot.policy.history import shown

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def printable(text: str) -> str:
    """Return a text with each unprintable character escaped, as in Python.

    A line break could forge a line of the command's output, and a terminal executes escape sequences.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(*lines: str) -> None:
    """Print lines on standard output."""
    sys.stdout.writelines(f"{printable(line)}\n" for line in lines)


def show(document: object) -> None:
    """Print a document as JSON, whose texts have escapes, on standard output."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def note(*lines: str) -> None:
    """Print lines on standard error."""
    sys.stderr.writelines(f"{printable(line)}\n" for line in lines)


def duration_s(duration: str) -> float:
    """Return the seconds of a duration such as `90`, `10m`, `2h` or `30d`; raises `ValueError` for another text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", duration)
    if match is None:
        raise ValueError(f"{duration!r} is no duration; give 90s, 10m, 12h or 90d")
    return float(match[1]) * _UNITS_S[match[2] or "s"]


def _change(field: str, *values: Any) -> str:
    """Return a field with its values before and after; fields of times hold Unix seconds."""
    is_time = re.search(r"(^|_)(until|at):?$", field) is not None
    texts = [utc(value) if is_time and isinstance(value, int | float) else shown(value) for value in values]
    return f"{field} {' -> '.join(texts)}"


def changes(differences: Sequence[Any]) -> list[str]:
    """Return a line for each `[field, before, after]`, or each object with these members."""
    rows = [(item["field"], item["before"], item["after"]) if isinstance(item, dict) else item for item in differences]
    return [f"  {_change(f'{field}:', *values)}" for field, *values in rows] or ["  nothing"]


def forecast(pools: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Return the forecast of a dry run as lines, pool by pool."""
    if pools is None:
        return []
    if not pools:
        return ["no engine of this model runs: nothing can be forecast"]
    return [line for item in pools for line in (f"pool {item['pool']}:", *(f"  {line}" for line in engine_lines(item)))]


def dry_run(answer: Mapping[str, Any]) -> list[str]:
    """Return a dry run's answer as lines for a person."""
    version = "" if answer["version"] is None else f"write version {answer['version']} of "
    head = f"dry run, nothing was written. It would {version or 'change '}{answer['subject']}; changes:"
    return [head, *changes(answer["changes"]), *forecast(answer["forecast"])]


def unless_it_runs(model: str, engines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning if none of `engines` serves `model`, else nothing."""
    running = sorted({engine["model"] for engine in engines})
    if model in running:
        return []
    known = f"those of {', '.join(running)} do: check the name" if running else "nor of another model"
    return [f"no engine of {model} runs, {known}"]


def out_of_reach(policy: Mapping[str, Any], limits: Mapping[str, int]) -> list[str]:
    """Return a line for each K of a policy and each pool whose engines cannot reach this K.

    `limits` is the K_max of each pool.
    """
    rows = {"": policy, **{f"classes.{name}.": item for name, item in policy.get("classes", {}).items()}}
    return [
        f"{prefix}{field}: {item[field]} is more than the engines of pool {pool} can do, so {k_max} applies there"
        for prefix, item in rows.items()
        for field in ("static_k", "pin", "k_min", "k_max")
        for pool, k_max in sorted(limits.items())
        if isinstance(item.get(field), int) and item[field] > k_max
    ]


def audit_line(entry: Mapping[str, Any]) -> str:
    """Return one entry of the audit as a line."""
    caller = entry["who"] + (f" ({entry['role']})" if entry["role"] else "")
    source = f" from {entry['source']}" if entry["source"] else ""
    line = f"{utc(entry['at'])}  {entry['result']:<7} {entry['action']} {entry['subject']}  by {caller}{source}"
    if entry["message"]:
        line += f": {entry['message']}"
    changed = [_change(*row) for row in entry["changes"]]
    if entry["changes_left_out"]:
        changed.append(f"{entry['changes_left_out']} more")
    return (
        line
        + (f"  [{'; '.join(changed)}]" if changed else "")
        + (f"  # {entry['comment']}" if entry["comment"] else "")
    )


def engine_lines(pool: Mapping[str, Any], chosen: str = "then") -> list[str]:
    """Return the answers of a pool's engines as lines; `chosen` names the choice beside that in force."""
    lines = [f"{len(pool['answers'])} of {pool['engines']} engines say:"] if pool["answers"] else []
    if pool["unknown"]:
        lines.append(f"no prediction: {pool['unknown']}")
    now, then = pool["in_force"], pool["chosen"]
    if now and then:
        for name in sorted({*now["k"], *then["k"]}):
            itl = f"{_number(now['itl_ms'].get(name), ' ms')} -> {_number(then['itl_ms'].get(name), ' ms')}"
            k = f"{_number(now['k'].get(name))} -> {_number(then['k'].get(name))}"
            lines.append(f"{name}: mean K {k}, inter-token latency {itl}")
        lines += _tpot_lines(pool)
        lines += [
            f"{name}: its latency goal is missed at this load: {item['statistic']} of TPOT"
            f" {_number(item['predicted_ms'], ' ms')} predicted, at most {_number(item['limit_ms'], ' ms')} allowed;"
            " lower the load, allow other K or raise the goal"
            for name, item in sorted(pool.get("missed_goals", {}).items())
        ]
        lines.append(
            f"weighted throughput: {_number(now['throughput'])} -> {_number(then['throughput'])} tokens/s"
            f" and engine ({pool['gain_ratio']:+.1%}, predicted)"
        )
        lines.append(f"(K in force -> {chosen})")
    if pool["static"]:
        lines.append(f"static K: {_number(pool['static']['throughput'])} tokens/s and engine, predicted")
    return lines + [f"silent: {name}: {why}" for name, why in sorted(pool["silent"].items())]


def _tpot_lines(pool: Mapping[str, Any]) -> list[str]:
    """Return a line for each class whose TPOT was measured: its 95th percentile, measured and predicted."""
    predicted = pool.get("predicted_tpot_ms", {})
    before, after = predicted.get("in_force", {}), predicted.get("chosen", {})
    return [
        f"{name}: p95 of TPOT {_number(measured['p95'], ' ms')} measured, predicted"
        f" {_number(before[name]['p95'], ' ms')} -> {_number(after[name]['p95'], ' ms')}"
        for name, measured in sorted(pool.get("tpot_ms", {}).items())
        if name in before and name in after
    ]


def _number(value: float | None, unit: str = "") -> str:
    if value is None:
        return "unknown"
    return f"{value:.0f}{unit}" if value >= 100 else f"{value:.2f}{unit}"  # noqa: PLR2004 - significant digits

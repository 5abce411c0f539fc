"""`specpilot bench demo`: a shifting load against the running system, adaptive K beside every static K.

Each arm plays the same trace, which is not announced to the controller. Every arm plays twice in one run, in mirrored
order (adaptive, 0, 1, 3, 7, then 7, 3, 1, 0, adaptive), so that a machine that becomes slower or faster affects all
arms equally; the table has their means. A phase's rate counts from its begin, so it includes the loss while adaptive K
adapts; in its first play, on a new system, it begins without estimates. The table shows where it wins and where not.

Where the policy of the model has latency goals, every arm is also counted by them: requests per second within their
goal, and the share of each class.

With `--control-group-ratio` the adaptive plays run the static K for that share of the time, like the control group in
production, and the report has the control group's gain of adaptive K beside the arms' gain.
"""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from specpilot.bench.demo import goals
from specpilot.bench.demo.play import play
from specpilot.bench.demo.shift_picture import picture
from specpilot.bench.demo.system import System, start_up
from specpilot.bench.demo.trace import TRACES, Trace, read_prompts, read_trace
from specpilot.bench.processes import end
from specpilot.bench.report.output import say
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.settings import HttpAddress, ProgramSettings, fail, load

PROGRAM = "specpilot bench demo"
ADAPTIVE = "adaptive"
START_WITHIN_S = 300.0
"""Longest start of the system."""
TAKES_EFFECT_S = 3.0
"""Seconds from a changed policy to the engines' K: two ticks of the controller and the delivery."""
LATEST_S = 15.0
"""Age of the decisions that are searched for the latest one: a quiet pool records one in 10 s."""
LEAST_RATIO = 0.01
"""Least ratio of a phase: noise may exceed the rest of a phase that the control group had most of."""


class DemoSettings(ProgramSettings):
    """Drive a shifting load; start a system of its own when none is running."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_DEMO_")

    gateway_url: HttpAddress = Field(default="http://127.0.0.1:8080", description="the gateway")
    admin_url: HttpAddress = Field(default="http://127.0.0.1:8081", description="the controller's admin API")
    admin_token: str | None = Field(default=None, description="the admin API's token")
    model: str = Field(default="demo", description="model to ask for")
    trace: Path = Field(default=TRACES / "demo.json", description="phases to play")
    prompts: Path = Field(
        default=DEMO_MODEL / "prompts",
        description="folder with <class>.jsonl",
    )
    static: str = Field(default="0,1,3,7", description="static K to compare with, comma separated")
    plot: Path | None = Field(default=None, description="file for a picture (SVG) of the phases and of K over time")
    stretch: float = Field(default=1.0, gt=0, description="make every phase this many times as long")
    control_group_ratio: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="share of the adaptive plays on the one static K, to compare two measures of the gain",
    )


def main(arguments: Sequence[str]) -> None:
    """Run the demonstration and print its table; the last line is one JSON object."""
    settings = load(DemoSettings, PROGRAM, arguments)
    try:
        trace = read_trace(settings.trace).stretched(settings.stretch)
        prompts = read_prompts(settings.prompts, trace.prompts)
        statics = [int(item) for item in settings.static.split(",") if item]
    except InvalidDocumentError as error:
        fail(PROGRAM, f"--trace: {error}")
    except OSError as error:
        fail(PROGRAM, f"{error.filename}: {error.strerror}")
    except ValueError:
        fail(PROGRAM, f"--static: {settings.static!r} is not a list of numbers like 0,3,7")
    if not statics:
        fail(PROGRAM, "--static: names no K; name one at least, like 0,3,7")
    if settings.control_group_ratio > 0 and len(statics) > 1:  # a policy with another static K resets the control group
        fail(PROGRAM, "--control-group-ratio: compares with one static K; name that one with --static, like --static 7")
    system = System(settings.gateway_url, settings.admin_url, settings.admin_token)
    process = None
    if not system.is_up():
        say(f"nothing answers at {settings.gateway_url}: starting a system")
        process = start_up()
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while not system.is_up():
            if time.monotonic() > deadline or (process is not None and process.poll() is not None):
                fail(PROGRAM, "the system did not come up; its logs are in .specpilot/logs")
            time.sleep(1.0)
        asyncio.run(_compare(system, settings, trace, prompts, statics))
    finally:
        if process is not None:
            end(process, within_s=60.0)


async def _compare(
    system: System,
    settings: DemoSettings,
    trace: Trace,
    prompts: dict[str, list[dict[str, Any]]],
    statics: Sequence[int],
) -> None:
    model = settings.model
    before = await asyncio.to_thread(system.policy, model)
    arms = [ADAPTIVE, *(f"K={k}" for k in statics)]
    plays: dict[str, list[list[float]]] = {arm: [] for arm in arms}
    met: dict[str, dict[str, list[goals.Goals]]] = {}
    acting: dict[str, Any] = {"mode": "act"}
    control_group: dict[str, Any] = {}
    try:
        if settings.control_group_ratio > 0:
            acting |= {"static_k": statics[0], "control_group_ratio": settings.control_group_ratio}
            await asyncio.to_thread(system.put_policy, before | {"mode": "act", "control_group_ratio": 0.0})
            await asyncio.sleep(TAKES_EFFECT_S)  # the control group drops its windows
        for number, arm in enumerate([*arms, *reversed(arms)], start=1):
            changes = acting if arm == ADAPTIVE else {"mode": "off", "static_k": int(arm[2:])}
            await asyncio.to_thread(system.put_policy, before | changes)
            await asyncio.sleep(TAKES_EFFECT_S)
            say(f"\n{arm}   ({number} of {2 * len(arms)})")
            played = await play(system, model, trace, prompts, say)
            plays[arm].append(played.rates)
            for phase, readings in zip(trace.phases, played.phases, strict=True):
                met.setdefault(phase.name, {}).setdefault(arm, []).append(goals.met(readings))
            if arm == ADAPTIVE:
                adaptive = played
        if settings.control_group_ratio > 0:
            decisions = await asyncio.to_thread(system.decisions, model, time.time() - LATEST_S)
            control_group = decisions[-1]["evidence"]["control_group"] if decisions else {}
    finally:
        await asyncio.to_thread(system.put_policy, before)
    rates = {arm: [fmean(pair) for pair in zip(*both, strict=True)] for arm, both in plays.items()}
    say(table(trace, rates))
    if settings.plot is not None:
        settings.plot.write_text(picture(trace, rates, adaptive.phases), encoding="utf-8")
        say(f"picture: {settings.plot}")
    figures = summary(trace, rates) | {"adaptive_second_vs_first_play": second_vs_first(trace, plays[ADAPTIVE])}
    phases = {phase: {arm: goals.added(both) for arm, both in arms.items()} for phase, arms in met.items()}
    if any(phases[phase][ADAPTIVE] for phase in phases):
        say(goals.table(phases))
        figures["goals"] = goals.summary(phases, ADAPTIVE)
    if control_group:
        gain = arms_gain(trace, rates, f"K={statics[0]}", settings.control_group_ratio)
        measured = control_group["throughput_gain_ratio"]
        figures["control_group"] = {"windows": control_group["windows"], "gain": measured, "arms": gain}
        say(f"\n{gains_line(statics[0], control_group['windows'], measured, gain)}")
    say(json.dumps(figures))


def summary(trace: Trace, rates: dict[str, list[float]]) -> dict[str, object]:
    """Return the adaptive arm against the statics: over the trace, against the best single K, and phase by phase."""
    weights = [phase.seconds for phase in trace.phases]
    total = {arm: _tokens(trace, row) for arm, row in rates.items()}
    static = [arm for arm in rates if arm != ADAPTIVE]
    best_static = max(static, key=lambda arm: total[arm])
    oracle = sum(max(rates[arm][i] for arm in static) * weight for i, weight in enumerate(weights))
    return {
        "best_single_k": best_static,
        "adaptive_vs_best_single_k": round(total[ADAPTIVE] / total[best_static], 3),
        "adaptive_vs_oracle": round(total[ADAPTIVE] / oracle, 3),
        "oracle_vs_best_single_k": round(oracle / total[best_static], 3),
        "phases": {
            phase.name: round(rates[ADAPTIVE][i] / max(rates[arm][i] for arm in static), 3)
            for i, phase in enumerate(trace.phases)
        },
    }


def arms_gain(trace: Trace, rates: dict[str, list[float]], static: str, held_out: float) -> dict[str, float]:
    """Return the adaptive arm's gain over `static` as ratios: the geometric mean over time, like the control group's.

    `as_played` includes the share of the time with the static K (`held_out`), which has no gain; `adaptive` does not.
    """
    ratios = [one / other for one, other in zip(rates[ADAPTIVE], rates[static], strict=True)]
    seconds = [phase.seconds for phase in trace.phases]

    def gain(phase_ratios: Sequence[float]) -> float:
        logs = (math.log(max(ratio, LEAST_RATIO)) * weight for ratio, weight in zip(phase_ratios, seconds, strict=True))
        return round(math.expm1(sum(logs) / sum(seconds)), 3)

    return {"adaptive": gain([(ratio - held_out) / (1 - held_out) for ratio in ratios]), "as_played": gain(ratios)}


def gains_line(k: int, windows: int, gain: dict[str, float] | None, arms: dict[str, float]) -> str:
    """Return the control group's `gain` (`None` while windows are too few) and the arms' as a line."""
    interval = "unknown" if gain is None else f"{gain['mean']:+.1%} ({gain['low']:+.1%} to {gain['high']:+.1%})"
    return (
        f"adaptive over K={k}: by the control group {interval}, {windows} windows; "
        f"by the arms {arms['adaptive']:+.1%}, as played {arms['as_played']:+.1%}"
    )


def second_vs_first(trace: Trace, plays: Sequence[list[float]]) -> float:
    """Return the tokens of the second play over those of the first, which began without estimates."""
    first, second = plays
    return round(_tokens(trace, second) / _tokens(trace, first), 3)


def _tokens(trace: Trace, rates: Sequence[float]) -> float:
    return sum(rate * phase.seconds for rate, phase in zip(rates, trace.phases, strict=True))


def table(trace: Trace, rates: dict[str, list[float]]) -> str:
    """Return output tokens per second of each phase and arm, and adaptive over the best static of the phase."""
    arms = list(rates)
    rows = [f"\n{'output tok/s':<18}" + "".join(f"{arm:>10}" for arm in arms) + f"{'adaptive / best static':>26}"]
    for i, phase in enumerate(trace.phases):
        best = max((arm for arm in arms if arm != ADAPTIVE), key=lambda arm: rates[arm][i])
        ratio = rates[ADAPTIVE][i] / rates[best][i]
        rows.append(f"{phase.name:<18}" + "".join(f"{rates[arm][i]:10.0f}" for arm in arms) + f"{ratio:17.2f} ({best})")
    return "\n".join(rows)

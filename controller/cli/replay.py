"""`specpilot replay`: runs recorded observations through the control law again, optionally with another policy.

With the recorded policy the recorded schedules are in force, so that every decision can be compared with the recorded
one. With another policy the replay's own schedules are in force. Freezes apply in both cases. The observations are
always those of the recorded traffic: a replay shows the choice of K under another policy, but not the traffic's
response to it.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from pydantic_settings import CliPositionalArg, SettingsConfigDict

from specpilot.controller.cli.text import k_by_class
from specpilot.controller.experiments.runner import Runner
from specpilot.controller.freezing import as_frozen, held, undecided
from specpilot.controller.law.context import PoolContext, TickResult
from specpilot.controller.law.control_law import ControlLaw
from specpilot.controller.pools import Sightings, in_window, of_steerable, pool_contexts, schedule_of
from specpilot.controller.recording.record import Recorded, from_line
from specpilot.policy.codec import from_plain
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.freeze import freeze_of
from specpilot.policy.model_policy import Policy
from specpilot.policy.names import PoolKey
from specpilot.policy.schedule import Schedule
from specpilot.policy.settings import ProgramSettings, fail, load

PROGRAM = "specpilot replay"


class ReplaySettings(ProgramSettings):
    """Runs recorded observations through the control law again."""

    model_config = SettingsConfigDict(
        env_prefix="SPECPILOT_REPLAY_",
        populate_by_name=False,  # else `--as-json` would be a flag too
    )

    file: CliPositionalArg[Path]
    policy: Annotated[Path | None, Field(description="JSON file with a policy to use instead")] = None
    as_json: Annotated[bool, Field(description="print one JSON object per decision", alias="json")] = False


@dataclass(frozen=True, slots=True)
class Replayed:
    """One decision of a replay: its time (Unix seconds), its pool and its result."""

    at: float
    context: PoolContext
    result: TickResult


def replay(ticks: Iterable[Recorded], other: Policy | None = None) -> Iterator[Replayed]:
    """Yield every decision of the control law on `ticks`, in order."""
    law: ControlLaw | None = None
    published: dict[PoolKey, Schedule] = {}
    fence: int | None = None
    sightings, runner = Sightings(), Runner()
    for tick in ticks:
        law = law or ControlLaw(tick.scrape_s)
        if tick.fence not in (None, fence):
            fence = tick.fence
            law.take_over()
        for resumed in tick.resumed:
            law.resume(*resumed)
        law.observe(of_steerable(tick.observations, tick.engines))
        policies = {**tick.policies, **({other.model: other} if other else {})}
        pools = pool_contexts(tick.engines, policies, tick.schedules, tick.default_mode)
        sightings.expire_pools(
            ((pool.model, pool.pool) for pool in pools), ((item.model, item.pool) for item in tick.schedules), tick.now
        )
        law.forget_all_but((engine.engine_id for engine in tick.engines), sightings.seen_at)
        for recorded in pools:
            key = (recorded.model, recorded.pool)
            is_other = other is not None and recorded.model == other.model
            freeze = freeze_of(tick.freezes, recorded.model, tick.at)
            is_readable = is_other or recorded.model not in tick.unreadable
            if not is_readable and freeze is None:
                continue
            experiment = None if is_other else tick.experiments.get(recorded.model)
            if experiment is not None and freeze is not None and not experiment.is_running:
                experiment = None
            windows_at = tick.windows_at or tick.at
            context = (
                replace(recorded, in_force=published.get(key, recorded.in_force))
                if is_other
                else in_window(recorded, None if freeze else experiment, windows_at)
            )
            frozen = as_frozen(context, freeze)
            decided = law.decide(frozen, tick.now, windows_at) if is_readable else undecided(context)
            result = held(context, runner.reported(experiment, context, decided), freeze)
            version = (context.in_force.version if context.in_force else 0) + 1
            if result.publish is not None:
                published[key] = schedule_of(context, result.publish, result, version, tick.at)
            yield Replayed(tick.at, context, result)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print every decision; status 2 when a file cannot be read."""
    settings = load(ReplaySettings, PROGRAM, sys.argv[1:] if arguments is None else arguments)
    other = _policy(settings.policy) if settings.policy else None
    models = set()
    try:
        with settings.file.open(encoding="utf-8-sig") as lines:
            for item in replay((from_line(line) for line in lines if line.strip()), other):
                sys.stdout.write(_json(item) if settings.as_json else _line(item))
                models.add(item.context.model)
    except OSError as error:
        fail(PROGRAM, f"{settings.file} cannot be read: {error.strerror}")
    except (ValueError, KeyError, TypeError, InvalidDocumentError) as error:
        fail(PROGRAM, f"{settings.file} is no recording of `specpilot controller --record`: {error}")
    if other is not None and other.model not in models:
        fail(PROGRAM, f"--policy: {other.model!r} is not in the recording, which has {', '.join(sorted(models))}")


def _policy(path: Path) -> Policy:
    try:
        document = json.loads(path.read_bytes())
        if isinstance(document, dict) and isinstance(document.get("policy"), dict):
            document = document["policy"]  # the output of `specpilot policy get`
        return from_plain(Policy, document)
    except OSError as error:
        fail(PROGRAM, f"--policy: {path} cannot be read: {error.strerror}")
    except ValueError as error:
        fail(PROGRAM, f"--policy: {path} is not JSON: {error}")
    except InvalidDocumentError as error:
        fail(PROGRAM, *(f"--policy: {fault}" for fault in error.faults))


def _line(item: Replayed) -> str:
    result = item.result
    k = k_by_class(result.k(result.proposed))
    gain = "" if result.gain_ratio is None else f"  gain {result.gain_ratio:+.1%}"
    where = f"{item.context.model} {item.context.pool}"
    return f"{item.at:.1f}  {where}  n={result.decodes}  {result.reason.value:<18}  {k}{gain}\n"


def _json(item: Replayed) -> str:
    plain: dict[str, Any] = {
        "at": item.at,
        "model": item.context.model,
        "pool": item.context.pool,
        "reason": item.result.reason.value,
        "classes": item.result.proposed,
        "probe_ratio": item.result.probe_ratio,
        "predicted_gain_ratio": item.result.gain_ratio,
        "evidence": item.result.evidence,
    }
    return json.dumps(plain) + "\n"


if __name__ == "__main__":
    main()

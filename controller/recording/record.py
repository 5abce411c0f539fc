"""One tick as one line of JSON: `--record` writes it and `specpilot replay` reads it.

A line has all inputs of the control law: the time, the engines' registrations, the policies, canaries and freezes, the
schedules in force, every counter of every engine, and the settings that it depends on. So a replay makes the same
decisions.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specpilot.controller.estimation.observation import Observation, Series
from specpilot.policy.canary import Experiment
from specpilot.policy.codec import from_plain, to_plain
from specpilot.policy.freeze import Freeze
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.records import EngineRecord
from specpilot.policy.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded tick. `now` is steady seconds, as in the observations; `at` is Unix seconds.

    Attributes:
        unreadable: models whose policy could not be read; their pools kept their schedules without a decision.
        windows_at: the time that determines a canary's window, Unix seconds; it does not advance while Redis does not
            answer.
        fence: the lease's; a new number marks a take-over; `None` in stand-by.
        default_mode: the controller's setting of this name.
        scrape_s: seconds between two scrapes.
        resumed: (model, pool, digest) of each pool that had fallen back under an earlier leader, in the tick in which
            this leader took it over.
    """

    at: float
    now: float
    engines: tuple[EngineRecord, ...]
    policies: Mapping[str, Policy]
    schedules: tuple[Schedule, ...]
    observations: tuple[Observation, ...]
    experiments: Mapping[str, Experiment] = field(default_factory=dict)
    freezes: Mapping[str, Freeze] = field(default_factory=dict)
    unreadable: frozenset[str] = frozenset()
    windows_at: float | None = None
    fence: int | None = None
    default_mode: Mode = Mode.ACT
    scrape_s: float = 0.5
    resumed: tuple[tuple[str, str, str], ...] = ()


def to_line(tick: Recorded) -> str:
    """Return `tick` as one line of JSON without the line's end."""
    plain: dict[str, Any] = {
        "at": tick.at,
        "now": tick.now,
        "windows_at": tick.windows_at,
        "fence": tick.fence,
        "default_mode": tick.default_mode.value,
        "scrape_s": tick.scrape_s,
        "resumed": [list(item) for item in tick.resumed],
        "engines": [to_plain(engine) for engine in tick.engines],
        "policies": {model: to_plain(policy) for model, policy in tick.policies.items()},
        "schedules": [to_plain(schedule) for schedule in tick.schedules],
        "experiments": {model: to_plain(item) for model, item in tick.experiments.items()},
        "freezes": {model: to_plain(item) for model, item in tick.freezes.items()},
        "unreadable": sorted(tick.unreadable),
        "observations": [
            {
                "engine_id": observation.engine_id,
                "model": observation.model,
                "pool": observation.pool,
                "at": observation.at,
                "started_at": observation.started_at,
                "values": [[series.metric, list(series.labels), value] for series, value in observation.values.items()],
            }
            for observation in tick.observations
        ],
    }
    return json.dumps(plain, separators=(",", ":"))


def from_line(line: str) -> Recorded:
    """Return the tick in `line`; raises `InvalidDocumentError`, `ValueError` or `KeyError` if it has none."""
    plain = json.loads(line)
    return Recorded(
        at=plain["at"],
        now=plain["now"],
        engines=tuple(from_plain(EngineRecord, item) for item in plain["engines"]),
        policies={model: from_plain(Policy, item) for model, item in plain["policies"].items()},
        schedules=tuple(from_plain(Schedule, item) for item in plain["schedules"]),
        observations=tuple(
            Observation(
                item["engine_id"], item["model"], item["pool"], item["at"], item["started_at"],
                {Series(metric, tuple(labels)): value for metric, labels, value in item["values"]},
            )
            for item in plain["observations"]
        ),
        experiments={model: from_plain(Experiment, item) for model, item in plain["experiments"].items()},
        freezes={model: from_plain(Freeze, item) for model, item in plain["freezes"].items()},
        unreadable=frozenset(plain["unreadable"]),
        windows_at=plain["windows_at"],
        fence=plain["fence"],
        default_mode=Mode(plain["default_mode"]),
        scrape_s=plain["scrape_s"],
        resumed=tuple((model, pool, digest) for model, pool, digest in plain["resumed"]),
    )  # fmt: skip

"""The source of K on one engine.

| source        | holds while                                                                                    |
|---------------|------------------------------------------------------------------------------------------------|
| `calibrating` | the engine measures its steps before traffic                                                   |
| `fixed`       | the guidance in force has an override, or pins every class; without guidance: the operator has |
|               | given the engine a static K                                                                    |
| `law`         | otherwise. Until the law has enough evidence it gives the static K within the bounds           |

The first row that applies decides. The guidance in force is that of the last schedule, which holds until a newer one
comes. Until the window of an experiment ends (`Schedule.drawn_for_s`), an engine in `drawn` follows `drawn_guidance`.

An override "as now" keeps the K that was in force outside of windows when it came: a fixed K, or the groups of the law
with their K (`law.law.EngineLaw.hold`, which `agent.learning` calls within a quarter of a second). An engine that
received no schedule before runs the static K.

Pure: the time is an argument. The link's thread and the control route pass in schedules, one at a time. The
scheduler's thread reads the table in every step. Each table is replaced as a whole, so a step sees the old one or the
new one, never a mixture.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Lock
from typing import NamedTuple

from specpilot.engine_adapter.errors import ScheduleRefusedError, StaleScheduleError
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import Guidance, Override, Schedule


class Source(StrEnum):
    """The source of the K in force."""

    CALIBRATING = "calibrating"
    FIXED = "fixed"
    LAW = "law"


@dataclass(frozen=True, slots=True)
class KTable:
    """K by class: `k_of`. With a `law` the law chooses K by class and band, and `k_of` is the static K.

    `probe_depths` maps each class that is probed to the largest depth of its probes: with a law the upper bounds of the
    classes. Without a law there are none, because no outcome of a probe could change K.
    """

    source: Source
    k_of: Mapping[str, int]
    probe_ratio: float = 0.0
    probe_depths: Mapping[str, int] = field(default_factory=dict)
    law: EngineLaw | None = None

    def k(self, traffic_class: str) -> int:
        """Return K for a request of `traffic_class`."""
        return self.k_of.get(traffic_class, self.k_of[DEFAULT_CLASS])

    def k_of_each(self, traffic_classes: Sequence[str]) -> list[int]:
        """Return K for a request of each of these classes."""
        k_of, default = self.k_of, self.k_of[DEFAULT_CLASS]
        return [k_of.get(name, default) for name in traffic_classes]

    def probe_depth(self, traffic_class: str) -> int:
        """Return the largest depth of a probe in `traffic_class`; 0: the class is not probed."""
        return self.probe_depths.get(traffic_class if traffic_class in self.k_of else DEFAULT_CLASS, 0)


def fixed_table(k_of: Mapping[str, int], source: Source = Source.FIXED) -> KTable:
    """Return the table with one K for each class, which never probes; `default` must be named."""
    return KTable(source, k_of)


def law_table(law: EngineLaw, probe_ratio: float) -> KTable:
    """Return the table in which `law` chooses K, and probes keep the bounds of each class."""
    depths = law.requirements.probe_depth
    static = dict.fromkeys(depths, law.static_k)
    return KTable(Source.LAW, static, probe_ratio, {name: depth for name, depth in depths.items() if depth}, law)


class _Setting(NamedTuple):
    """A guidance, and its table if K is fixed, or kept as it was. `None`: the law, free or with kept groups.

    `ends_at`: the monotonic time after which the override has ended.
    """

    guidance: Guidance
    table: KTable | None
    ends_at: float = math.inf

    def fixed(self, now: float) -> KTable | None:
        """Return the table at monotonic time `now`; `None`: the law."""
        return self.table if now <= self.ends_at else None

    def override(self, now: float) -> Override | None:
        """Return the override in force at monotonic time `now`."""
        return self.guidance.override if now <= self.ends_at else None


@dataclass(frozen=True, slots=True)
class _Applied:
    """A schedule, and the settings of this engine outside and inside of its window."""

    schedule: Schedule
    received_at: float
    usual: _Setting
    in_window: _Setting

    def setting(self, now: float) -> _Setting:
        """Return the setting at monotonic time `now`."""
        return self.in_window if now - self.received_at <= self.schedule.drawn_for_s else self.usual


class SpeculationControl:
    """The K in force on one engine.

    `k_max` is the engine's `num_speculative_tokens` (0: it cannot speculate), `static_k` the operator's static K,
    `max_running` vLLM's `max_num_seqs`. `adapts`: without guidance the law chooses. `engine_id`: the engine's name, by
    which a schedule draws it. `own_guidance`: what the law follows before the first schedule, and the defaults of a
    `PUT`. `calibrating` and `by_law` are the tables of these sources, `None` if there is none.
    """

    def __init__(  # noqa: PLR0913 - the facts of an engine
        self,
        model: str,
        pool: str,
        k_max: int,
        static_k: int,
        max_running: int,
        *,
        adapts: bool = False,
        engine_id: str = "",
        own_guidance: Guidance | None = None,
    ) -> None:
        if not 0 <= static_k <= k_max:
            raise ScheduleRefusedError("static_k", f"is {static_k}; this engine's K_max is {k_max}")
        self.model = model
        self.pool = pool
        self.k_max = k_max
        self.static_k = static_k
        self.max_running = max_running
        self.engine_id = engine_id
        self.own_guidance = own_guidance or Guidance()
        self.calibrating: KTable | None = None
        self.by_law: KTable | None = None
        self._adapts = adapts and k_max > 0
        self._static = fixed_table({DEFAULT_CLASS: static_k})
        self._applied: _Applied | None = None
        self._offering = Lock()  # otherwise an older schedule could replace a newer one that came during its check

    def offer(self, schedule: Schedule, now: float) -> None:
        """Apply `schedule`; `now` is monotonic time in seconds, from which its age counts.

        A K that it fixes holds from the next step on, what it asks of the law from the next call of `agent.learning`
        on. Raises `ScheduleRefusedError`, with the field at fault, and leaves the running schedule untouched.
        """
        if schedule.model != self.model:
            raise ScheduleRefusedError("model", f"is {schedule.model!r}; this engine serves {self.model!r}")
        if schedule.pool != self.pool:
            raise ScheduleRefusedError("pool", f"is {schedule.pool!r}; this engine belongs to {self.pool!r}")
        with self._offering:
            if schedule.version <= self.version:
                raise StaleScheduleError(
                    "version", f"is {schedule.version}; version {self.version} is in force, send a larger one"
                )
            usual, in_window = schedule.guidance, schedule.guidance_of(self.engine_id)
            present = self._present(now)
            settings = [self._setting(guidance, present, now - schedule.issued_at) for guidance in (usual, in_window)]
            self._applied = _Applied(schedule, now, *settings)

    def _setting(self, guidance: Guidance, present: KTable | None, offset_s: float) -> _Setting:
        """Return the setting of `guidance`; `offset_s` is monotonic time less that of the schedule."""
        override = guidance.override
        if override is None:
            return _Setting(guidance, fixed_table(guidance.fixed_k(0, self.k_max)) if guidance.is_pinned else None)
        table = present
        if override.k is not None:
            table = fixed_table(guidance.fixed_k(override.k, self.k_max, is_bounded=override.is_bounded))
        return _Setting(guidance, table, math.inf if override.until is None else override.until + offset_s)

    def _present(self, now: float) -> KTable | None:
        """Return the table that an override "as now" keeps if it comes at `now`; `None`: the law."""
        applied = self._applied
        return self._static if applied is None else applied.usual.fixed(now)

    def table(self, now: float) -> KTable:
        """Return the table in force at monotonic time `now`."""
        calibrating, applied, by_law = self.calibrating, self._applied, self.by_law  # other threads set them
        if calibrating is not None:
            return calibrating
        if applied is None:
            return (by_law if self._adapts else None) or self._static
        return applied.setting(now).fixed(now) or by_law or self._static

    def source(self, now: float) -> Source:
        """Return the source of K at monotonic time `now`: groups of the law whose K an override keeps are fixed."""
        source = self.table(now).source
        return Source.FIXED if source is Source.LAW and self.holds_law(now) else source

    def guidance(self, now: float) -> Guidance | None:
        """Return the guidance in force at monotonic time `now`; `None` before the first schedule."""
        return self._applied.setting(now).guidance if self._applied else None

    def override(self, now: float) -> Override | None:
        """Return the override in force at monotonic time `now`."""
        return self._applied.setting(now).override(now) if self._applied else None

    def holds_law(self, now: float) -> bool:
        """Return whether an override keeps the groups of the law with their K."""
        setting = self._applied.setting(now) if self._applied else None
        return setting is not None and setting.table is None and setting.override(now) is not None

    @property
    def version(self) -> int:
        """The version of the last schedule applied; 0 before the first."""
        return self._applied.schedule.version if self._applied else 0

    @property
    def schedule(self) -> Schedule | None:
        """The last schedule applied."""
        return self._applied.schedule if self._applied else None

    def age_s(self, now: float) -> float | None:
        """Seconds since the last schedule was applied; `None` before the first."""
        return now - self._applied.received_at if self._applied else None

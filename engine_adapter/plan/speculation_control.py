"""The source of K on one engine: its law, or rows by class, band and running decodes.

Pure: the time is an argument. The link's thread and the control route pass in schedules, one at a time. The
scheduler's thread reads the table in every step. Each table is replaced as a whole, so a step sees the old one or the
new one, never a mixture.

The table in force, in this order (the code has the same numbers):

1. calibration: while the engine measures its steps before traffic;
2. guidance: the schedule has guidance for this engine, and the engine's law has enough evidence (measured steps, and
   traffic or the fleet's acceptance). This case lasts `valid_for_s` plus `hold_s` seconds. Until the window of an
   experiment ends (`Schedule.drawn_for_s`), an engine in `drawn` follows `drawn_guidance`; if that is `None`, it
   follows the rows (3). Afterwards all follow `guidance`, also without a new schedule;
3. schedule: its rows, for its `valid_for_s`;
4. engine: no schedule is valid, and the engine adapts by itself: its law chooses K. Until the law has enough evidence
   it returns the static K inside the bounds;
5. held: the schedule's rows for `hold_s` more. They are preferred to the static K, because rows by band and load suit
   more loads than one K;
6. expired, and before the first schedule: the static K for every class.

A schedule is refused if its version is not newer than that of the last one applied, even if the last one has expired.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from threading import Lock

from specpilot.engine_adapter.errors import ScheduleRefusedError, StaleScheduleError
from specpilot.engine_adapter.law.law import EngineLaw
from specpilot.policy.bands import BANDS, classes_in, row_name, row_of
from specpilot.policy.names import DEFAULT_CLASS
from specpilot.policy.schedule import Guidance, KRange, Schedule


class Source(StrEnum):
    """The source of the K in force: the cases of the module."""

    CALIBRATION = "calibration"  # 1
    GUIDANCE = "guidance"  # 2
    SCHEDULE = "schedule"  # 3
    ENGINE = "engine"  # 4
    HELD = "held"  # 5
    EXPIRED = "expired"  # 6
    STATIC = "static"  # 6, before the first schedule


@dataclass(frozen=True, slots=True)
class KTable:
    """K by class, band and running decodes, dense: `rows[class][band][n - 1]`; the last entry also holds for larger n.

    `probed` maps each class that is probed to the largest depth of its probes: the largest K of its rows, at least 1.
    A class with one row for all bands is pinned and not probed.

    With a `law`, the law chooses K, `rows` are the static K, and the depths are the upper bounds of the classes.
    """

    source: Source
    rows: Mapping[str, tuple[tuple[int, ...], ...]]
    probe_ratio: float
    probed: Mapping[str, int] = field(default_factory=dict)
    law: EngineLaw | None = None

    def k(self, traffic_class: str, band: int, running_decodes: int) -> int:
        """Return K for a request of `traffic_class` in `band` while `running_decodes` (from 1) requests decode."""
        row = (self.rows.get(traffic_class) or self.rows[DEFAULT_CLASS])[band]
        return row[running_decodes - 1] if running_decodes <= len(row) else row[-1]

    def probe_depth(self, traffic_class: str) -> int:
        """Return the largest depth of a probe in `traffic_class`; 0: the class is not probed."""
        return self.probed.get(traffic_class if traffic_class in self.rows else DEFAULT_CLASS, 0)


def static_table(k: int, source: Source = Source.STATIC) -> KTable:
    """Return the table that gives every request the same `k` and never probes."""
    return KTable(source=source, rows={DEFAULT_CLASS: ((k,),) * BANDS}, probe_ratio=0.0)


def law_table(law: EngineLaw, probe_ratio: float, source: Source = Source.ENGINE) -> KTable:
    """Return the table in which `law` chooses K, and probes keep the bounds of each class."""
    depths = law.requirements.probe_depth
    rows = dict.fromkeys(depths, ((law.static_k,),) * BANDS)
    probed = {name: depth for name, depth in depths.items() if depth}
    return KTable(source, rows, probe_ratio, probed, law)


def calibration_table(k: int, others: Mapping[str, int]) -> KTable:
    """Return the table that gives each class in `others` its own K and every other request `k`."""
    rows = {name: ((value,),) * BANDS for name, value in {DEFAULT_CLASS: k, **others}.items()}
    return KTable(source=Source.CALIBRATION, rows=rows, probe_ratio=0.0)


def table_of(schedule: Schedule, max_running: int) -> KTable:
    """Return the rows of `schedule` as a dense table for 1 to `max_running` running decodes."""
    dense = {name: _dense(ranges, max_running) for name, ranges in schedule.classes.items()}
    rows = {
        name: tuple(row_of(dense, name, band) for band in range(BANDS))
        for name in classes_in(dense) | {DEFAULT_CLASS, *schedule.like_default}
    }
    probed = {
        name: max(1, *(max(row) for row in rows[name]))
        for name in rows
        if any(row_name(name, band) in dense for band in range(BANDS))
    }
    if DEFAULT_CLASS in probed:
        probed |= dict.fromkeys(schedule.like_default, probed[DEFAULT_CLASS])
    return KTable(source=Source.SCHEDULE, rows=rows, probe_ratio=schedule.probe_ratio, probed=probed)


def _dense(ranges: tuple[KRange, ...], max_running: int) -> tuple[int, ...]:
    row: list[int] = []
    for lo, hi, k in ranges:
        row.extend([k] * (min(hi, max_running) - lo + 1))
    return tuple(row)


@dataclass(frozen=True, slots=True)
class _Applied:
    """A schedule and its tables for the cases 3 and 5.

    `window_guidance`: the guidance that this engine follows until the window ends. It is the schedule's
    `drawn_guidance` if the engine is drawn, else its `guidance`.
    """

    schedule: Schedule
    table: KTable
    held: KTable
    received_at: float
    window_guidance: Guidance | None

    def guidance(self, now: float) -> Guidance | None:
        """Return the guidance of this engine at monotonic time `now`, whether or not the schedule is still valid."""
        is_in_window = now - self.received_at <= self.schedule.drawn_for_s
        return self.window_guidance if is_in_window else self.schedule.guidance


class SpeculationControl:
    """The K in force on one engine.

    `k_max` is the engine's `num_speculative_tokens` (0: it cannot speculate), `static_k` the operator's K without a
    schedule, `max_running` vLLM's `max_num_seqs`. `hold_s`: seconds of case 5. `engine_id`: the engine's name, by which
    a schedule draws it. `calibrating`, `guided` and `adapting` are the tables of the cases 1, 2 and 4; each is `None`
    if it does not apply.
    """

    def __init__(  # noqa: PLR0913 - the facts of an engine
        self,
        model: str,
        pool: str,
        k_max: int,
        static_k: int,
        max_running: int,
        *,
        hold_s: float = 0.0,
        engine_id: str = "",
    ) -> None:
        if not 0 <= static_k <= k_max:
            raise ScheduleRefusedError("static_k", f"is {static_k}; this engine's K_max is {k_max}")
        self.model = model
        self.pool = pool
        self.k_max = k_max
        self.static_k = static_k
        self.max_running = max_running
        self.hold_s = hold_s
        self.calibrating: KTable | None = None
        self.guided: KTable | None = None
        self.adapting: KTable | None = None
        self._engine_id = engine_id
        self._static = static_table(static_k)
        self._expired = static_table(static_k, Source.EXPIRED)
        self._applied: _Applied | None = None
        self._offering = Lock()  # otherwise an older schedule could replace a newer one that came during its check

    def offer(self, schedule: Schedule, now: float) -> None:
        """Apply `schedule` from the next step on; `now` is monotonic time in seconds, from which its age counts.

        Raises `ScheduleRefusedError`, with the field at fault, and leaves the running schedule untouched.
        """
        if schedule.model != self.model:
            raise ScheduleRefusedError("model", f"is {schedule.model!r}; this engine serves {self.model!r}")
        if schedule.pool != self.pool:
            raise ScheduleRefusedError("pool", f"is {schedule.pool!r}; this engine belongs to {self.pool!r}")
        for name, ranges in schedule.classes.items():
            for lo, hi, k in ranges:
                if k > self.k_max:
                    raise ScheduleRefusedError(
                        f"classes.{name}", f"[{lo}, {hi}, {k}] asks for K {k}; this engine's K_max is {self.k_max}"
                    )
        with self._offering:
            if schedule.version <= self.version:
                raise StaleScheduleError(
                    "version", f"is {schedule.version}; version {self.version} is in force, send a larger one"
                )
            table = table_of(schedule, self.max_running)
            held = replace(table, source=Source.HELD)
            self._applied = _Applied(schedule, table, held, now, schedule.guidance_of(self._engine_id))

    def table(self, now: float) -> KTable:
        """Return the table in force at monotonic time `now`."""
        calibrating, applied = self.calibrating, self._applied  # each read once: other threads set them
        guided, adapting = self.guided, self.adapting
        if calibrating is not None:
            return calibrating  # 1
        if applied is None:
            return adapting or self._static  # 4, 6
        age_s, schedule = now - applied.received_at, applied.schedule
        is_valid, is_held = age_s <= schedule.valid_for_s, age_s <= schedule.valid_for_s + self.hold_s
        if guided is not None and is_held and applied.guidance(now) is not None:
            return guided  # 2
        if is_valid:
            return applied.table  # 3
        if adapting is not None:
            return adapting  # 4
        return applied.held if is_held else self._expired  # 5, 6

    def guidance(self, now: float) -> Guidance | None:
        """Return the guidance that the engine's law follows at monotonic time `now`; `None`: none.

        In a window in which the engine follows rows, its law keeps the guidance that it follows outside of the window,
        so that its choice is not made anew twice.
        """
        applied = self._applied
        if applied is None or now - applied.received_at > applied.schedule.valid_for_s + self.hold_s:
            return None
        return applied.guidance(now) or applied.schedule.guidance or applied.schedule.drawn_guidance

    @property
    def version(self) -> int:
        """The version of the last schedule applied, even if it has expired; 0 before the first."""
        return self._applied.schedule.version if self._applied else 0

    @property
    def schedule(self) -> Schedule | None:
        """The last schedule applied, even if it has expired."""
        return self._applied.schedule if self._applied else None

    def age_s(self, now: float) -> float | None:
        """Seconds since the last schedule was applied; `None` before the first."""
        return now - self._applied.received_at if self._applied else None

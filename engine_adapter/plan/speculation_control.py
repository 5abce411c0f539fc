"""From a schedule to K for a request: a table by class and band, looked up every step, swapped whole.

Pure: the time is an argument. A `SpeculationControl` belongs to one engine; the agent's thread and the control
route offer schedules, one at a time, the scheduler's thread reads. The only shared state is one reference, replaced
whole, so a step sees the old table or the new one and never a mixture.

Regimes: no valid schedule -> the static K for every class; a schedule older than its `valid_for_s` -> the same,
until a newer one comes. A version that is not newer than the one in force is refused, expired or not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from specpilot.engine_adapter.errors import ScheduleRefusedError, StaleScheduleError
from specpilot.policy.bands import BANDS, classes_in, row_name, row_of
from specpilot.policy.types import DEFAULT_CLASS, KRange, Schedule


class Source(StrEnum):
    """Where the K in force comes from."""

    STATIC = "static"  # nothing was ever applied
    SCHEDULE = "schedule"
    EXPIRED = "expired"  # a schedule was applied and is stale now: static K


@dataclass(frozen=True, slots=True)
class KTable:
    """K by class, band and running decodes, dense: `rows[class][band][n - 1]`, the last entry holding for larger n.

    `probed` are the classes of which a schedule has rows by band; what has one row for all bands is pinned.
    """

    source: Source
    rows: Mapping[str, tuple[tuple[int, ...], ...]]
    probe_ratio: float
    probed: frozenset[str] = frozenset()

    def k(self, traffic_class: str, band: int, running_decodes: int) -> int:
        """Return K for a request of `traffic_class` in `band` while `running_decodes` (from 1) requests decode."""
        row = (self.rows.get(traffic_class) or self.rows[DEFAULT_CLASS])[band]
        return row[running_decodes - 1] if running_decodes <= len(row) else row[-1]

    def is_probed(self, traffic_class: str) -> bool:
        """Whether requests of `traffic_class` are probed."""
        return (traffic_class if traffic_class in self.rows else DEFAULT_CLASS) in self.probed


def static_table(k: int, source: Source = Source.STATIC) -> KTable:
    """Return the table that gives every request the same `k` and never probes."""
    return KTable(source=source, rows={DEFAULT_CLASS: ((k,),) * BANDS}, probe_ratio=0.0)


def table_of(schedule: Schedule, max_running: int) -> KTable:
    """Return `schedule` as a dense table for 1 to at most `max_running` running decodes."""
    dense = {name: _dense(ranges, max_running) for name, ranges in schedule.classes.items()}
    rows = {
        name: tuple(row_of(dense, name, band) for band in range(BANDS))
        for name in classes_in(dense) | {DEFAULT_CLASS, *schedule.like_default}
    }
    banded = {name for name in rows if any(row_name(name, band) in dense for band in range(BANDS))}
    if DEFAULT_CLASS in banded:
        banded.update(schedule.like_default)
    return KTable(
        source=Source.SCHEDULE,
        rows=rows,
        probe_ratio=schedule.probe_ratio,
        probed=frozenset(banded),
    )


def _dense(ranges: tuple[KRange, ...], max_running: int) -> tuple[int, ...]:
    row: list[int] = []
    for lo, hi, k in ranges:
        row.extend([k] * (min(hi, max_running) - lo + 1))
    return tuple(row)


class SpeculationControl:
    """The K in force on one engine.

    `k_max` is the engine's `num_speculative_tokens` (0: it cannot speculate), `static_k` the operator's K when no
    valid schedule is there, `max_running` vLLM's `max_num_seqs`.
    """

    def __init__(self, model: str, pool: str, k_max: int, static_k: int, max_running: int) -> None:
        if not 0 <= static_k <= k_max:
            raise ScheduleRefusedError("static_k", f"is {static_k}; this engine's K_max is {k_max}")
        self.model = model
        self.pool = pool
        self.k_max = k_max
        self.static_k = static_k
        self.max_running = max_running
        self._static = static_table(static_k)
        self._expired = static_table(static_k, Source.EXPIRED)
        self._applied: tuple[Schedule, KTable, float] | None = None
        self._offering = Lock()  # or an older schedule could replace the newer one that came while it was looked at

    def offer(self, schedule: Schedule, now: float) -> None:
        """Apply `schedule` from the next step on; `now` is monotonic time in seconds.

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
            self._applied = (schedule, table_of(schedule, self.max_running), now)

    def table(self, now: float) -> KTable:
        """Return the table in force at monotonic time `now`."""
        applied = self._applied
        if applied is None:
            return self._static
        schedule, table, received_at = applied
        return table if now - received_at <= schedule.valid_for_s else self._expired

    @property
    def version(self) -> int:
        """The version of the last schedule applied, expired or not; 0 before the first."""
        return self._applied[0].version if self._applied else 0

    @property
    def schedule(self) -> Schedule | None:
        """The last schedule applied, expired or not."""
        return self._applied[0] if self._applied else None

    def age_s(self, now: float) -> float | None:
        """Seconds since the last schedule was applied; `None` before the first."""
        return now - self._applied[2] if self._applied else None

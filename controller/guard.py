"""The last word over the law: whether a better-looking schedule may replace the one in force.

A row of the schedule changes when its predicted gain reaches the policy's minimum and its last change is at least
the dwell time ago; a large gain in a row that traffic uses does not wait for that. Rows that no traffic uses are mostly
extrapolated, and what they are predicted to gain moves with every look: they change along with a row in use, or when
one of them gains much.

After a change in a row that traffic uses, the measured goodput is compared, for some ticks, with what the *previous*
schedule would yield now: the model's prediction for it, times the ratio of measured to predicted that held before the
change. So a wrong model cannot excuse itself, and a change of load or acceptance is not mistaken for a bad decision. A
shortfall beyond the noise rolls the change back: beyond the noise before the change, and beyond what the ticks since
differ among themselves (one-sided 95 % by Student's t), for a neighbour that makes some of them three times as long is
no fault of the schedule. Under another kind of load (`LoadKind`) the model is wrong in another way: where that kind was
not seen for three ticks before, only a shortfall of 15 % more counts. While a shortfall is in doubt the comparison goes
on. Of several changes in a row the previous schedule is the last one that stood this test: two bad steps are taken back
together.

A roll-back pauses the law, longer every time, for the rows within an octave of the load that it was measured at: it
says nothing of others.

Every tick ends with exactly one `Reason`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controller.tuning import Tuning

Vector = NDArray[np.float64]
Matrix = NDArray[np.int64]
_ACTIVE_SHARE = 0.05
_FEW_SAMPLES = 3
_RATIO_HOLDS_S = 120.0
_UNFAMILIAR_RATIO = 0.15
_T_95 = np.array([np.nan, 6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81])
"""Student's t, one-sided 95 %, by degrees of freedom; the last one serves for all above."""


class Reason(StrEnum):
    """Why the schedule is what it is: a metric label, a field of every decision and a row in the documentation."""

    OFF = "off"
    NO_DRAFTER = "no_drafter"
    STALE = "stale"
    IDLE = "idle"
    EXPLORE = "explore"
    COST_UNKNOWN = "cost_unknown"
    ACCEPTANCE_UNKNOWN = "acceptance_unknown"
    BOUNDS = "bounds"
    GAIN = "gain"
    AHEAD = "ahead"
    OPTIMAL = "optimal"
    MINIMUM_GAIN = "minimum_gain"
    DWELL = "dwell"
    ROLLBACK = "rollback"
    BACK_OFF = "back_off"
    CANARY_PROMOTED = "canary_promoted"
    CANARY_ROLLED_BACK = "canary_rolled_back"


MEANING: dict[Reason, str] = {
    Reason.OFF: "the policy's mode is off: the static K is published",
    Reason.NO_DRAFTER: "the engines cannot speculate (k_max is 0)",
    Reason.STALE: "no engine of the pool gave fresh evidence: the schedule in force is held",
    Reason.IDLE: "nothing is running: the schedule in force is held",
    Reason.EXPLORE: "a depth whose cost or acceptance nobody knows is tried for a moment",
    Reason.COST_UNKNOWN: "the cost of some depths is unknown and may not be explored now: held",
    Reason.ACCEPTANCE_UNKNOWN: "too few drafts were verified to know the acceptance: held",
    Reason.BOUNDS: "the schedule in force broke the policy's bounds or pins and was moved inside",
    Reason.GAIN: "changed: the predicted gain at the present load reached the minimum",
    Reason.AHEAD: "changed for loads that are not present: nothing running is affected",
    Reason.OPTIMAL: "the schedule in force is the best one known",
    Reason.MINIMUM_GAIN: "held: a better schedule is known, but its predicted gain is below the minimum",
    Reason.DWELL: "held: a better schedule is known, but the last change is too recent",
    Reason.ROLLBACK: "changed back: the measured goodput fell short of the previous schedule's",
    Reason.BACK_OFF: "held: a roll-back was made recently at about this load",
    Reason.CANARY_PROMOTED: "the canary's policy became the model's policy",
    Reason.CANARY_ROLLED_BACK: "the canary ended and the present policy stays",
}


class LoadKind(NamedTuple):
    """Loads under which the model is wrong alike: running decodes to the nearest power of two, and who is present."""

    octave: int
    classes: frozenset[str]

    @classmethod
    def of(cls, decodes: float, classes: Iterable[str]) -> "LoadKind":
        """Return the kind of a load of so many running decodes of these classes."""
        return cls(round(np.log2(max(decodes, 1.0))), frozenset(classes))


_HELD = (Reason.OPTIMAL, Reason.MINIMUM_GAIN, Reason.DWELL, Reason.BACK_OFF)  # the later outdoes the earlier


@dataclass(frozen=True, slots=True)
class Proposal:
    """A better-looking choice for some columns in some rows, to be taken or left row by row.

    `gain` [rows] is the predicted relative gain over the schedule in force; `rows` a mask; `columns` indices.
    `is_present` tells whether the columns' classes have traffic now.
    """

    columns: tuple[int, ...]
    rows: NDArray[np.bool_]
    k: Matrix
    gain: Vector
    is_present: bool = True


@dataclass(frozen=True, slots=True)
class Standing:
    """The schedule in force: class `names` by column, `k` [rows, columns].

    Of each row the running decodes `n` that it is for, and the share of steps that it served (`active`).
    """

    names: Sequence[str]
    k: Matrix
    n: Vector
    active: Vector


@dataclass(slots=True)
class _Bias:
    """By how much the model is off under one kind of load: the logarithm of measured over predicted, over ticks."""

    log_ratio: float
    ticks: int
    at: float


@dataclass(slots=True)
class _Watch:
    previous: Matrix
    shortfalls: list[float] = field(default_factory=list)
    skip: int = 1

    def again(self) -> None:
        """Another change came. What spoke against the first one stays; what spoke for it says nothing of this one."""
        self.skip = 1
        if self.shortfalls and np.mean(self.shortfalls) > 0:
            self.shortfalls.clear()


class Guard:
    """What the guard remembers of one pool: recent changes, the running comparison, the pause after a roll-back."""

    def __init__(self, tuning: Tuning | None = None, since: float = -np.inf) -> None:
        """Begin at `since`, when the schedule in force was another's: its dwell time begins then."""
        self._tuning = tuning or Tuning()
        self._since = since
        self._changed_at: dict[str, Vector] = {}
        self._biases: dict[LoadKind, _Bias] = {}  # the newest last
        self._noise = 0.02
        self._watch: _Watch | None = None
        self._back_off_s = self._tuning.back_off_s
        self._paused_until: dict[int, float] = {}  # by octave

    @property
    def previous(self) -> Matrix | None:
        """The schedule that the latest change is being compared with; `None` when nothing is being compared."""
        return self._watch.previous if self._watch else None

    def paused(self, n: Vector, now: float) -> NDArray[np.bool_]:
        """Which of the rows, of `n` running decodes each, a roll-back forbids to change at `now`."""
        found: NDArray[np.bool_] = np.zeros(len(n), dtype=np.bool_)
        for octave, until in self._paused_until.items():
            if now < until:
                found |= np.abs(np.log2(n) - octave) <= 1.0
        return found

    def gate(
        self,
        standing: Standing,
        proposals: Sequence[Proposal],
        *,
        minimum_gain_ratio: float,
        dwell_s: float,
        now: float,
    ) -> tuple[Matrix, Reason]:
        """Return the schedule to have and why."""
        names, in_force, active = standing.names, standing.k, standing.active
        if not self._tuning.guard:
            minimum_gain_ratio, dwell_s = 1e-9, 0.0
        chosen = in_force.copy()
        held: Reason = Reason.OPTIMAL
        ahead: list[tuple[Proposal, NDArray[np.bool_]]] = []
        is_changing = goes_ahead = False
        is_paused = self.paused(standing.n, now)
        for proposal in proposals:
            columns = list(proposal.columns)
            in_use = (active >= _ACTIVE_SHARE) & proposal.is_present
            differs = (proposal.k[:, columns] != in_force[:, columns]).any(axis=1) & proposal.rows
            worth = differs & (proposal.gain >= minimum_gain_ratio)
            last = np.max([self._last_change(names[column], len(active)) for column in columns], axis=0)
            has_dwelt, gains_much = now - last >= dwell_s, proposal.gain >= self._tuning.urgent_gain_ratio
            ready = worth & in_use & (has_dwelt | gains_much) & ~is_paused
            self._move(chosen, standing, proposal, ready, now)
            ahead.append((proposal, worth & ~in_use & has_dwelt & ~is_paused))
            is_changing |= bool(ready.any())
            goes_ahead |= bool((ahead[-1][1] & gains_much).any()) or not self._tuning.guard
            held = max(held, _why_held(in_use, is_paused, worth & ~ready, differs & ~worth), key=_HELD.index)
        if is_changing or goes_ahead:
            for proposal, rows in ahead:
                self._move(chosen, standing, proposal, rows, now)
        if is_changing:
            if self._watch is not None:
                self._watch.again()  # what the latest change is compared with has not proved itself yet: keep what had
            elif self._tuning.guard and self._biases:
                self._watch = _Watch(in_force.copy())
            return chosen, Reason.GAIN
        return chosen, held if (chosen == in_force).all() else Reason.AHEAD

    def _move(
        self, chosen: Matrix, standing: Standing, proposal: Proposal, rows: NDArray[np.bool_], now: float
    ) -> None:
        """Put `rows` of `proposal` into `chosen`."""
        for column in proposal.columns:
            moved = rows & (proposal.k[:, column] != standing.k[:, column])
            chosen[moved, column] = proposal.k[moved, column]
            self._last_change(standing.names[column], len(rows))[moved] = now

    def compare(
        self, kind: LoadKind, measured: float, predicted: float, predicted_previous: float | None, now: float
    ) -> Matrix | None:
        """Take in one tick's goodput; return the schedule to go back to when the latest change proved bad.

        `predicted` and `predicted_previous` are the model's goodput now under the schedule in force and under the
        one before the latest change. Call it only for ticks that ran wholly under the schedule in force.
        """
        if measured <= 0 or predicted <= 0:
            return None
        log_ratio = float(np.clip(np.log(measured / predicted), -1.0, 1.0))
        watch = self._watch
        if watch is None or predicted_previous is None or predicted_previous <= 0:
            self._follow(kind, log_ratio, now)
            return None
        if watch.skip > 0:
            watch.skip -= 1
            return None
        bias, is_familiar = self._bias(kind, now)
        watch.shortfalls.append(float(np.log(measured / predicted_previous)) - bias)
        count = len(watch.shortfalls)
        mean = float(np.mean(watch.shortfalls))
        allowed = max(self._tuning.check_tolerance_ratio, 2.0 * self._noise)
        allowed += 0.0 if is_familiar else _UNFAMILIAR_RATIO
        if count >= _FEW_SAMPLES and mean + _error(watch.shortfalls) < -allowed:
            self._watch = None
            self._paused_until[kind.octave] = now + self._back_off_s
            self._back_off_s = min(self._back_off_s * 2, self._tuning.back_off_limit_s)
            return watch.previous
        if count >= self._tuning.check_ticks and mean >= -allowed:
            self._watch = None
            self._biases[kind] = _Bias(log_ratio, _FEW_SAMPLES, now)
            if mean > 0:
                self._back_off_s = self._tuning.back_off_s
        return None

    def forget_watch(self) -> None:
        """Stop comparing: something else than the law's choice changed what engines do."""
        self._watch = None

    def mark_changed(self, names: Sequence[str], rows: int, now: float) -> None:
        """Note that every row of `names` changed at `now` by a way around the gate."""
        for name in names:
            self._changed_at[name] = np.full(rows, now)

    def _bias(self, kind: LoadKind, now: float) -> tuple[float, bool]:
        """Return the model's bias under `kind`, and whether it is known; else that of the load seen last."""
        known = self._biases.get(kind)
        if known is not None and known.ticks >= _FEW_SAMPLES and now - known.at <= _RATIO_HOLDS_S:
            return known.log_ratio, True
        return next(reversed(self._biases.values())).log_ratio, False

    def _follow(self, kind: LoadKind, log_ratio: float, now: float) -> None:
        known = self._biases.pop(kind, None)
        if known is None or now - known.at > _RATIO_HOLDS_S:
            known = _Bias(log_ratio, 0, now)
            self._biases = {item: bias for item, bias in self._biases.items() if now - bias.at <= _RATIO_HOLDS_S}
        elif known.ticks >= _FEW_SAMPLES:
            surprise = log_ratio - known.log_ratio
            self._noise = float(np.sqrt(0.8 * self._noise**2 + 0.2 * min(abs(surprise), 0.3) ** 2))
        known.ticks += 1
        known.log_ratio += max(0.3, 1.0 / known.ticks) * (log_ratio - known.log_ratio)
        known.at = now
        self._biases[kind] = known

    def _last_change(self, name: str, rows: int) -> Vector:
        found = self._changed_at.get(name)
        if found is None or len(found) != rows:
            found = self._changed_at[name] = np.full(rows, self._since)
        return found


def _why_held(
    in_use: NDArray[np.bool_], is_paused: NDArray[np.bool_], waits: NDArray[np.bool_], gains_little: NDArray[np.bool_]
) -> Reason:
    """Say why a proposal is not taken whole in the rows that are in use."""
    if (in_use & is_paused).any():
        return Reason.BACK_OFF
    if (in_use & waits).any():
        return Reason.DWELL
    return Reason.MINIMUM_GAIN if (in_use & gains_little).any() else Reason.OPTIMAL


def _error(samples: Sequence[float]) -> float:
    """How far the mean of `samples`, two or more, may lie from the truth by chance."""
    count = len(samples)
    return float(_T_95[min(count, len(_T_95)) - 1] * np.std(samples, ddof=1) / np.sqrt(count))

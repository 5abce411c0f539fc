"""The present load: which classes run, how many decodes at a time, and what a schedule yields at that.

The class mix is what the next seconds will meet, as far as one can tell: the share of each class in the drafts of a
look, averaged over the looks of the last `mix_time_s`, which is long enough to even out that few requests at a time are
now of one class, now of another. Each second counts alike: a crowd that has left must not outvote the few who came.
When traffic changes, the drafts still speak of what was, but the requests that run at this moment do not: where chance
does not explain how they differ from the mix before (by the likelihood ratio, the G-test), they are the mix from then
on; few requests are believed when two looks agree. The decodes are those of the last look's decode-only steps, with the
share of steps that each number had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from controller.decide import Cost, Demand, Matrix, Vector, Yield, evaluate
from controller.observation import Evidence
from controller.rows import row_of
from policy.types import Objective

PRESENT_SHARE = 0.005
_PRESENT_DECODES = 0.1
_SURPRISE = 6.0  # of the G statistic, beyond one for each class: a false alarm in some hundred looks
_RAREST = 0.05  # what is not in the mix may come all the same
_ALONE = 1.5


@dataclass(slots=True)
class Load:
    """Who ran lately (`mix`, together 1). `points` are running decodes, `weights` their shares of the steps.

    `before` is what the newest look was compared with: the mix before it, and who ran at its end.
    """

    mix: dict[str, float] = field(default_factory=dict)
    before: tuple[Mapping[str, float], Mapping[str, float]] = ({}, {})
    points: Vector = field(default_factory=lambda: np.ones(1))
    weights: Vector = field(default_factory=lambda: np.ones(1))

    def take(self, evidence: Evidence, elapsed_s: float, mix_time_s: float) -> None:
        """Take in what ran in the last `elapsed_s` seconds."""
        drafts = evidence.class_drafts
        if drafts:
            mix, running = self.mix, evidence.running
            mix_before, ran = self.before
            self.before = mix, running
            keep = float(np.exp(-elapsed_s / mix_time_s)) if mix else 0.0
            seen = (1.0 - keep) / sum(drafts.values())
            self.mix = {name: keep * mix.get(name, 0.0) + seen * drafts.get(name, 0.0) for name in {*mix, *drafts}}
            both = {name: running.get(name, 0.0) + ran.get(name, 0.0) for name in {*running, *ran}}
            if _is_surprising(running, mix or self.mix):
                self.mix = _shares(running)
            elif _is_surprising(both, mix_before):
                self.mix = _shares(both)
        if evidence.cells:
            sums = evidence.cells.values()
            self.points = np.array([max(1.0, item.decodes / item.steps) for item in sums])
            self.weights = np.array([item.steps for item in sums]) / evidence.steps

    @property
    def decodes(self) -> float:
        """Mean running decodes of a step."""
        return float((self.points * self.weights).sum())

    def shares(self) -> dict[str, float]:
        """Return the share of each class that is present, together 1.

        A class that would be found in less than one step out of ten is not.
        """
        least = max(PRESENT_SHARE, _PRESENT_DECODES / max(self.decodes, 1.0))
        present = {name: share for name, share in self.mix.items() if share >= least}
        whole = sum(present.values())
        return {name: share / whole for name, share in present.items()}


def _shares(counts: Mapping[str, float]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def _is_surprising(running: Mapping[str, float], mix: Mapping[str, float]) -> bool:
    """Whether chance does not explain how so many requests differ from the mix; `False` while there is none."""
    total = sum(running.values())
    if not total or not mix:
        return False
    g = 0.0
    for name, count in running.items():
        if count:
            g += 2.0 * count * float(np.log(count / (total * max(mix.get(name, 0.0), _RAREST))))
    return g > _SURPRISE + len({*mix, *running})


@dataclass(frozen=True, slots=True)
class Operation:
    """The present load with all that is needed to evaluate schedules at it.

    `columns` are the columns of `demands` in the schedules' matrices, `rows` the row that serves each of `points`.
    """

    demands: Sequence[Demand]
    columns: Sequence[int]
    points: Vector
    weights: Vector
    rows: NDArray[np.int64]
    cost: Cost
    objective: Objective

    @classmethod
    def at(cls, load: Load, n: Vector, demands: Mapping[int, Demand], cost: Cost, objective: Objective) -> "Operation":
        """Return the operation of `demands`, by column, under `load`, on the grid `n`."""
        rows = np.array([row_of(n, decodes) for decodes in load.points], dtype=np.int64)
        return cls(list(demands.values()), list(demands), load.points, load.weights, rows, cost, objective)

    def here(self, k: Matrix) -> Matrix:
        """Return the part of a schedule [rows, all classes] that serves the load: [points, present classes]."""
        part: Matrix = k[self.rows][:, list(self.columns)]
        return part

    def activity(self, rows: int) -> Vector:
        """Return the share of steps that each of the schedule's rows serves."""
        active = np.zeros(rows)
        np.add.at(active, self.rows, self.weights)
        return active

    def goodput(self, k: Matrix) -> float:
        """Predicted weighted tokens per second under the schedule `k`."""
        found = self._yield(k)
        return float((self.weights * found.goodput * found.step_s).sum() / (self.weights * found.step_s).sum())

    def step_s(self, k: Matrix) -> float:
        """Predicted mean seconds of a step under `k`."""
        return float((self.weights * self._yield(k).step_s).sum())

    def measured(self, evidence: Evidence, left_s: float) -> float | None:
        """Measured weighted tokens per second of decode-only steps; `None` without such steps.

        `left_s` are the seconds that steps at K = 0 leave behind: they count where they are caused, not when spent.
        Tokens per draft come from all steps, decodes per second from decode-only ones: prefills do not disturb it.
        """
        drafts = evidence.class_drafts
        total = sum(drafts.get(demand.name, 0.0) for demand in self.demands)
        decodes = sum(item.decodes for item in evidence.cells.values())
        if not total or not decodes:
            return None
        tokens = sum(demand.weight * evidence.decode_tokens.get(demand.name, 0.0) for demand in self.demands)
        return tokens / total * decodes / (evidence.step_seconds + left_s)

    def _yield(self, k: Matrix) -> Yield:
        """What `k` does at each point; where one request runs at a time its class is alone in the step."""
        here = self.here(k)
        found = evaluate(self.demands, self.points, here, self.cost, self.objective)
        alone = self.points < _ALONE
        if len(self.demands) == 1 or not alone.any():
            return found
        goodput, step_s = found.goodput.copy(), found.step_s.copy()
        tokens = np.zeros(int(alone.sum()))
        step_s[alone] = 0.0
        for at, item in enumerate(self.demands):
            single = [replace(item, share=1.0)]
            part = evaluate(single, self.points[alone], here[alone][:, [at]], self.cost, self.objective)
            step_s[alone] += item.share * part.step_s
            tokens += item.share * part.goodput * part.step_s
        goodput[alone] = tokens / step_s[alone]
        return Yield(goodput, step_s, found.score)

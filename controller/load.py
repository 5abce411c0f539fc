"""The present load: which classes run, how many decodes at a time, and what a schedule yields at that.

The class mix is what the next seconds will meet, as far as one can tell: the share of each class in the drafts, fading
with `mix_time_s`, which is long enough to even out that few requests at a time are now of one class, now of another.
When traffic changes, the drafts still speak of what was, but the requests that run at this moment do not: where chance
does not explain how they differ from the mix (by the likelihood ratio, the G-test), they are the mix from then on. The
decodes are those of the last look's decode-only steps, with the share of steps that each number had.
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
    """Who ran lately, and who runs now. `points` are running decodes, `weights` their shares of the steps."""

    mix: dict[str, float] = field(default_factory=dict)
    running: Mapping[str, float] = field(default_factory=dict)
    points: Vector = field(default_factory=lambda: np.ones(1))
    weights: Vector = field(default_factory=lambda: np.ones(1))

    def take(self, evidence: Evidence, elapsed_s: float, mix_time_s: float) -> None:
        """Take in what ran in the last `elapsed_s` seconds."""
        drafts = evidence.class_drafts
        self.running = evidence.running
        if drafts:
            keep = float(np.exp(-elapsed_s / mix_time_s))
            self.mix = {name: self.mix.get(name, 0.0) * keep + drafts.get(name, 0.0) for name in {*self.mix, *drafts}}
            running = sum(self.running.values())
            if running and self._is_surprising(running):
                scale = sum(drafts.values()) / running
                self.mix = {name: count * scale for name, count in self.running.items()}
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
        drafted = sum(self.mix.values())
        shares = {name: count / drafted for name, count in self.mix.items()} if drafted else {}
        least = max(PRESENT_SHARE, _PRESENT_DECODES / max(self.decodes, 1.0))
        present = {name: share for name, share in shares.items() if share >= least}
        whole = sum(present.values())
        return {name: share / whole for name, share in present.items()}

    def _is_surprising(self, running: float) -> bool:
        """Whether chance does not explain how the `running` requests of this moment differ from the mix."""
        drafted = sum(self.mix.values())
        g = 0.0
        for name, count in self.running.items():
            if count:
                expected = running * max(self.mix.get(name, 0.0) / drafted, _RAREST)
                g += 2.0 * count * float(np.log(count / expected))
        return g > _SURPRISE + len({*self.mix, *self.running})


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

"""What K = 0 leaves behind: seconds that the drafter later spends on a token decoded without it.

At K = 0 the drafter does not run, and each decode leaves a row that the drafter must see before it next drafts for that
request. A request that ends before leaves it for nothing. So a decode at K = 0 costs on average

    c = (seconds per caught-up row) * (caught-up rows / rows left)
      = (seconds of steps that caught up - what such steps take without) / decodes at width 0        seconds

and both sums are in the engines' counters. Without catching up such a step would take T(n, n, 1), its drafter running
for the last token only. Both sums fade alike, with the time spent at width 0 (`cost_half_life_s`), so that a pool which
leaves K = 0 remembers what it cost. The drafter never takes longer for many rows at once than for a few in each step:
where c is used it is bounded by that (`StepCost.left_s`).
"""

from controller.cost import StepCost
from controller.observation import Evidence
from controller.tuning import Tuning


class CatchUp:
    """What is remembered of one pool's rows that were left and caught up."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._rows = 0.0
        self._seconds = 0.0

    @property
    def row_s(self) -> float:
        """Seconds that a decode at K = 0 leaves to be caught up, on average; 0 until the first one was."""
        return max(0.0, self._seconds) / self._rows if self._rows else 0.0

    def learn(self, evidence: Evidence, decodes: float, cost: StepCost) -> None:
        """Take in one look, in which `decodes` requests ran on average and steps cost `cost`."""
        left = [sums for cell, sums in evidence.cells.items() if cell.width == 0]
        kept = 0.5 ** (sum(sums.seconds for sums in left) / self._tuning.cost_half_life_s)
        usual_s = evidence.catch_up_steps * float(cost.step_s(decodes, decodes, 1.0))
        self._rows = self._rows * kept + sum(sums.decodes for sums in left)
        self._seconds = self._seconds * kept + evidence.catch_up_seconds - usual_s

"""What K = 0 leaves behind: seconds that the drafter later spends on a token decoded without it.

At K = 0 the drafter does not run, and each decode leaves a row that the drafter must see before it next drafts for that
request. A request that ends before leaves it for nothing; the rows of long replies are caught up while K is still 0,
when there is no room for more. So while K is 0, a decode costs on average

    c = sum over steps of width 0 that caught up of C (see `step_cost`) / decodes at width 0        seconds

of which the engines count everything but C. Both sums fade alike, with the time spent at width 0 (`cost_half_life_s`),
so that a pool which leaves K = 0 remembers what it cost. The drafter never takes longer for many rows at once than for
a few in each step: where c is used it is bounded by that (`StepCost.left_s`).

What is caught up when K rises is no cost of a decode at K = 0 but one of the change, of some hundredths of a second. To
charge it would make K = 0 look dear for ever where it was only tried for a moment.
"""

from controller.observation import Evidence
from controller.step_cost import StepCost
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
        return self._seconds / self._rows if self._rows else 0.0

    def learn(self, evidence: Evidence, cost: StepCost) -> None:
        """Take in one look, in which steps cost `cost`."""
        left = [sums for cell, sums in evidence.cells.items() if cell.width == 0]
        caught_up = [sums for cell, sums in evidence.catch_ups.items() if cell.width == 0]
        left += caught_up
        kept = 0.5 ** (sum(sums.seconds for sums in left) / self._tuning.cost_half_life_s)
        self._rows = self._rows * kept + sum(sums.decodes for sums in left)
        self._seconds = self._seconds * kept + sum(
            sums.steps * cost.reading_s(sums.read / sums.steps) for sums in caught_up
        )

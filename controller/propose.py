"""Sets up the choice for a pool and puts its outcome into proposals that the guard can take or leave.

Classes with traffic are chosen for together, row by row; at one running decode each class for itself, as it is alone
then. A class without traffic gets, for every n, the K that is best where it runs alone, so that its first requests do
not meet a K chosen for others; a class that was never seen has its model's mean acceptance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from controller.decide import Cost, Demand, Matrix, Vector, choose, evaluate
from controller.estimate import Acceptance
from controller.facts import Facts
from controller.guard import Proposal
from policy.types import Objective

_NOTHING = 1e-9


def demand(facts: Facts, name: str, share: float, found: Acceptance) -> Demand:
    """Return class `name` as the choice sees it."""
    wanted = facts.policy.of_class(name)
    low, high = facts.bounds(name)
    slo_s = None if wanted.itl_slo_ms is None else wanted.itl_slo_ms / 1000
    return Demand(name, share, found.survival, wanted.weight, low, high, slo_s)


@dataclass(frozen=True, slots=True)
class Problem:
    """What to choose for: the grid `n`, the schedule `before` [rows, all classes], cost and objective."""

    n: Vector
    before: Matrix
    cost: Cost
    objective: Objective

    def best(self, demands: Sequence[Demand]) -> Matrix:
        """Return the best K [rows, demands]."""
        return choose(demands, self.n, self.cost, self.objective)

    def gain(self, demands: Sequence[Demand], new: Matrix, old: Matrix) -> Vector:
        """Relative gain of `new` over `old`, by row; leaving or easing a broken SLO counts as a whole one."""
        after = evaluate(demands, self.n, new, self.cost, self.objective).score
        now = evaluate(demands, self.n, old, self.cost, self.objective).score
        eased = np.where(after > now + _NOTHING, 1.0, 0.0)
        found: Vector = np.where(now > 0, after / np.where(now > 0, now, 1.0) - 1, eased)
        return found


def proposals(present: Mapping[int, Demand], absent: Mapping[int, Demand], problem: Problem) -> list[Proposal]:
    """Return what would be better than `problem.before`; the mappings go by column."""
    every = np.ones(len(problem.n), dtype=np.bool_)
    mixed = problem.n > 1 if len(present) > 1 else every
    found = [_proposal(present, problem, mixed)]
    if len(present) > 1:
        found += [_alone(column, item, problem, ~mixed) for column, item in present.items()]
    found += [replace(_alone(column, item, problem, every), is_present=False) for column, item in absent.items()]
    return found


def wanted(found: Sequence[Proposal], before: Matrix) -> Matrix:
    """Return the schedule with every proposal taken."""
    k = before.copy()
    for proposal in found:
        for column in proposal.columns:
            k[proposal.rows, column] = proposal.k[proposal.rows, column]
    return k


def _alone(column: int, item: Demand, problem: Problem, rows: NDArray[np.bool_]) -> Proposal:
    return _proposal({column: replace(item, share=1.0)}, problem, rows)


def _proposal(demands: Mapping[int, Demand], problem: Problem, rows: NDArray[np.bool_]) -> Proposal:
    columns = list(demands)
    best = problem.best(list(demands.values()))
    k = problem.before.copy()
    k[:, columns] = best
    gain = problem.gain(list(demands.values()), best, problem.before[:, columns])
    return Proposal(tuple(columns), rows, k, gain)

"""How much probing is affordable.

An engine probes in whole steps: in a share p of its steps every draft is verified to K_max, because one deeper draft
widens the drafter for the whole batch anyway. Such a step takes longer and delivers what is accepted of the extra
tokens:

    loss(p) = 1 - G(p) / G(0),    G(p) = ((1 - p) R + p R') / ((1 - p) T + p T')        tokens/s

with R, T the tokens and seconds of a step under the schedule and R', T' those at K_max. The loss grows with p
wherever K_max is not the better choice; loss(p) = limit is linear in p and gives the largest affordable share.
Where K is 0 for all, the drafter does not run otherwise, and a probe runs it three times: for what those who are probed
have to catch up with, for the drafts, and over what was verified. So T' has two drafter runs of width 1 more there. It
finds out less, as not all are probed, and nothing else shows what drafting would bring: so the limit is another one
there (`probe_off_loss_ratio`).
"""

import numpy as np

from controller.decide import Matrix, evaluate
from controller.load import Operation
from controller.tuning import Tuning
from policy.types import Objective


def affordable_ratio(operation: Operation, k: Matrix, *, k_max: int, wanted_ratio: float, tuning: Tuning) -> float:
    """Return the largest share of probe steps, at most `wanted_ratio`, whose loss is within the limits of `tuning`.

    `k` is the schedule [rows, all classes]; the loss at the present load counts.
    """
    if wanted_ratio <= 0 or k_max <= 0:
        return 0.0
    here = operation.here(k)
    demands, weights, cost = operation.demands, operation.weights, operation.cost
    plain = evaluate(demands, operation.points, here, cost, Objective.GOODPUT)
    deep = evaluate(demands, operation.points, np.full_like(here, k_max), cost, Objective.GOODPUT)
    points, is_off = operation.points, here.max(axis=1) == 0
    drafter_s = np.where(is_off, cost.step_s(points, points, 1.0) - cost.step_s(points, points, 0.0), 0.0)
    seconds, deep_seconds = float(weights @ plain.step_s), float(weights @ (deep.step_s + 2 * drafter_s))
    tokens = float(weights @ (plain.goodput * plain.step_s))
    deep_tokens = float(weights @ (deep.goodput * deep.step_s))
    limits = np.where(is_off, tuning.probe_off_loss_ratio, tuning.probe_loss_ratio)
    limit = float(np.average(limits, weights=weights))
    # (1-p) R + p R' = (1-limit) (R/T) [(1-p) T + p T']  is linear in p.
    kept = (1.0 - limit) * tokens / seconds
    slope = (deep_tokens - tokens) - kept * (deep_seconds - seconds)
    if slope >= 0:
        return wanted_ratio
    return float(min(wanted_ratio, (tokens - kept * seconds) / -slope))

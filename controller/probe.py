"""How much probing is affordable.

An engine probes in whole steps: in a share p of its steps every draft is verified to K_max, because one deeper draft
widens the drafter for the whole batch anyway. Such a step takes longer and delivers what is accepted of the extra
tokens:

    loss(p) = 1 - G(p) / G(0),    G(p) = ((1 - p) R + p R') / ((1 - p) T + p T')        tokens/s

with R, T the tokens and seconds of a step under the schedule and R', T' those at K_max. The loss grows with p
wherever K_max is not the better choice; loss(p) = limit is linear in p and gives the largest affordable share.
Where K is 0 for all a probe is two steps: in one the drafter catches up with those who are probed and drafts, in the
next their drafts are verified and read. What both took longer than others, and how many were probed, the engines count
(`PoolCost.probe_at_off`); until they did, T' has two drafter runs of width 1 more, and all are taken to be probed. It
finds out less for more there, and nothing else shows what drafting would bring: so the limit is another one
(`probe_off_loss_ratio`).
"""

import numpy as np

from controller.decide import Matrix, evaluate
from controller.load import Operation
from controller.pool_cost import ProbeCost
from controller.tuning import Tuning
from policy.types import Objective


def affordable_ratio(  # noqa: PLR0913 - what is probed, how much is wanted, and what is known of its price
    operation: Operation,
    k: Matrix,
    *,
    k_max: int,
    wanted_ratio: float,
    at_off: ProbeCost | None,
    tuning: Tuning,
) -> float:
    """Return the largest share of probe steps, at most `wanted_ratio`, whose loss is within the limits of `tuning`.

    `k` is the schedule [rows, all classes]; the loss at the present load counts. `at_off` is what a probe costs where K
    is 0 for all, `None` while nobody knows.
    """
    if wanted_ratio <= 0 or k_max <= 0:
        return 0.0
    here = operation.here(k)
    demands, weights, cost = operation.demands, operation.weights, operation.cost
    points, is_off = operation.points, here.max(axis=1) == 0
    plain = evaluate(demands, points, here, cost, Objective.GOODPUT)
    deep = evaluate(demands, points, np.full_like(here, k_max), cost, Objective.GOODPUT)
    plain_tokens, deep_tokens = plain.goodput * plain.step_s, deep.goodput * deep.step_s
    if at_off is None:
        off_s = deep.step_s + 2 * (cost.step_s(points, points, 1.0) - cost.step_s(points, points, 0.0))
        off_tokens = deep_tokens
    else:
        off_s = plain.step_s + at_off.extra_s
        off_tokens = plain_tokens + np.minimum(at_off.probed / points, 1.0) * (deep_tokens - plain_tokens)
    seconds, tokens = float(weights @ plain.step_s), float(weights @ plain_tokens)
    probe_s = float(weights @ np.where(is_off, off_s, deep.step_s))
    probe_tokens = float(weights @ np.where(is_off, off_tokens, deep_tokens))
    limits = np.where(is_off, tuning.probe_off_loss_ratio, tuning.probe_loss_ratio)
    limit = float(np.average(limits, weights=weights))
    # (1-p) R + p R' = (1-limit) (R/T) [(1-p) T + p T']  is linear in p.
    kept = (1.0 - limit) * tokens / seconds
    slope = (probe_tokens - tokens) - kept * (probe_s - seconds)
    if slope >= 0:
        return wanted_ratio
    return float(min(wanted_ratio, (tokens - kept * seconds) / -slope))

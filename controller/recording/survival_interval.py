"""The confidence interval of a band's survival at each position.

With a_j the conditional acceptance and n_j the trials at position j, the variance of ln S_i is, by Greenwood (1926),

    sum over j <= i of (1 - a_j) / (a_j n_j)

and the bounds are taken on the scale ln(-ln S), on which they stay within 0 and 1 (Kalbfleisch and Prentice 1980).
"""

import math
from collections.abc import Mapping
from typing import Any

_QUANTILE = 1.645
"""Quantile of the normal distribution with 5 % in each tail."""


def with_intervals(bands: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return `bands` of a decision's evidence with `survival_low` and `survival_high`, a 90 % interval by position.

    A bound is `None` from the first position without a trial on: there the survival is the prior's.
    """
    return {name: {**facts, **_bounds(facts)} for name, facts in bands.items()}


def _bounds(facts: Mapping[str, Any]) -> dict[str, list[float | None]]:
    low: list[float | None] = []
    high: list[float | None] = []
    log_survival, variance, is_tried = 0.0, 0.0, True
    for acceptance, trials in zip(facts.get("acceptance", ()), facts.get("trials", ()), strict=False):
        is_tried &= trials >= 1 and 0 < acceptance < 1
        if not is_tried:
            low.append(None)
            high.append(None)
            continue
        log_survival += math.log(acceptance)
        variance += (1 - acceptance) / (acceptance * trials)
        spread = math.exp(min(_QUANTILE * math.sqrt(variance) / -log_survival, 50.0))
        low.append(math.exp(log_survival * spread))
        high.append(math.exp(log_survival / spread))
    return {"survival_low": low, "survival_high": high}

"""Reads the prices of an engine's steps and its slowdown factor from its page of metrics. Pure.

The engine fits them to its own steps (`engine_adapter.law`); CUDA graphs and the largest load come from its record.
"""

from collections.abc import Mapping

from specpilot.controller.estimation.observation import Series
from specpilot.policy import engine_metrics as names
from specpilot.policy.prices import KNOTS, PARTS, Coefficients, PriceList, StepExtras

_PARTS = [Series(names.PRICE_SECONDS, (part,)) for part in PARTS]
_SLOPES = [Series(names.TOKEN_PRICE_SECONDS, (f"{knot:g}",)) for knot in KNOTS]
_EXTRAS = [Series(name, ()) for name in (names.PREFILL_STEP_RATIO, names.PREFILL_STEP_TOKENS, names.CONTEXT_TOKENS)]
_LEFT, _SLOWDOWN = Series(names.LEFT_OUT_SECONDS, ()), Series(names.SLOWDOWN_RATIO, ())


def price_list_of(values: Mapping[Series, float]) -> PriceList | None:
    """Return the price list in an engine's `values`; `None` if any of it is missing: nothing has been fitted yet."""
    try:
        parts, slopes, extras = (tuple(values[series] for series in group) for group in (_PARTS, _SLOPES, _EXTRAS))
        return PriceList(Coefficients(parts, slopes), StepExtras(*extras), values[_LEFT], values[_SLOWDOWN])
    except KeyError:
        return None

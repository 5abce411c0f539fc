"""What an engine's law chooses K by, from its page of metrics: the prices of its steps, and its slowdown factor. Pure.

The engine fits them to its own steps (`engine_adapter.law`); CUDA graphs and the largest load are in its record.
"""

from collections.abc import Mapping
from typing import NamedTuple

from specpilot.controller.estimation.observation import Series
from specpilot.policy import engine_metrics as names
from specpilot.policy.prices import KNOTS, PARTS, Coefficients, Load, PriceList, Prices
from specpilot.policy.types import EngineRecord

_PARTS = [Series(names.PRICE_SECONDS, (part,)) for part in PARTS]
_SLOPES = [Series(names.TOKEN_PRICE_SECONDS, (f"{knot:g}",)) for knot in KNOTS]
_LOAD = [Series(name, ()) for name in (names.PREFILL_STEP_RATIO, names.PREFILL_STEP_TOKENS, names.CONTEXT_TOKENS)]
_LEFT, _SLOWDOWN = Series(names.LEFT_OUT_SECONDS, ()), Series(names.SLOWDOWN_RATIO, ())


class EnginePrices(NamedTuple):
    """The prices of an engine's steps, and how many times as long its steps take now."""

    prices: Prices
    slowdown: float


def price_list_of(values: Mapping[Series, float]) -> PriceList | None:
    """Return what an engine's `values` say of its steps; `None` if any of it is missing: nothing was fitted yet."""
    try:
        parts, slopes, load = (tuple(values[series] for series in group) for group in (_PARTS, _SLOPES, _LOAD))
        return PriceList(Coefficients(parts, slopes), Load(*load), values[_LEFT], values[_SLOWDOWN])
    except KeyError:
        return None


def prices_of(values: Mapping[Series, float], engine: EngineRecord) -> EnginePrices | None:
    """Return the prices that an engine with this record exports among its `values`; `None` if it exports none."""
    found = price_list_of(values)
    if found is None:
        return None
    return EnginePrices(found.prices(engine.max_num_seqs * (1 + engine.k_max), engine.graphs), found.slowdown)

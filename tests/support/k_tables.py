"""Tables of K, as short as a test can say them."""

from collections.abc import Sequence

from specpilot.engine_adapter.plan.speculation_control import KTable, Source
from specpilot.policy.bands import BANDS


def table(probe_ratio: float = 0.0, **k: int | Sequence[int]) -> KTable:
    """K by class: one for all bands, or one for each band, of a class that is probed."""
    rows = {name: (value,) * BANDS if isinstance(value, int) else tuple(value) for name, value in k.items()}
    assert all(len(row) == BANDS for row in rows.values())
    probed = {name: max(1, *value) for name, value in k.items() if not isinstance(value, int)}
    return KTable(Source.FIXED, rows, probe_ratio, probed)

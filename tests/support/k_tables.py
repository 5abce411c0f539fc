"""Tables of K, as short as a test can say them."""

from collections.abc import Sequence

from specpilot.engine_adapter.plan.speculation_control import KTable, Source
from specpilot.policy.bands import BANDS


def table(probe_ratio: float = 0.0, **k: int | Sequence[int]) -> KTable:
    """K by class whatever the load: one for all bands, or one for each band."""
    by_band = {name: [value] * BANDS if isinstance(value, int) else list(value) for name, value in k.items()}
    rows = {name: tuple((value,) for value in values) for name, values in by_band.items()}
    assert all(len(row) == BANDS for row in rows.values())
    probed = {name: max(1, *value) for name, value in k.items() if not isinstance(value, int)}
    return KTable(Source.SCHEDULE, rows, probe_ratio, probed)


def by_load(*k: int) -> KTable:
    """K of everybody by running decodes, from 1."""
    return KTable(Source.SCHEDULE, {"default": (k,) * BANDS}, 0.0)

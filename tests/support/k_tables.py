"""Tables of K, as short as a test can say them."""

from collections.abc import Mapping, Sequence
from typing import Any

from specpilot.engine_adapter.plan.draft_state import DraftState
from specpilot.engine_adapter.plan.speculation_control import KTable, Source, fixed_table
from specpilot.policy.bands import BANDS


class BandLaw:
    """A law of a given K: `rows[class][band]`."""

    def __init__(self, rows: Mapping[str, Sequence[int]]) -> None:
        assert all(len(row) == BANDS for row in rows.values())
        self.rows = rows

    def k_of(self, states: Sequence[DraftState]) -> list[int]:
        return [self.rows.get(state.label, self.rows["default"])[state.acceptance.band] for state in states]

    def note_plan(self, *_: int) -> None:
        pass


def k_of(in_force: KTable, traffic_class: str, band: int) -> int:
    """Return K of a request by a table of this module."""
    law = in_force.law
    return law.rows[traffic_class][band] if isinstance(law, BandLaw) else in_force.k(traffic_class)


def table(probe_ratio: float = 0.0, **k: int | Sequence[int]) -> KTable:
    """K by class: one for all bands, or one for each band, of a class that is probed; then by a law."""
    fixed = {name: value for name, value in k.items() if isinstance(value, int)}
    if len(fixed) == len(k):
        return fixed_table(fixed)
    law: Any = BandLaw({name: (value,) * BANDS if isinstance(value, int) else value for name, value in k.items()})
    probed = {name: max(1, *value) for name, value in k.items() if not isinstance(value, int)}
    return KTable(Source.LAW, dict.fromkeys(k, 0), probe_ratio, probed, law)

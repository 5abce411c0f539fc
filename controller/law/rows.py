"""The rows of a schedule, and the classes and bands that each serves.

Acceptance belongs to the band, so the rows of `default` (`default:0` to `default:7`) serve every class with the same
requirements as `default`. A class with another weight, bound or SLO has rows by band of its own. A class with a fixed K
has a single row without a band, because it is not probed. The row `default` always exists; with bands it serves no
request.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specpilot.controller.estimation.step_cost import StepCost
from specpilot.controller.law.choice import Group, Setting, Stream
from specpilot.controller.law.context import PoolContext
from specpilot.controller.law.load import Load
from specpilot.controller.tuning import Tuning
from specpilot.policy.bands import BANDS, row_name, row_of, row_parts
from specpilot.policy.types import DEFAULT_CLASS, Objective

Vector = NDArray[np.float64]
Ints = NDArray[np.int64]
_SLO_PART = 0.01


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one pool's schedules: names, bounds of K, and the band of each (-1: all bands)."""

    names: tuple[str, ...]
    low: Ints
    high: Ints
    bands: Ints

    @classmethod
    def of(cls, context: PoolContext) -> "Rows":
        """Return the rows that the policy of `context` needs."""
        names: list[str] = []
        of_default = requirements(context, DEFAULT_CLASS)
        for name in context.policy.class_names:
            required = requirements(context, name)
            if name != DEFAULT_CLASS and required == of_default:
                continue
            low, high = required[:2]
            is_banded = low != high
            names += [name] if name == DEFAULT_CLASS or not is_banded else []
            names += [row_name(name, band) for band in range(BANDS)] if is_banded else []
        parts = [row_parts(name) for name in names]
        low, high = np.array([context.bounds(name) for name, _ in parts], dtype=np.int64).T
        bands = np.array([-1 if band is None else band for _, band in parts], dtype=np.int64)
        return cls(tuple(names), low, high, bands)

    def setting(self, context: PoolContext, load: Load, lengths: Vector, cost: StepCost, tuning: Tuning) -> Setting:
        """Return the inputs of a choice for the present `load`, which is not empty."""
        places = {name: index for index, name in enumerate(self.names)}
        policy, is_latency = context.policy, context.policy.objective is Objective.LATENCY
        known = set(policy.class_names)
        mix: dict[tuple[str, int], float] = {}
        running: dict[str, float] = {}
        for (name, band), part in load.mix.items():
            owner = name if name in known else DEFAULT_CLASS
            mix[owner, band] = mix.get((owner, band), 0.0) + part
            running[owner] = running.get(owner, 0.0) + load.running.get((name, band), 0.0)
        group_of: dict[str, str | float] = {}
        groups: dict[str | float, Group] = {}
        for name in sorted(running):
            weight = policy.of_class(name).weight
            key = group_of[name] = name if is_latency else weight
            others = groups[key].share if key in groups else 0.0
            groups[key] = Group(others + running[name], weight)
        places_of = {key: index for index, key in enumerate(groups)}
        parts = {name: sum(part for (owner, _), part in mix.items() if owner == name) for name in running}
        streams = []
        for (name, band), part in mix.items():
            slo_ms = policy.of_class(name).itl_slo_ms
            streams.append(
                Stream(
                    row=row_of(places, name, band),
                    band=min(band, BANDS - 1),
                    group=places_of[group_of[name]],
                    part=part,
                    itl_slo_s=slo_ms / 1000 if slo_ms is not None and part / parts[name] >= _SLO_PART else None,
                )
            )
        return Setting(
            streams=_merged(streams),
            groups=list(groups.values()),
            lengths=lengths,
            low=self.low,
            high=self.high,
            bands=self.bands,
            cost=cost,
            answer_ratio=tuning.answer_ratio,
            objective=policy.objective,
            prefill=load.prefill,
            context_tokens=load.context_tokens,
        )


def _merged(streams: list[Stream]) -> list[Stream]:
    """Return the streams, with those merged that differ only in their part of the mix."""
    found: dict[tuple[int, int, int, float | None], float] = {}
    for item in streams:
        key = (item.row, item.band, item.group, item.itl_slo_s)
        found[key] = found.get(key, 0.0) + item.part
    return [Stream(row, band, group, part, slo) for (row, band, group, slo), part in found.items()]


def requirements(context: PoolContext, name: str) -> tuple[int, int, float, float | None]:
    """Return what the policy requires for class `name`: the smallest and largest K, its weight, its SLO (ms)."""
    wanted = context.policy.of_class(name)
    return (*context.bounds(name), wanted.weight, wanted.itl_slo_ms)

"""The CUDA graphs that an engine has, as it reports them to the controller: which sizes, for which steps.

A step is padded to the next size that was captured for its kind, and has no graph beyond the largest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Graphs:
    """Sizes of graphs in tokens, ascending.

    `mode` is `FULL` if every step of the target replays one FULL graph, prompts and any mix of K included. Else it is
    vLLM's `cudagraph_mode` as the engine resolved it. `mixed` are the sizes for any step of the target: FULL graphs if
    `mode` is `FULL`, else piecewise ones. `uniform` are the FULL graphs for steps in which every request has as many
    positions, by that number (1 + K). `drafter` are those of a drafter that lays out all its slots in one pass,
    piecewise; empty for a sequential one, whose passes are small, and for one without graphs.
    """

    mode: str
    mixed: tuple[int, ...] = ()
    uniform: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    drafter: tuple[int, ...] = ()

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}

    @property
    def fit_any_mix(self) -> bool:
        """Whether one FULL graph is replayed for any mix of K and prompts, so that uniform steps gain nothing."""
        return self.mode == "FULL"

"""The CUDA graphs of an engine: their sizes, by kind of step.

A step is padded to the next captured size of its kind; above the largest size it has no graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from specpilot.policy.names import STRICT


@dataclass(frozen=True, slots=True)
class Graphs:
    """Sizes of graphs in tokens, ascending.

    `mode` is `FULL` if every step of the target replays one FULL graph, also with prompts and any mix of K. Otherwise
    it is vLLM's `cudagraph_mode` as the engine resolved it. `mixed` are the sizes for any step of the target: FULL
    graphs if `mode` is `FULL`, else piecewise ones. `uniform` are the FULL graphs for steps in which all requests have
    the same number of positions, by that number (1 + K). `varlen` are FULL graphs of variable length: for steps of
    decodes alone with any K of each request. A step for which `uniform` has a graph replays that graph. `drafter` are
    the graphs of a parallel drafter (piecewise on model runner V1, FULL on V2). It is empty for a sequential one, whose
    graphs are not recorded because its passes are small. `need_one_k`: attention has no fast way for decodes of
    different lengths, so the engine gives all decodes of a step one K.
    """

    mode: str
    mixed: tuple[int, ...] = ()
    uniform: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    drafter: tuple[int, ...] = ()
    varlen: tuple[int, ...] = ()
    need_one_k: bool = False

    __pydantic_config__: ClassVar = STRICT

    @property
    def fit_any_mix(self) -> bool:
        """Whether one FULL graph is replayed for any mix of K and prompts, so that uniform steps are not faster."""
        return self.mode == "FULL"

    @property
    def fit_any_k(self) -> bool:
        """Whether one FULL graph is replayed for any mix of K, at least in steps of decodes alone."""
        return self.fit_any_mix or bool(self.varlen)

"""Traces for the control law in virtual time: mixed, changing and disturbed traffic, on different machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specpilot.policy.model_policy import ClassPolicy, Policy
from tests.simulation.engine import MODEL
from tests.simulation.gpu_plants import plants
from tests.simulation.graph_plant import GRAPHS, graph_step_s
from tests.simulation.h200_plant import FULL, SLOW_HOST, H200Plant
from tests.simulation.h200_plant import graphs as h200_graphs
from tests.simulation.loop import Run, simulate
from tests.simulation.step_times import demo_pair_step_s
from tests.simulation.traffic import ACCEPTANCE, Phase, Source

_WANDER = 0.08
_PAUSED = 6.0


@dataclass(frozen=True, slots=True)
class SimulatedTrace:
    """Phases, and their machine: the other arguments of `simulate`."""

    phases: Sequence[Phase]
    options: Mapping[str, Any] = field(default_factory=dict)

    def play(self, seed: int, *, adapts: bool = False) -> Run:
        """Play it with a controller, or with engines that adapt by themselves."""
        return simulate(self.phases, seed=seed, adapts=adapts, **self.options)


def traces() -> dict[str, SimulatedTrace]:
    """Return the traces by name."""
    demo = {"step_s": demo_pair_step_s, "wander": _WANDER}
    plant = plants()["b200-30b-a3b-fp8"]
    gpu = {"step_s": plant.step_s, "catch_up_s": plant.catch_up_s, "max_num_seqs": 128}
    gpu |= {"noise": 0.01, "reply_tokens": 400.0}
    graphs = {"step_s": graph_step_s, "graphs": GRAPHS, "max_num_seqs": 256, "noise": 0.005, "reply_tokens": 600.0}
    h200 = {"max_num_seqs": 128, "noise": 0.005, "reply_tokens": 150.0}
    classes = {name: ClassPolicy() for name in ("json", "code", "chat")}
    full = {"plant": H200Plant(h200_graphs(FULL, largest=1024)), "graphs": h200_graphs(FULL, largest=1024)}
    return {
        "mixed": SimulatedTrace(_mixed(), demo),
        "short": SimulatedTrace(_short(), demo),
        # Predictable requests after others, each over before many probes.
        "short-replies": SimulatedTrace(_cold(), {**demo, "reply_tokens": 75.0, "max_num_seqs": 32}),
        # Classes that differ in nothing but how they draft.
        "labelled": SimulatedTrace(
            _labelled(), {**demo, "policy": Policy(MODEL, control_group_ratio=0.0, classes=classes)}
        ),
        "pauses": SimulatedTrace(_pauses(), demo),
        "pace": SimulatedTrace(_paces(), demo),
        "gpu": SimulatedTrace(_mixed(3)[:10], gpu),
        "graphs": SimulatedTrace(_cliffs(), graphs),
        "h200": SimulatedTrace(_h200(), {**h200, "plant": H200Plant(), "graphs": H200Plant().graphs}),
        "h200-full": SimulatedTrace(_h200(), {**h200, **full}),
        "uncalibrated": SimulatedTrace(_new(), {**demo, "is_calibrated": False}),
        "uncalibrated-graphs": SimulatedTrace(
            [Phase(40, [Source(0.5, 66)])], {**graphs, "is_calibrated": False, "static_k": 7}
        ),
    }


def _mixed(scale: int = 1) -> list[Phase]:
    def of(seconds: int, *counts: tuple[str, int], prompt_tokens: int = 16, slowdown: float = 1.0) -> Phase:
        sources = [Source(kind, count * scale, prompt_tokens=prompt_tokens) for kind, count in counts]
        return Phase(seconds, sources, slowdown=slowdown)

    turning = [Source("json", 4 * scale, turns_to="code"), Source("code", 4 * scale, turns_to="json")]
    given_work = Phase(15, [Source("json", 6), Source("chat", 6)], queue=12 * scale)
    return [
        of(20, ("json", 4), ("code", 12)),
        of(15, ("json", 8), ("code", 8)),
        of(15, *((kind, 3) for kind in ACCEPTANCE)),
        of(15, ("chat_hot", 16)),
        of(20, ("json", 2), ("chat_hot", 22)),
        of(15, ("json", 8)),
        Phase(15, turning),
        given_work,
        of(15, ("json", 4), ("code", 6), prompt_tokens=400),
        of(15, ("json", 1)),
        of(15, ("json_hot", 6), ("code", 10)),
        of(15, ("json", 16), ("chat", 8), slowdown=1.4),
        of(15, ("json", 8), ("code", 8), slowdown=1.2),
        of(15, ("code", 3)),
        of(15, ("json", 3), ("code", 9)),
    ]


def _short() -> list[Phase]:
    random, kinds = np.random.default_rng(7), list(ACCEPTANCE)
    return [
        Phase(6, [Source(str(kind), int(random.integers(1, 9))) for kind in random.choice(kinds, 3, replace=False)])
        for _ in range(30)
    ]


def _labelled() -> list[Phase]:
    def of(seconds: int, *counts: tuple[str, int], queue: int | None = None) -> Phase:
        return Phase(seconds, [Source(kind, count, kind) for kind, count in counts], queue)

    return [
        of(20, ("json", 4), ("code", 12)),
        of(20, ("json", 8), ("code", 8)),
        of(15, ("chat", 12), ("json", 3)),
        of(15, ("json", 6), ("chat", 6), queue=12),
        of(20, ("code", 24)),
        of(20, ("json", 16)),
    ]


def _cold() -> list[Phase]:
    loads = [
        [("chat_hot", 32)],
        [("json", 8), ("code", 8)],
        [("code", 32)],
        [("json", 2), ("chat_hot", 4)],
        [("code", 8)],
        [("json", 16), ("code", 16)],
    ]
    return [Phase(14, [Source(kind, count) for kind, count in counts]) for counts in loads]


def _pauses() -> list[Phase]:
    sources = [Source("json", 4), Source("code", 12)]
    return [
        *[Phase(6, sources), Phase(1, sources, slowdown=_PAUSED)] * 8,
        Phase(10, [Source("json", 8), Source("chat", 8)]),
    ]


def _paces() -> list[Phase]:
    loads = [
        [Source("json", 4), Source("code", 12)],
        [Source("chat", 16)],
        [Source("json", 8), Source("chat", 8)],
        [Source("code", 3)],
    ]
    episodes = [(9, 1.0), (6, 1.8), (7, 1.0), (4, 1.4), (10, 1.0), (5, 2.5), (8, 1.0), (6, 1.8)]
    return [Phase(seconds, sources, slowdown=pace) for sources in loads for seconds, pace in episodes]


def _cliffs() -> list[Phase]:
    steady = [(0.3, 2), (0.95, 64), (0.8, 37), (0.95, 66)]
    return [
        *(Phase(15, [Source(acceptance, running)]) for acceptance, running in steady),
        Phase(15, [Source("json", 20), Source("code", 20)]),
        Phase(15, [Source("chat", 40), Source("json", 10)]),
    ]


def _h200() -> list[Phase]:
    loads = [
        [("json", 8)],
        [("json", 24), ("code", 24)],
        [("chat_hot", 64)],
        [("code", 96)],
        [("json", 32)],
        [("json", 6), ("chat", 58)],
        [("json", 60), ("chat", 60)],
    ]
    phases = []
    for counts in loads:
        sources = [Source(kind, count) for kind, count in counts]
        phases += [Phase(8, sources), Phase(4, sources, host_slowdown=SLOW_HOST)]
    return phases


def _new() -> list[Phase]:
    return [
        Phase(20, [Source("json", 8), Source("code", 8)]),
        Phase(15, [Source("json", 20)]),
        Phase(15, [Source("code_hot", 24)]),
    ]

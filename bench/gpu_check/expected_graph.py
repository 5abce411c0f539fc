"""The graph that a step should use, by the engine's record of its graphs."""

from specpilot.policy.graphs import Graphs


def expected(graphs: Graphs, running: int, k: int) -> tuple[str, int]:
    """Return mode and padded tokens of a step with `running` requests of `k` drafts each."""
    tokens = running * (1 + k)
    for mode, sizes in (
        ("FULL", graphs.uniform.get(1 + k, ())),
        ("FULL", graphs.varlen),
        ("FULL" if graphs.mode == "FULL" else "PIECEWISE", graphs.mixed),
    ):
        fitting = [size for size in sizes if size >= tokens]
        if fitting:
            return mode, min(fitting)
    return "NONE", tokens

"""Which graph a step should find, by what the engine's record tells of its graphs."""

from specpilot.policy.graphs import Graphs


def expected(graphs: Graphs, running: int, k: int) -> tuple[str, int]:
    """Return mode and padded tokens of a step in which `running` requests have `k` drafts each."""
    tokens = running * (1 + k)
    for mode, sizes in (
        ("FULL", graphs.uniform.get(1 + k, ())),
        ("FULL" if graphs.mode == "FULL" else "PIECEWISE", graphs.mixed),
    ):
        fitting = [size for size in sizes if size >= tokens]
        if fitting:
            return mode, min(fitting)
    return "NONE", tokens

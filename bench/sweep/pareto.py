"""`specpilot bench pareto`: throughput over tokens per second and user, adaptive K beside each single K.

It is `specpilot bench sweep` with other defaults: mixed text, and loads from one request to many. `pareto.svg` has, for
each data set, a line for each arm, from few requests in flight (right) to many (left). A line above another one gives
more tokens per second at the same speed for each user.
"""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

from specpilot.bench.sweep import command


def _sweeps(name: str, default: object) -> Any:
    """Return a setting of the sweep, with another default."""
    field = copy(command.SweepSettings.model_fields[name])
    field.default = default
    return field


class ParetoSettings(command.SweepSettings):
    """Measure a sweep of mixed text from one request in flight to many, and draw it."""

    arms: str = _sweeps("arms", "none,p-eagle,adaptive")
    data: str = _sweeps("data", "mixed")
    concurrency: str = _sweeps("concurrency", "1,2,4,8,16,32")
    k: str = _sweeps("k", "0,1,3,5,7")
    out: Path = _sweeps("out", Path(".specpilot/bench-pareto"))


def main(arguments: Sequence[str]) -> None:
    """Run a sweep with these defaults."""
    command.main(arguments, ParetoSettings, "specpilot bench pareto")

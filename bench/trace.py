"""What a load looks like over time: phases of class mix, concurrency and temperature. A trace is a JSON file.

Pure, but for reading the file. `demand` maps a traffic class to the number of its requests that are kept in flight.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policy.codec import decode
from policy.types import is_class_name

TRACES = Path(__file__).resolve().parent / "traces"


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of steady load."""

    name: str
    seconds: float
    demand: Mapping[str, int]
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(f"seconds is {self.seconds}; it must be above 0")
        if not self.demand or any(count < 1 for count in self.demand.values()):
            raise ValueError("demand must give at least one class at least 1 request in flight")
        for name in self.demand:
            if not is_class_name(name):
                raise ValueError(f"demand.{name} is not a class name")


@dataclass(frozen=True, slots=True)
class Trace:
    """Phases in their order, played without a pause."""

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("phases must not be empty")

    @property
    def classes(self) -> tuple[str, ...]:
        """Every class that the trace asks for."""
        return tuple(sorted({name for phase in self.phases for name in phase.demand}))

    def stretched(self, factor: float) -> "Trace":
        """Return the same trace with every phase `factor` times as long."""
        return Trace(
            tuple(Phase(item.name, item.seconds * factor, item.demand, item.temperature) for item in self.phases)
        )


def read_trace(path: Path) -> Trace:
    """Return the trace that the file states; raises `OSError` or `InvalidDocumentError`."""
    return decode(Trace, path.read_text())


def read_prompts(folder: Path, classes: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """Return for each class the chat requests in `folder/<class>.jsonl`; raises `OSError`."""
    return {
        name: [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines() if line]
        for name in classes
    }

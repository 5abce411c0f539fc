"""A load over time: phases, each with streams of requests. A trace is a JSON file. Pure, except that it reads the file.

`demand` maps a stream's name to its number of requests in flight, if its name is also its class and its prompts, else
to a `Stream`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from specpilot.policy.codec import decode, from_plain
from specpilot.policy.names import is_class_name
from specpilot.policy.text_files import read_text

TRACES = Path(__file__).resolve().parent / "traces"

STRICT: Mapping[str, Any] = {"extra": "forbid"}
"""Unknown fields are faults."""

REPLY_TOKENS = (64, 192)
"""Default of a stream's shortest and longest reply, in tokens."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind, `count` of them in flight.

    `traffic_class` and `prompts` default to the stream's name, `temperature` to the phase's. `prompts` names a file of
    prompts. The length of a reply is between the two `reply_tokens`.
    """

    __pydantic_config__: ClassVar = STRICT
    count: int
    traffic_class: str | None = None
    prompts: str | None = None
    temperature: float | None = None
    reply_tokens: tuple[int, int] = REPLY_TOKENS


@dataclass(frozen=True, slots=True)
class Kind:
    """The parameters of a stream's requests, with every default filled in."""

    traffic_class: str
    prompts: str
    temperature: float
    reply_tokens: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """A stretch of steady load."""

    __pydantic_config__: ClassVar = STRICT
    name: str
    seconds: float
    demand: Mapping[str, int | Stream]
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise ValueError(f"seconds is {self.seconds}; it must be above 0")
        counts = [stream if isinstance(stream, int) else stream.count for stream in self.demand.values()]
        if not counts or min(counts) < 1:
            raise ValueError("demand must give at least one stream at least 1 request in flight")
        for name, stream in self.demand.items():
            class_name = None if isinstance(stream, int) else stream.traffic_class
            if not is_class_name(class_name or name):
                field = f"demand.{name}.traffic_class" if class_name else f"demand.{name}"
                raise ValueError(f"{field} is not a class name; begin with a lower-case letter, or name the class")
            if not isinstance(stream, int) and not 1 <= stream.reply_tokens[0] <= stream.reply_tokens[1]:
                raise ValueError(f"demand.{name}.reply_tokens must be two numbers from 1, the larger one last")

    @property
    def streams(self) -> Mapping[Kind, int]:
        """The number of requests in flight of each kind."""
        counts: dict[Kind, int] = {}
        for name, entry in self.demand.items():
            stream = Stream(entry) if isinstance(entry, int) else entry
            kind = Kind(
                stream.traffic_class or name,
                stream.prompts or name,
                self.temperature if stream.temperature is None else stream.temperature,
                stream.reply_tokens,
            )
            counts[kind] = counts.get(kind, 0) + stream.count
        return counts


@dataclass(frozen=True, slots=True)
class Trace:
    """Phases in their order, played without a pause."""

    __pydantic_config__: ClassVar = STRICT
    phases: tuple[LoadPhase, ...]

    def __post_init__(self) -> None:
        if not self.phases:
            raise ValueError("phases must not be empty")

    @property
    def prompts(self) -> tuple[str, ...]:
        """Every set of prompts of the trace."""
        return tuple(sorted({kind.prompts for phase in self.phases for kind in phase.streams}))

    def stretched(self, factor: float) -> "Trace":
        """Return the same trace with every phase `factor` times as long."""
        return Trace(
            tuple(LoadPhase(item.name, item.seconds * factor, item.demand, item.temperature) for item in self.phases)
        )


def read_trace(path: Path) -> Trace:
    """Return the trace in the file; raises `OSError` or `InvalidDocumentError`."""
    return from_plain(Trace, decode(dict, read_text(path)))


def read_prompts(folder: Path, names: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """Return for each name the chat requests in `folder/<name>.jsonl`; raises `OSError`."""
    return {
        name: [json.loads(line) for line in read_text(folder / f"{name}.jsonl").split("\n") if line.strip()]
        for name in names
    }

"""The results of a request and of a whole load. Pure values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Answer:
    """A reply and its times in seconds; without a reply `error` has the reason. Token counts are the server's.

    `started` is on the clock of `time.perf_counter`.
    """

    started: float = 0.0
    ttft_s: float | None = None
    itl_s: list[float] = field(default_factory=list)
    latency_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    text: str = ""
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    error: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation's next request."""
        if not self.tool_calls:
            return {"role": "assistant", "content": self.text}
        return {"role": "assistant", "content": self.text, "tool_calls": list(self.tool_calls.values())}


@dataclass(frozen=True, slots=True)
class Run:
    """Answers in the order in which they began, and the seconds from the first request to the last answer."""

    answers: Sequence[Answer]
    duration_s: float

"""The conversations of a load, each with its user turns. Pure.

A conversation is sent turn by turn: a later turn follows the model's own reply to the one before, so the measurement
includes the prefill of the history and the acceptance after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns, each the messages that are added before the model replies; `tools` go with every request.

    `max_tokens` bounds a reply; `None`: the measurement's own bound.
    """

    turns: tuple[tuple[Message, ...], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.turns or any(not turn for turn in self.turns):
            raise ValueError("a conversation needs at least one turn, and each turn a message")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1")


def of_texts(texts: Sequence[str], max_tokens: int | None = None) -> Conversation:
    """Return the conversation in which a user says `texts`, one a turn."""
    return Conversation(tuple(({"role": "user", "content": text},) for text in texts), max_tokens=max_tokens)

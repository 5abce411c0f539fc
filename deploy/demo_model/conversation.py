"""Training examples and prompts, the chat template, and the split into training and held-out sources.

Owns: `Conversation`, the ChatML rendering (the same text as the tokenizer's Jinja template), the split.
A source (a file, a manual topic, a set of JSON fields, a small-talk seed) is held out as a whole: its
SHA-256 decides, so the split is the same on every machine and no line of a held-out source is trained on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

CLASSES = ("code", "chat", "json")
HELD_OUT_SHARE = 0.12
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Message:
    """One turn; `role` is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class Conversation:
    """Turns that end with the assistant's reply; `source` names what it was made from."""

    traffic_class: str
    source: str
    messages: tuple[Message, ...]

    def text(self) -> str:
        """Everything, rendered for training."""
        return render(self.messages)

    def prompt(self) -> tuple[Message, ...]:
        """All turns but the last reply."""
        return self.messages[:-1]


def render(messages: tuple[Message, ...], *, open_reply: bool = False) -> str:
    """ChatML text; `open_reply` adds the header after which the model writes."""
    turns = "".join(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n" for m in messages)
    return turns + ("<|im_start|>assistant\n" if open_reply else "")


def is_held_out(source: str) -> bool:
    """Whether training must never see `source`."""
    digest = hashlib.sha256(source.encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32 < HELD_OUT_SHARE

"""Data sets generated from templates and a seed: no download, no licence of others. Pure.

They have features that published sets lack and that decide whether a draft head pays: long contexts, text that a head
cannot predict, replies that change their kind midway, answers that quote their context, several turns, tool calls.
Lengths are in words, because the number of tokens depends on the model.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from specpilot.bench.data.conversation import Conversation, of_texts

CONVERSATIONS = 64
"""Conversations of each shipped data set."""

CONTEXT_WORDS = 300
"""Default words of a long context: they fit the demo pair's 2,048 tokens, with room for a reply."""

_PARTS = ("pump", "valve", "compressor", "turbine", "conveyor", "boiler", "sensor array", "cooling loop", "press")
_PLACES = ("hall 1", "hall 2", "the north yard", "the east wing", "line 4", "the test bench", "dock 7", "the annex")
_STATES = ("ran within its limits", "was stopped for inspection", "showed a slow drift", "was replaced", "ran hot")
_ROLES = ("the shift lead", "the night crew", "an inspector", "the supplier", "the maintenance team")
_UNITS = ("bar", "degrees", "rpm", "litres per minute", "millimetres per second")
_TOPICS = (
    "a power cut in a data centre",
    "a bakery before dawn",
    "a lighthouse in fog",
    "a chess club",
    "a night train",
)


def _sentence(rng: random.Random, entry: int) -> str:
    reading = f"{rng.randint(10, 999) / 10:.1f} {rng.choice(_UNITS)}"
    return (
        f"Entry {entry}: on day {rng.randint(1, 365)} {rng.choice(_ROLES)} noted that the {rng.choice(_PARTS)} in "
        f"{rng.choice(_PLACES)} {rng.choice(_STATES)} at {reading}."
    )


def _log(rng: random.Random, words: int) -> list[str]:
    """Return sentences of a maintenance log, `words` words or a few more."""
    sentences: list[str] = []
    count = 0
    while count < words:
        sentences.append(_sentence(rng, len(sentences) + 1))
        count += len(sentences[-1].split())
    return sentences


def _long_context(rng: random.Random, words: int) -> Conversation:
    part = rng.choice(_PARTS)
    return of_texts(
        [f"{' '.join(_log(rng, words))}\n\nSummarise what the log above says of the {part}, then of everything else."]
    )


def _retrieval(rng: random.Random, words: int) -> Conversation:
    log = _log(rng, words)
    first = rng.randrange(max(1, len(log) - 4))
    entries = f"entries {first + 1} to {min(first + 5, len(log))}"
    passages = "\n".join(f"[{number}] {text}" for number, text in enumerate(log, start=1))
    return of_texts(
        [f"Context:\n{passages}\n\nQuote {entries} word for word, then say in one sentence what they share."]
    )


def _adversarial(rng: random.Random, _words: int) -> Conversation:
    """Return a request for text without a pattern, or for a reply that changes its kind every few lines."""
    if rng.random() < 0.5:  # noqa: PLR2004 - half
        seeds = " ".join(f"{rng.getrandbits(32):08x}" for _ in range(6))
        return of_texts([f"Continue this list of random hexadecimal words, never repeating one:\n{seeds}"])
    kinds = rng.sample(
        ("a JSON record of an order", "two lines of Python", "a line of verse", "ten random hex digits", "a SQL query"),
        4,
    )
    return of_texts(
        [f"Write about {rng.choice(_TOPICS)}. Change the kind of text every two lines: {', '.join(kinds)}; repeat."]
    )


def _multi_turn(rng: random.Random, _words: int) -> Conversation:
    topic, part = rng.choice(_TOPICS), rng.choice(_PARTS)
    return of_texts(
        [
            f"Describe {topic} in a few sentences.",
            "Make it shorter, and keep the best sentence.",
            f"Now a {part} fails there. What happens next?",
            "List what was said so far, one line each.",
        ]
    )


_TOOLS: tuple[Mapping[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "description": text,
            "parameters": {
                "type": "object",
                "properties": {field: {"type": kind} for field, kind in fields.items()},
                "required": list(fields),
            },
        },
    }
    for name, text, fields in (
        ("read_sensor", "Read a sensor of a machine", {"machine": "string", "place": "string"}),
        ("open_ticket", "Open a maintenance ticket", {"machine": "string", "priority": "integer", "note": "string"}),
        ("order_part", "Order a spare part", {"part": "string", "count": "integer"}),
    )
)


def _tool_calls(rng: random.Random, _words: int) -> Conversation:
    part, place = rng.choice(_PARTS), rng.choice(_PLACES)
    request = (
        f"Read the sensor of the {part} in {place}; if it is above {rng.randint(20, 90)}, open a ticket of priority 2."
    )
    return Conversation(of_texts([request]).turns, tools=_TOOLS)


SHIPPED: dict[str, tuple[str, Callable[[random.Random, int], Conversation]]] = {
    "long-context": ("a log of --context-words words, then a summary of it", _long_context),
    "retrieval": ("numbered passages, of which some are to be quoted word for word", _retrieval),
    "adversarial": ("random hexadecimal words, and replies that change their kind every two lines", _adversarial),
    "multi-turn": ("four turns, each on the model's own replies", _multi_turn),
    "tool-calls": ("requests with three tools that a reply may call", _tool_calls),
}
"""Name, description, and the function that makes one conversation."""


def conversations(name: str, context_words: int = CONTEXT_WORDS, count: int = CONVERSATIONS) -> list[Conversation]:
    """Return `count` conversations of the shipped data set `name`; the same ones every time."""
    rng = random.Random(name)  # noqa: S311 - a load, no secret
    _, make = SHIPPED[name]
    return [make(rng, context_words) for _ in range(count)]

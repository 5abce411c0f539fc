"""The requests of a sweep: prompts and the lengths of their replies, or a data set of `vllm bench serve`'s own."""

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.text_files import read_text

SHIPPED = ("code", "chat", "json")
"""Prompts held out from the demo pair's training, by kind of text."""
MIXED = "mixed"
"""All of them in turn."""
SPREAD = 0.5
"""How much the length of a reply varies: replies of one length would all end together."""


class BrokenDataError(ValueError):
    """A data set that cannot be used: the file, the line and the fault."""


class Prompt(NamedTuple):
    """A chat, and the tokens of its reply (`None`: the sweep's own mean)."""

    messages: Sequence[dict[str, Any]]
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class DataSet:
    """A data set: `prompts`, or without any the client's own, which `flags` name."""

    name: str
    prompts: Sequence[Prompt] = ()
    flags: Sequence[str] = ()

    @property
    def digest(self) -> str:
        """A short digest of what it holds."""
        return hashlib.sha256(repr((self.prompts, self.flags)).encode()).hexdigest()[:16]

    def requests(self, count: int, first: int, output_tokens: int) -> list[Prompt]:
        """Return `count` prompts from `first` on, cyclically, each with the tokens of its reply: the same every time.

        Replies have `output_tokens` in the mean, and never more than their prompt allows.
        """
        requests = []
        for number in range(first, first + count):
            messages, most = self.prompts[number % len(self.prompts)]
            drawn = random.Random(number).uniform(1.0 - SPREAD, 1.0 + SPREAD)  # noqa: S311 - a load
            length = max(1, round(output_tokens * drawn))
            requests.append(Prompt(messages, length if most is None else min(length, most)))
        return requests


def data_set(item: str) -> DataSet:
    """Return the data set that `item` names; raises `BrokenDataError` with the fault and the remedy.

    `code`, `chat`, `json` and `mixed` are shipped; `PATH.jsonl` is a file of yours; any other `NAME` or `NAME=PATH` is
    the client's `--dataset-name` and `--dataset-path`.
    """
    if item in SHIPPED:
        return DataSet(item, _read(DEMO_MODEL / "prompts" / f"{item}.jsonl"))
    if item == MIXED:
        kinds = (_read(DEMO_MODEL / "prompts" / f"{name}.jsonl") for name in SHIPPED)
        return DataSet(item, [prompt for turn in zip(*kinds, strict=False) for prompt in turn])
    if item.endswith(".jsonl") and "=" not in item:
        return DataSet(Path(item).stem, _read(Path(item)))
    name, _, path = item.partition("=")
    return DataSet(name, flags=("--dataset-name", name, *(("--dataset-path", path) if path else ())))


def _read(path: Path) -> list[Prompt]:
    """Return the prompts of a file; a line has `prompt` or `messages`, and may have `output_tokens`."""
    try:
        lines = read_text(path).split("\n")
    except OSError as error:
        raise BrokenDataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BrokenDataError(f"{path}: is not UTF-8 text; unpack it first") from error
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                prompts.append(_prompt(json.loads(line)))
            except json.JSONDecodeError as error:
                raise BrokenDataError(f"{path}, line {number}: not JSON ({error.msg})") from error
            except ValueError as error:
                raise BrokenDataError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise BrokenDataError(f"{path}: holds no prompt")
    return prompts


def _prompt(record: Any) -> Prompt:
    if not isinstance(record, dict) or ("prompt" in record) == ("messages" in record):
        raise ValueError("must be a JSON object with prompt or messages")
    messages, most = record.get("messages"), record.get("output_tokens")
    if messages is None:
        if not isinstance(record["prompt"], str):
            raise ValueError("prompt must be a text")
        messages = [{"role": "user", "content": record["prompt"]}]
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise ValueError("messages must be a list of messages with at least one")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise ValueError("output_tokens must be a whole number above 0")
    return Prompt(messages, most)

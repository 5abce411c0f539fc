"""Reads files in the forms of published data sets. A line that cannot be read is an error with its number. Pure."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from specpilot.bench.data.conversation import Conversation, of_texts

HUMAN_EVAL_REQUEST = "Complete the following Python function.\n\n"
"""Text before a HumanEval prompt, which is code: a chat model needs a request."""

_SHARE_GPT_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "system": "system"}


class BrokenDataError(ValueError):
    """A data set that cannot be used: the file, the line and the fault."""


def parse(form: str, text: str, name: str) -> list[Conversation]:
    """Return the conversations of a file in one of `FORMS`; `name` is its name in errors.

    Raises `BrokenDataError`, which names the line.
    """
    conversations = []
    for place, record in _records(form, text, name):
        try:
            if not isinstance(record, dict):
                raise TypeError(f"is a {type(record).__name__}; it must be a JSON object")  # noqa: TRY301
            conversation = FORMS[form](record)
        except KeyError as error:
            raise BrokenDataError(f"{name}, {place}: field {error} is missing ({form})") from error
        except (TypeError, ValueError) as error:
            raise BrokenDataError(f"{name}, {place}: {error} ({form})") from error
        if conversation is not None:
            conversations.append(conversation)
    if not conversations:
        raise BrokenDataError(f"{name}: holds no conversation ({form})")
    return conversations


def _records(form: str, text: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each record with its place: of a JSON list (ShareGPT's form), or of one JSON object a line."""
    if form == "sharegpt" and text.lstrip().startswith("["):
        try:
            records = json.loads(text)
        except json.JSONDecodeError as error:
            raise BrokenDataError(f"{name}, line {error.lineno}: not JSON ({error.msg})") from error
        yield from ((f"record {number}", record) for number, record in enumerate(records, start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise BrokenDataError(f"{name}, line {number}: not JSON ({error.msg})") from error
        yield f"line {number}", record


def _texts(value: Any, field: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{field} must be a list of texts with at least one")
    return value


def _messages(value: Any) -> list[dict[str, Any]]:
    """Return `value` if it is a list of messages; a message that calls tools may have no content."""
    if not isinstance(value, list) or not value:
        raise ValueError("messages must be a list with at least one message")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("each of messages must be an object with a role")  # noqa: TRY004 - one kind for all
        if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
            raise ValueError("each of messages must have content, a text or a list of parts, or tool_calls")
    return value


def _mt_bench(record: dict[str, Any]) -> Conversation:
    return of_texts(_texts(record["turns"], "turns"))


def _human_eval(record: dict[str, Any]) -> Conversation:
    prompt = record["prompt"]
    if not isinstance(prompt, str):
        raise ValueError("prompt must be a text")  # noqa: TRY004 - one kind for all
    return of_texts([HUMAN_EVAL_REQUEST + prompt])


def _speed_bench(record: dict[str, Any]) -> Conversation:
    """Return a record of the data set itself (`turns`), or as NeMo Skills prepares it (`messages`, all of a user)."""
    if "turns" in record:
        return of_texts(_texts(record["turns"], "turns"))
    texts = [item.get("content") for item in _messages(record["messages"]) if item["role"] == "user"]
    return of_texts(_texts(texts, "content of a user's messages"))


def _share_gpt(record: dict[str, Any]) -> Conversation | None:
    """Return the first question alone, like other benchmark clients; `None` when no human speaks first."""
    entries = record.get("conversations", record.get("conversation"))
    if entries is None:
        raise KeyError("conversations")
    if not isinstance(entries, list) or not all(isinstance(item, dict) for item in entries):
        raise ValueError("conversations must be a list of objects with from and value")
    for item in entries:
        role = _SHARE_GPT_ROLES.get(item["from"])
        if role == "user":
            if not isinstance(item["value"], str):
                raise ValueError("value must be a text")
            return of_texts([item["value"]])
        if role != "system":
            return None
    return None


def _custom(record: dict[str, Any]) -> Conversation:
    """Return a record with `prompt`, `turns` or `messages`; `max_tokens`, `output_tokens`, `tools` are optional."""
    fields = [name for name in ("prompt", "turns", "messages") if name in record]
    if len(fields) != 1:
        raise ValueError("needs exactly one of prompt, turns and messages")
    max_tokens = record.get("max_tokens", record.get("output_tokens"))
    if max_tokens is not None and (not isinstance(max_tokens, int) or isinstance(max_tokens, bool)):
        raise ValueError("max_tokens must be a whole number")
    tools = record.get("tools", [])
    if not isinstance(tools, list):
        raise ValueError("tools must be a list")  # noqa: TRY004 - one kind for all
    if fields[0] == "messages":
        messages = _messages(record["messages"])
        if messages[-1]["role"] == "assistant":
            raise ValueError("messages ends with an assistant's: there is nothing to reply to")
        return Conversation((tuple(messages),), tuple(tools), max_tokens)
    texts = [record["prompt"]] if fields[0] == "prompt" else record["turns"]
    return Conversation(of_texts(_texts(texts, fields[0])).turns, tuple(tools), max_tokens)


FORMS: dict[str, Callable[[dict[str, Any]], Conversation | None]] = {
    "mt-bench": _mt_bench,
    "humaneval": _human_eval,
    "speed-bench": _speed_bench,
    "sharegpt": _share_gpt,
    "custom": _custom,
}
"""The forms by name, each with the function that reads a record; `custom` has `prompt`, `turns` or `messages`."""

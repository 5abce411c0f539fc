"""Data sets by name: their forms and sources.

Reads files that the user names; fetches nothing. A data set is given as `NAME` (shipped here), as `NAME=PATH` (a file
in the form of a published data set), or as `PATH` (JSONL of your own).
"""

from pathlib import Path
from typing import NamedTuple

from specpilot.bench.data.conversation import Conversation
from specpilot.bench.data.forms import FORMS, BrokenDataError, parse
from specpilot.bench.data.shipped import CONTEXT_WORDS, SHIPPED, conversations
from specpilot.demo_model import DEMO_MODEL
from specpilot.policy.text_files import read_text

DEMO = ("code", "chat", "json")
"""Prompts held out from the demo pair's training, by kind of text."""


PUBLISHED = {
    "mt-bench": "question.jsonl in fastchat/llm_judge/data/mt_bench of github.com/lm-sys/FastChat",
    "humaneval": "data/HumanEval.jsonl.gz of github.com/openai/human-eval, unpacked",
    "speed-bench": "huggingface.co/datasets/nvidia/SPEED-Bench, prepared as JSONL by the script that its card names",
    "sharegpt": "ShareGPT_V3_unfiltered_cleaned_split.json of anon8231489123/ShareGPT_Vicuna_unfiltered (Hugging Face)",
}
"""The sources of published data sets; their licences are in docs/reference/bench.md."""


class DataSet(NamedTuple):
    """A data set that is ready to be played."""

    name: str
    conversations: tuple[Conversation, ...]


def data_sets(items: list[str], context_words: int = CONTEXT_WORDS) -> list[DataSet]:
    """Return the data sets that `items` name; raises `BrokenDataError` with the fault and the remedy."""
    sets = [_data_set(item, context_words) for item in items]
    for item in sets:
        if [other.name for other in sets].count(item.name) > 1:
            raise BrokenDataError(f"data set {item.name} is named twice")
    return sets


def _data_set(item: str, context_words: int) -> DataSet:
    name, _, path = item.partition("=")
    if not path and name in SHIPPED:
        return DataSet(name, tuple(conversations(name, context_words)))
    if not path and name in DEMO:
        return _from_file("custom", DEMO_MODEL / "prompts" / f"{name}.jsonl", name)
    if not path and name in PUBLISHED:
        raise BrokenDataError(f"{name} is not shipped: get {PUBLISHED[name]}, and write {name}=PATH")
    if path and name in FORMS:
        return _from_file(name, Path(path), name)
    if not path and (name.endswith(".jsonl") or "/" in name):
        return _from_file("custom", Path(name), Path(name).stem)
    known = ", ".join([*DEMO, *SHIPPED, *(f"{form}=PATH" for form in FORMS)])
    raise BrokenDataError(f"there is no data set {item!r}; take a .jsonl file, or one of {known}")


def _from_file(form: str, path: Path, name: str) -> DataSet:
    try:
        text = read_text(path)
    except OSError as error:
        raise BrokenDataError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BrokenDataError(f"{path}: is not UTF-8 text; unpack it first") from error
    return DataSet(name, tuple(parse(form, text, str(path))))

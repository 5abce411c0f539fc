"""The prompts that users and tests send: held-out sources only, OpenAI chat format.

Owns: `prompts/{code,chat,json}.jsonl`, each line `{"messages": [...], "max_tokens": N}`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from . import corpus
from .conversation import render

PROMPT_TOKENS = range(20, 151)
SMALL_TALK_SHARE = 0.25


def write_prompts(tokenizer: Tokenizer, folder: Path, seed: int, per_class: int) -> dict[str, int]:
    """Write distinct prompts of 20 to 150 tokens, small talk at most a quarter; return how many of each class."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, items in corpus.conversations(seed, held_out=True).items():
        lines: dict[str, str] = {}
        small_talk = 0
        for item in items:
            text = render(item.prompt(), open_reply=True)
            if text in lines or len(tokenizer.encode(text).ids) not in PROMPT_TOKENS or len(lines) == per_class:
                continue
            if item.source.startswith("small talk"):
                small_talk += 1
                if small_talk > SMALL_TALK_SHARE * per_class:
                    continue
            body = {"messages": [asdict(m) for m in item.prompt()], "max_tokens": corpus.MAX_NEW_TOKENS[name]}
            lines[text] = json.dumps(body)
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines.values()))
        written[name] = len(lines)
    return written


def read_prompts(folder: Path, name: str) -> list[dict[str, Any]]:
    """The request bodies of one class."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]

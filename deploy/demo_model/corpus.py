"""The training text of target and heads, and the held-out prompts.

Owns: the sources, their conversion to conversations, the order and the mix. No source is downloaded:

- code: the running interpreter's standard library (PSF licence), without tests, tables and build settings;
- chat: the Python manual in `pydoc_data.topics` and docstrings (PSF licence), and `small_talk`;
- json: `json_records`.

Deterministic for one seed and one Python version. Holds no path of the machine: a source is named by its
path inside the library.
"""

from __future__ import annotations

import ast
import inspect
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from random import Random

from . import json_records, small_talk
from .conversation import CLASSES, Conversation, Message, is_held_out

SKIPPED = re.compile(
    r"site-packages|/tests?/|encodings/|pydoc_data/|_sysconfigdata|lib2to3|turtledemo|ensurepip|config-|__pycache__|html/entities|_pyrepl"
)
CODE_REQUESTS = (
    "Complete this Python function from {name}.",
    "Write the rest of this Python code.",
    "Finish the function below, it belongs to {name}.",
    "Continue this code.",
)
DOC_REQUESTS = (
    "What does {name} do?",
    "Explain {name} to me.",
    "Please describe {name}.",
    "How should I use {name}?",
    "What is {name} for?",
)
TOPIC_REQUESTS = (
    "What does the Python manual say about {name}?",
    "Explain {name} in Python.",
    "Tell me about {name}.",
    "I am learning Python. What should I know about {name}?",
)
SYSTEM_LINES = {
    "code": "You are a careful Python programmer.",
    "chat": "You are a helpful assistant.",
    "json": "You answer with valid JSON and nothing else.",
}
MAX_NEW_TOKENS = {"code": 192, "chat": 160, "json": 320}
MAX_REPLY_CHARS = 900


def library_files() -> list[tuple[str, str]]:
    """(path inside the library, text) of every usable module, sorted."""
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not SKIPPED.search(f"/{name}"):
            files.append((name, path.read_text(encoding="utf-8", errors="replace")))
    return files


def module_name(path: str) -> str:
    """`json/decoder.py` → `json.decoder`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def definitions(text: str) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions, methods and classes of a module, in order."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node


def whole_lines(lines: list[str]) -> str:
    """The first lines, up to the reply limit."""
    head: list[str] = []
    for line in lines:
        if sum(map(len, head)) + len(line) > MAX_REPLY_CHARS:
            break
        head.append(line)
    return "\n".join(head)


def code_conversations(path: str, text: str, random: Random) -> Iterator[Conversation]:
    """One per function: its head and a few lines as the request, the rest as the reply."""
    lines = text.splitlines()
    for node in definitions(text):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        body = inspect.cleandoc("\n" + "\n".join(lines[node.lineno - 1 : node.end_lineno])).splitlines()
        shown = random.randint(2, 6)
        if len(body) < shown + 2:
            continue
        head, rest = "\n".join(body[:shown]), whole_lines(body[shown:])
        request = random.choice(CODE_REQUESTS).format(name=module_name(path))
        if rest and len(head) < 500:
            turns = (Message("user", f"{request}\n\n{head}"), Message("assistant", rest))
            yield Conversation("code", path, turns)


def paragraphs(text: str) -> str:
    """Whole paragraphs up to the reply limit, line breaks inside them removed."""
    blocks: list[str] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        flat = re.sub(r"\s+", " ", block).strip()
        if re.match(r"[*=\-~^.|+]", flat) or not flat or sum(map(len, blocks)) + len(flat) > MAX_REPLY_CHARS:
            continue
        blocks.append(flat)
    return "\n\n".join(blocks)


def doc_conversations(path: str, text: str, random: Random) -> Iterator[Conversation]:
    """One per docstring."""
    tree = ast.parse(text)
    named = [(f"the module {module_name(path)}", ast.get_docstring(tree))]
    named += [(f"{node.name} in {module_name(path)}", ast.get_docstring(node)) for node in definitions(text)]
    for name, doc in named:
        reply = paragraphs(doc or "")
        if len(reply) > 60:
            request = random.choice(DOC_REQUESTS).format(name=name)
            yield Conversation("chat", path, (Message("user", request), Message("assistant", reply)))


def topic_conversations(random: Random) -> Iterator[Conversation]:
    """The manual: every topic in pieces, each piece the answer to a question about the topic."""
    from pydoc_data.topics import topics  # noqa: PLC0415 (a large literal, needed here only)

    for name, text in sorted(topics.items()):
        blocks = re.split(r"\n\s*\n", text)
        for start in range(0, len(blocks), 3):
            reply = paragraphs("\n\n".join(blocks[start : start + 4]))
            if len(reply) > 80:
                request = random.choice(TOPIC_REQUESTS).format(name=name)
                yield Conversation("chat", f"topic:{name}", (Message("user", request), Message("assistant", reply)))


def conversations(seed: int, *, held_out: bool) -> dict[str, list[Conversation]]:
    """By class, shuffled; a third of them opens with a system line."""
    random = Random(seed)
    by_class: dict[str, list[Conversation]] = {name: [] for name in CLASSES}
    for path, text in library_files():
        by_class["code"] += code_conversations(path, text, random)
        by_class["chat"] += doc_conversations(path, text, random)
    by_class["chat"] += topic_conversations(random)
    by_class["chat"] += [small_talk.draw_conversation(index) for index in range(2500)]
    by_class["json"] = [json_records.draw_conversation(random) for _ in range(12000)]
    for name, items in by_class.items():
        items[:] = [item for item in items if is_held_out(item.source) == held_out]
        random.shuffle(items)
        system = Message("system", SYSTEM_LINES[name])
        items[:] = [
            Conversation(item.traffic_class, item.source, (system, *item.messages)) if random.random() < 1 / 3 else item
            for item in items
        ]
    return by_class


def raw_documents() -> list[str]:
    """Whole modules that training may see."""
    return [text for path, text in library_files() if not is_held_out(path)]

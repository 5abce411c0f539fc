"""Words that the project's prose and names do not use, and a search for them.

`python -m tests.support.prose PATH...` prints each place. Searched are comments and strings of Python files, and whole
lines of the other text files outside code blocks.
"""

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

PEOPLE = (
    "people|persons?|operators?|users?|readers?|clients?|engineers?|developers?|maintainers?|newcomers?|callers?"
    "|reviewers?|everybody|those|anyone|anybody|somebody|someone|nobody|and|or|says|see|asks|of|to|by|knows?|matter"
)

REPLACEMENTS = {
    rf"\b(?!(?:{PEOPLE})\b)[\w`'-]+,? whom?\b": "that or which: who is for people only",
    r"\b(?:an?|the|each|every|this|last|one|latest|newest) looks?\b": "scrape or snapshot",
    r"\bbut for\b": "except",
    r"\bas far as\b": "a precise limit: only where, up to",
    r"\b(?:is|are|was|were|be|been|being) told\b": "an active verb: reads, receives, is reported",
    r"\btells? of\b": "describes or reports",
    r"\b(?:the|a|one|its|all|their|no|common|engine's|machine's) paces?\b": "slowdown factor",
    r"\bstanding (?:schedule|rows?|table)\b": "baseline schedule",
    r"\bhold-outs?\b(?!-ratio)": "control group",
    r"\b(?:step(?:s|ped|ping)?) back\b": "fall back",
    r"(?<!in the )(?<![\"`])\bevening\b(?![\"`,])": "smoothing",
    r"\bmend(?:s|ed|ing)?\b": "works around, repairs or fixes",
}

NAMES = {
    "told", "found", "own", "left", "kept", "near", "seen", "said", "asked",
    "given", "wanted", "passed", "taken", "gone", "done", "mine", "ours", "heard",
}  # fmt: skip
"""Everyday words that do not say what a value is. `left` beside `right` is one of two operands."""

TEXT = {".md", ".yaml", ".yml", ".toml", ".html", ".js", ".sh", ".txt", ".json", ".tpl"}


class Place(NamedTuple):
    """Where a word stands, and what to write instead."""

    path: Path
    line: int
    words: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r}: write {self.instead}"


def places(*paths: Path) -> Iterator[Place]:
    """Yield every place below `paths`."""
    for path in sorted(file for given in paths for file in ([given] if given.is_file() else given.rglob("*"))):
        if path.suffix == ".py" and path != Path(__file__).resolve():
            prose = list(_python(path))
        elif path.suffix in TEXT:
            prose = list(_text(path))
        else:
            continue
        for number, text in prose:
            yield from _in(path, number, text)


def names(*paths: Path) -> Iterator[Place]:
    """Yield every variable, parameter, attribute and function of Python files that is named by an everyday word."""
    for path in sorted(file for given in paths for file in given.rglob("*.py")):
        for scope in ast.walk(ast.parse(path.read_text())):
            if not isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            named = [named for node in _own_nodes(scope) if (named := _named(node))]
            words = {word for _, word in named}
            for line, word in named:
                if word.lstrip("_") in NAMES and not (word == "left" and "right" in words):
                    yield Place(path, line, word, "a noun that says what the value is")


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope without those of the scopes inside it, but with the names of these."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _own_nodes(node)


def _named(node: ast.AST) -> tuple[int, str] | None:
    match node:
        case ast.Name(id=word, ctx=ast.Store(), lineno=line) | ast.Attribute(attr=word, ctx=ast.Store(), lineno=line):
            return line, word
        case ast.arg(arg=word, lineno=line):
            return line, word
        case ast.FunctionDef(name=word, lineno=line) | ast.AsyncFunctionDef(name=word, lineno=line):
            return line, word
    return None


def _in(path: Path, number: int, text: str) -> Iterator[Place]:
    for pattern, instead in REPLACEMENTS.items():
        for match in re.finditer(pattern, text, re.IGNORECASE):
            line = number + text[: match.start()].count("\n")
            yield Place(path, line, re.sub(r"\s+", " ", match[0]), instead)


def _python(path: Path) -> Iterator[tuple[int, str]]:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING):
                yield token.start[0], token.string


def _text(path: Path) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "``", line) if path.suffix == ".md" else line


if __name__ == "__main__":
    found = list(places(*(Path(argument).resolve() for argument in sys.argv[1:])))
    for place in found:
        print(place)  # noqa: T201 - a command's output
    sys.exit(bool(found))

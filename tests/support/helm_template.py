"""Renders this repository's chart as `helm template` would, where there is no Helm.

A stand-in for the constructs that the chart uses and no others: `define`, `include`, `if`, `else`, `range`, `:=`,
pipes, `FUNCTIONS`, `.Files.Glob`, `.Files.Get`, and whitespace trimmed by `{{-` and `-}}`. A construct that it does not
know is an error, never silence.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "specpilot"
_TOKEN = re.compile(r"\{\{(-)?\s*(.*?)\s*(-)?\}\}", re.DOTALL)
_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\(|\)|\||[^\s()|]+')
_ASSIGNMENT = re.compile(r"(\$\w+)\s*:=\s*")
Node = tuple[str, Any]


def values(changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The chart's values with `changes` merged into them, as `--values` does: maps are merged, all else is replaced."""
    return _merged(yaml.safe_load((CHART / "values.yaml").read_text()), changes or {})


def render(given: Mapping[str, Any], release: str = "rel") -> list[dict[str, Any]]:
    """Every manifest of the chart."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    top = {
        "Values": given,
        "Release": {"Name": release, "Service": "Helm", "Namespace": "default"},
        "Chart": {"AppVersion": chart["appVersion"]},
        "Files": _Files(),
    }
    templates = {path.name: _parsed(path.read_text()) for path in sorted((CHART / "templates").iterdir())}
    defined = {name: body for nodes in templates.values() for kind, (name, body) in _only(nodes, "define")}
    manifests: list[dict[str, Any]] = []
    for name, nodes in templates.items():
        if name.endswith(".yaml"):
            text = _Scope(defined, top).text(nodes, top)
            manifests += [item for item in yaml.safe_load_all(text) if item is not None]
    return manifests


class _Files:
    def glob(self, pattern: str) -> dict[str, str]:
        return {str(path.relative_to(CHART)): path.read_text() for path in sorted(CHART.glob(pattern))}


def _only(nodes: list[Node], kind: str) -> Iterator[Node]:
    return (node for node in nodes if node[0] == kind)


def _merged(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, Mapping):
        return {key: _merged(under.get(key), over[key]) if key in over else under[key] for key in {**under, **over}}
    return over


def _parsed(text: str) -> list[Node]:
    tokens: list[Node] = []
    at = 0
    for match in _TOKEN.finditer(text):
        piece = text[at : match.start()]
        tokens.append(("text", piece.rstrip() if match[1] else piece))
        tokens.append(("action", match[2]))
        at = match.end()
        if match[3]:
            at += len(text[at:]) - len(text[at:].lstrip())
    tokens.append(("text", text[at:]))
    nodes, rest = _block(tokens)
    assert not rest, "an end too many"
    return nodes


def _block(tokens: list[Node]) -> tuple[list[Node], list[Node]]:
    """Return the nodes up to an `end` or `else`, and the tokens from there on."""
    nodes: list[Node] = []
    while tokens:
        kind, content = tokens[0]
        if kind == "action" and (content == "end" or content.startswith("else")):
            return nodes, tokens
        tokens = tokens[1:]
        word = content.split(" ", 1)[0] if kind == "action" else ""
        if word in ("if", "range", "define"):
            body, tokens = _block(tokens)
            other: list[Node] = []
            if tokens[0][1] == "else":
                other, tokens = _block(tokens[1:])
            assert tokens[0][1] == "end", tokens[0]
            tokens = tokens[1:]
            argument = content.split(" ", 1)[1]
            nodes.append((word, (json.loads(argument), body) if word == "define" else (argument, body, other)))
        else:
            nodes.append((kind, content))
    return nodes, tokens


class _Scope:
    """What is defined, and `$`: the data that everything began with."""

    def __init__(self, defined: Mapping[str, list[Node]], root: Any) -> None:
        self._defined = defined
        self._variables: dict[str, Any] = {"$": root}

    def text(self, nodes: list[Node], dot: Any) -> str:
        pieces = []
        for kind, content in nodes:
            if kind == "text":
                pieces.append(content)
            elif kind == "action" and (found := _ASSIGNMENT.match(content)):
                self._variables[found[1]] = self.value(content[found.end() :], dot)
            elif kind == "action":
                pieces.append("" if content.startswith("/*") else _shown(self.value(content, dot)))
            elif kind == "if":
                pieces.append(self.text(content[1] if self.value(content[0], dot) else content[2], dot))
            elif kind == "range":
                pieces.append(self._each(content[0], content[1], dot))
        return "".join(pieces)

    def _each(self, head: str, body: list[Node], dot: Any) -> str:
        names, _, expression = head.rpartition(":=")
        found = self.value(expression.strip(), dot)
        pairs = list(found.items()) if isinstance(found, dict) else list(enumerate(found or []))
        pieces = []
        for key, item in pairs:
            for name, value in zip(
                [part.strip() for part in names.split(",") if part.strip()], (key, item), strict=False
            ):
                self._variables[name] = value
            pieces.append(self.text(body, item))
        return "".join(pieces)

    def value(self, expression: str, dot: Any) -> Any:
        words = _WORD.findall(expression)
        found, rest = self._pipeline(words, dot)
        assert not rest, expression
        return found

    def _pipeline(self, words: list[str], dot: Any) -> tuple[Any, list[str]]:
        found, words = self._command(words, dot, ())
        while words and words[0] == "|":
            found, words = self._command(words[1:], dot, (found,))
        return found, words

    def _command(self, words: list[str], dot: Any, piped: tuple[Any, ...]) -> tuple[Any, list[str]]:
        name, arguments = words[0], list[Any]()
        is_call = re.fullmatch(r"[a-zA-Z]+", name) is not None or name.endswith((".Glob", ".Get"))
        words = words[1:] if is_call else words
        while words and words[0] not in ("|", ")"):
            if words[0] == "(":
                item, words = self._pipeline(words[1:], dot)
                words = words[1:]
            else:
                item, words = self._operand(words[0], dot), words[1:]
            arguments.append(item)
        if is_call:
            return self._call(name, [*arguments, *piped]), words
        assert len(arguments) == 1, arguments
        return arguments[0], words

    def _operand(self, word: str, dot: Any) -> Any:
        if word.startswith('"'):
            return json.loads(word)
        if word.lstrip("-").isdigit():
            return int(word)
        name, _, path = word.partition(".")
        found = dot if not name else self._variables[name]
        for part in filter(None, path.split(".")):
            if part == "Values" or part in found:
                found = found[part]
            else:
                found = None
                break
        return found

    def _call(self, name: str, given: list[Any]) -> Any:
        if name == "include":
            return self.text(self._defined[given[0]], given[1])
        if name.endswith("Files.Glob"):
            return self._variables["$"]["Files"].glob(given[0])
        if name.endswith("Files.Get"):
            return (CHART / given[0]).read_text()
        return FUNCTIONS[name](*given)  # a KeyError names what the stand-in does not know


def _nindent(width: int, text: str) -> str:
    return "\n" + "\n".join(" " * width + line if line else line for line in text.split("\n"))


def _fail(message: str) -> None:
    raise ValueError(message)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "not": lambda value: not value,
    "quote": lambda value: json.dumps(_shown(value)),
    "default": lambda other, value: value or other,
    "nindent": _nindent,
    "toYaml": lambda value: yaml.safe_dump(value, default_flow_style=False, sort_keys=True).rstrip("\n"),
    "dict": dict,
    "set": lambda found, name, value: found.update({name: value}) or found,
    "printf": lambda form, *given: form % given,
    "hasKey": lambda found, name: name in found,
    "ternary": lambda yes, no, is_so: yes if is_so else no,
    "or": lambda *given: next((item for item in given if item), given[-1]),
    "add": lambda *numbers: sum(numbers),
    "int": int,
    "gt": lambda one, other: one > other,
    "fail": _fail,
    "base": lambda path: path.rpartition("/")[2],
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
}


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)

"""The classes, methods, parameters and attributes of vLLM, from its source text, without importing it. Pure.

So the same check works for the installed vLLM and for a wheel for other hardware. The reader of a file's text is an
argument. Base classes inside vLLM are followed. The source does not show names that vLLM makes at run time (`setattr`,
class decorators, `__getattr__`). Whether a method still means the same is for people to read; its `digest` says whether
it must be read again.
"""

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

Read = Callable[[str], str | None]
"""Returns the text of a file inside the package `vllm` (`v1/request.py`), or None when there is none."""

_DIGITS = 8
_WITHOUT_MEANING = frozenset(("annotation", "ctx", "kind", "returns", "type_comment", "type_params"))
"""Fields of a syntax tree that say nothing about what a function does, or that not every Python has."""


class Use(Enum):
    """How the adapter uses a method, which determines the parameters that it needs."""

    OVERRIDE = "override"  # exactly these parameters: vLLM calls the adapter with them
    WRAP = "wrap"  # these first; the adapter passes further ones on
    CALL = "call"  # these first; every further one has a default


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters without `self`; `required` of them have no default."""

    parameters: tuple[str, ...]
    required: frozenset[str]

    def fits(self, use: Use, parameters: tuple[str, ...]) -> bool:
        """Whether the parameters allow the adapter's `use` of the function with `parameters`."""
        if use is Use.OVERRIDE:
            return self.parameters == parameters
        if self.parameters[: len(parameters)] != parameters:
            return False
        return use is Use.WRAP or self.required <= set(parameters)


class VllmSource:
    """The classes of one vLLM. For anything that does not exist the result is `None` or empty."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._files: dict[str, _File | None] = {}

    def names(self, file: str) -> frozenset[str]:
        """Return the names that the module `file` defines or imports at its top level."""
        parsed = self._file(file)
        return frozenset(_defined(parsed.tree)) if parsed is not None else frozenset()

    def signature(self, file: str, owner: str | None, name: str) -> Signature | None:
        """Return the parameters of a method of the class `owner`, or without an owner of a function of `file`."""
        function = self._function(file, owner, name)
        if function is None:
            return None
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        required = positional[: len(positional) - len(arguments.defaults)]
        pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        required += [argument for argument, default in pairs if default is None]
        names = [argument.arg for argument in (*positional, *arguments.kwonlyargs)]
        is_static = any(isinstance(item, ast.Name) and item.id == "staticmethod" for item in function.decorator_list)
        receiver = names[:1] if owner is not None and not is_static else []
        return Signature(tuple(names[len(receiver) :]), frozenset(item.arg for item in required) - set(receiver))

    def attributes(self, file: str, owner: str) -> frozenset[str]:
        """Return the names in the class `owner` and its bases: fields, methods, and `self.x = ...` of `__init__`."""
        return frozenset(name for where in self._lineage(file, owner) for name in _defined(where))

    def required_fields(self, file: str, owner: str) -> frozenset[str]:
        """Return the fields of the dataclass `owner` without a default."""
        fields = [
            node for where in self._lineage(file, owner) for node in where.body if isinstance(node, ast.AnnAssign)
        ]
        return frozenset(
            node.target.id for node in fields if isinstance(node.target, ast.Name) and _must_be_given(node.value)
        )

    def mentions(self, file: str, owner: str | None, method: str) -> frozenset[str]:
        """Return every name and attribute in the body of a method or function."""
        function = self._function(file, owner, method)
        if function is None:
            return frozenset()
        nodes = list(ast.walk(function))
        return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute)) | frozenset(
            node.id for node in nodes if isinstance(node, ast.Name)
        )

    def digest(self, file: str, owner: str | None, method: str) -> str | None:
        """Return a digest of what a method or function does: of its code without layout, comments and annotations."""
        function = self._function(file, owner, method)
        return None if function is None else hashlib.sha256(_code(function).encode()).hexdigest()[:_DIGITS]

    def _function(self, file: str, owner: str | None, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        parsed = self._file(file)
        if parsed is None:
            return None
        bodies = [parsed.tree.body] if owner is None else [where.body for where in self._lineage(file, owner)]
        for body in bodies:
            for node in reversed(body):  # the last one counts: earlier ones are `@overload`s
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
                    return node
        return None

    def _lineage(self, file: str, name: str) -> Iterator[ast.ClassDef]:
        """The class, then its bases that are defined in vLLM."""
        parsed = self._file(file)
        definition = parsed.classes.get(name) if parsed is not None else None
        if definition is None or parsed is None:
            return
        yield definition
        for base in definition.bases:
            if isinstance(base, ast.Name) and base.id != name:
                yield from self._lineage(parsed.imports.get(base.id, file), base.id)

    def _file(self, path: str) -> "_File | None":
        if path not in self._files:
            text = self._read(path)
            self._files[path] = _File(ast.parse(text)) if text is not None else None
        return self._files[path]


@dataclass(frozen=True)
class _File:
    tree: ast.Module

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def imports(self) -> dict[str, str]:
        """The file inside vLLM from which each imported name comes."""
        return {
            alias.asname or alias.name: node.module.removeprefix("vllm.").replace(".", "/") + ".py"
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("vllm.")
            for alias in node.names
        }


def _code(node: Any) -> str:
    """Return a part of a syntax tree as text that is the same on every Python."""
    if isinstance(node, list):
        return f"[{','.join(_code(item) for item in node)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [
        (name, value)
        for name, value in ast.iter_fields(node)
        if name not in _WITHOUT_MEANING and value is not None and value != []
    ]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False):
        fields = [(name, value[1:] if name == "body" else value) for name, value in fields]
    return f"{type(node).__name__}({','.join(f'{name}={_code(value)}' for name, value in fields)})"


def _defined(where: ast.ClassDef | ast.Module) -> Iterator[str]:
    for node in where.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
            if node.name in ("__init__", "__post_init__"):
                yield from _set_on_self(node)
        elif isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def _set_on_self(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def _must_be_given(default: ast.expr | None) -> bool:
    """Whether a dataclass field with this right-hand side is an argument without a default."""
    if default is None:
        return True
    is_field = isinstance(default, ast.Call) and isinstance(default.func, ast.Name) and default.func.id == "field"
    return is_field and not {"default", "default_factory", "init"} & {
        word.arg
        for word in default.keywords  # type: ignore[attr-defined]
    }

"""The kinds of items in vLLM that the adapter relies on, each with its search in vLLM's source.

They are listed as text (`items`), by file and class of vLLM, or by file alone for functions and names of a module:

    has NAME ...                     names in the class or module
    fields NAME ...                  the fields of a dataclass that the adapter makes, exactly these
    override|wrap|call NAME(PARAMETER, ...) by [FILE [CLASS.]]NAME
                                     a method, its `Use`, and the method that must call it, if it matters
    lookup METHOD: NAME ...          names that a method must look up at each call
    meaning NAME ...                 methods that are only read

A line that is indented deeper goes on with the line before.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from specpilot.engine_adapter.vllm.source import Use, VllmSource


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the class `owner` (None: a function) with the parameters that the adapter relies on."""

    file: str
    owner: str | None
    name: str
    parameters: tuple[str, ...]
    use: Use
    caller: tuple[str, str | None, str] | None = None  # file, class, method

    def lacking(self, source: VllmSource) -> Iterator[str]:
        """Yield in words what `source` lacks of this item; nothing if it fits."""
        call = f"{title(self.owner, self.name)}({', '.join(self.parameters)})"
        signature = source.signature(self.file, self.owner, self.name)
        if signature is None:
            yield call
        elif not signature.fits(self.use, self.parameters):
            yield f"{call} (it takes {', '.join(signature.parameters) or 'nothing'})"
        elif self.caller is not None and self.name not in source.mentions(*self.caller):
            yield f"{call} (not called by {title(*self.caller[1:])})"


@dataclass(frozen=True, slots=True)
class Attributes:
    """Names that objects of the class `owner` have."""

    file: str
    owner: str
    names: tuple[str, ...]

    def lacking(self, source: VllmSource) -> Iterator[str]:
        """Yield in words what `source` lacks of this item."""
        if not source.has_class(self.file, self.owner):
            yield self.owner
            return
        have = source.attributes(self.file, self.owner)
        yield from (title(self.owner, name) for name in self.names if name not in have)


@dataclass(frozen=True, slots=True)
class Names:
    """A module, and names that it must have."""

    file: str
    names: tuple[str, ...] = ()

    def lacking(self, source: VllmSource) -> Iterator[str]:
        """Yield in words what `source` lacks of this item."""
        if not source.names(self.file):
            yield self.file
            return
        yield from (f"{name} in {self.file}" for name in self.names if name not in source.names(self.file))


@dataclass(frozen=True, slots=True)
class Reads:
    """Names that a method of vLLM must look up at each call, because the adapter sets them before it."""

    file: str
    owner: str
    method: str
    names: tuple[str, ...]

    def lacking(self, source: VllmSource) -> Iterator[str]:
        """Yield in words what `source` lacks of this item."""
        mentioned = source.mentions(self.file, self.owner, self.method)
        yield from (f"{title(self.owner, self.method)} reading {name}" for name in self.names if name not in mentioned)


@dataclass(frozen=True, slots=True)
class Record:
    """A dataclass that the adapter makes with exactly these fields."""

    file: str
    owner: str
    fields: tuple[str, ...]

    def lacking(self, source: VllmSource) -> Iterator[str]:
        """Yield in words what `source` lacks of this item."""
        yield from Attributes(self.file, self.owner, self.fields).lacking(source)
        for name in sorted(source.required_fields(self.file, self.owner) - set(self.fields)):
            yield f"{self.owner} without the field {name}"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Methods of the class `owner` (None: functions) that the adapter relies on and never names: only read."""

    file: str
    owner: str | None
    methods: tuple[str, ...]

    def lacking(self, _: VllmSource) -> Iterator[str]:
        """Yield nothing: `reliance.changed` compares these."""
        yield from ()


Item = Method | Attributes | Names | Reads | Record | Behaviour

_METHOD = re.compile(r"(\w+)\((.*)\)(?: by (?:(\S+) (?:(\w+)\.)?)?(\w+))?")
"""Name, parameters, and the caller's file, class and name."""


def items(text: str) -> tuple[Item, ...]:
    """Return the items that `text` lists."""
    listed: list[Item] = []
    file, owner = "", ""
    for line in re.sub(r"\n {8,}", " ", text).splitlines():
        kind, _, rest = line.strip().partition(" ")
        if line.startswith(" "):
            listed.append(_item(file, owner, kind, rest))
        elif kind not in ("", "#"):
            file, owner = kind, rest
            listed += [] if owner else [Names(file)]
    return tuple(listed)


def _item(file: str, owner: str, kind: str, rest: str) -> Item:
    """Return the item of a line; `owner` is empty for a module."""
    names = tuple(rest.split())
    match kind:
        case "has":
            return Attributes(file, owner, names) if owner else Names(file, names)
        case "fields":
            return Record(file, owner, names)
        case "lookup":
            return Reads(file, owner, names[0].removesuffix(":"), names[1:])
        case "meaning":
            return Behaviour(file, owner or None, names)
    method = _METHOD.fullmatch(rest)
    assert method is not None, rest
    name, parameters, caller_file, caller_owner, caller = method.groups()
    by = (caller_file, caller_owner) if caller_file else (file, owner or None)
    takes = tuple(parameters.split(", ")) if parameters else ()
    return Method(file, owner or None, name, takes, Use(kind), (*by, caller) if caller else None)


def title(owner: str | None, name: str) -> str:
    """Return the name of a method with its class, or of a function."""
    return f"{owner}.{name}" if owner is not None else name

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
class Names:
    """Names that the class `owner` (None: the module) must have, or that its `method` must look up.

    `kind`: `has`; `fields`, the fields of a dataclass that the adapter makes with exactly these; `lookup`, names that
    the method looks up at each call, because the adapter sets them before it; `meaning`, methods, or functions, that
    the adapter relies on and never names (only `reliance.changed` compares them).
    """

    file: str
    owner: str | None
    kind: str
    names: tuple[str, ...] = ()
    method: str = ""

    def lacking(self, source: VllmSource) -> Iterator[str]:
        """Yield in words what `source` lacks of this item."""
        file, owner = self.file, self.owner
        if self.kind == "lookup":
            mentioned, where = source.mentions(file, owner, self.method), title(owner, self.method)
            yield from (f"{where} reading {name}" for name in self.names if name not in mentioned)
        if self.kind in ("lookup", "meaning"):
            return
        have = source.names(file) if owner is None else source.attributes(file, owner)
        if not have:
            yield owner or file
            return
        yield from (title(owner, name) if owner else f"{name} in {file}" for name in self.names if name not in have)
        if self.kind == "fields" and owner is not None:
            for name in sorted(source.required_fields(file, owner) - set(self.names)):
                yield f"{owner} without the field {name}"


Item = Method | Names

_METHOD = re.compile(r"(\w+)\((.*)\)(?: by (?:(\S+) (?:(\w+)\.)?)?(\w+))?")
"""Name, parameters, and the caller's file, class and name."""


def items(text: str) -> tuple[Item, ...]:
    """Return the items that `text` lists."""
    listed: list[Item] = []
    file, owner = "", None
    for line in re.sub(r"\n {8,}", " ", text).splitlines():
        kind, _, rest = line.strip().partition(" ")
        if line.startswith(" "):
            listed.append(_item(file, owner, kind, rest))
        elif kind not in ("", "#"):
            file, owner = kind, rest or None
            listed += [] if owner else [Names(file, None, "has")]
    return tuple(listed)


def _item(file: str, owner: str | None, kind: str, rest: str) -> Item:
    """Return the item of a line; `owner` is `None` for a module."""
    if kind in ("has", "fields", "meaning", "lookup"):
        method, _, names = rest.rpartition(": ")
        return Names(file, owner, kind, tuple(names.split()), method)
    matched = _METHOD.fullmatch(rest)
    assert matched is not None, rest
    name, parameters, caller_file, caller_owner, caller = matched.groups()
    by = (caller_file, caller_owner) if caller_file else (file, owner)
    takes = tuple(parameters.split(", ")) if parameters else ()
    return Method(file, owner, name, takes, Use(kind), (*by, caller) if caller else None)


def title(owner: str | None, name: str) -> str:
    """Return the name of a method with its class, or of a function."""
    return f"{owner}.{name}" if owner is not None else name

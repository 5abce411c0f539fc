"""The value of a header with parameters, `kind; name=value; name="value"`, as RFC 9110 and RFC 2183 have it. Pure.

In any order, of any names, tokens or quoted. What could be read in two ways is not read at all: a name twice, a quote
that is not closed, anything between a value and the next semicolon.
"""

import re
from typing import Final

_KIND: Final = re.compile(rb"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z/-]+)[ \t]*")
_PARAMETER: Final = re.compile(
    rb";[ \t]*(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:\"((?:[^\"\\]|\\.)*+)\"|([^ \t;\"\\]+)))?[ \t]*", re.DOTALL
)


class Parameters:
    """`kind` in lower case, and the `values` by name in lower case; escapes in quoted ones stay as they came."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: bytes, values: dict[bytes, bytes]) -> None:
        self.kind = kind
        self.values = values


def read_parameters(text: bytes) -> Parameters | None:
    """Return what `text` says; `None` when it is no such value."""
    kind = _KIND.match(text)
    if kind is None:
        return None
    values: dict[bytes, bytes] = {}
    at = kind.end()
    while at < len(text):
        found = _PARAMETER.match(text, at)
        if found is None:
            return None
        at = found.end()
        if found[1] is None:
            continue  # a semicolon with nothing behind it
        name = found[1].lower()
        if name in values:
            return None
        values[name] = found[2] if found[2] is not None else found[3]
    return Parameters(kind[1].lower(), values)

"""A header value with parameters, `kind; name=value; name="value"` (RFC 9110, RFC 2183). Pure.

The parameters may have any order and names; values are tokens or quoted. A value that can be read in two ways is not
read at all: a name twice, an unclosed quote, anything between a value and the next semicolon.
"""

import re
from typing import Final

_KIND: Final = re.compile(rb"[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z/-]+)[ \t]*")
_PARAMETER: Final = re.compile(
    rb";[ \t]*(?:([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:\"((?:[^\"\\]|\\.)*+)\"|([^ \t;\"\\]+)))?[ \t]*", re.DOTALL
)


class Parameters:
    """`kind` in lower case, and `values` by name in lower case. Escapes in quoted values are kept."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: bytes, values: dict[bytes, bytes]) -> None:
        self.kind = kind
        self.values = values


def read_parameters(text: bytes) -> Parameters | None:
    """Return the parsed `text`; `None` when it is malformed."""
    kind = _KIND.match(text)
    if kind is None:
        return None
    values: dict[bytes, bytes] = {}
    at = kind.end()
    while at < len(text):
        parameter = _PARAMETER.match(text, at)
        if parameter is None:
            return None
        at = parameter.end()
        if parameter[1] is None:
            continue  # a semicolon without a parameter
        name = parameter[1].lower()
        if name in values:
            return None
        values[name] = parameter[2] if parameter[2] is not None else parameter[3]
    return Parameters(kind[1].lower(), values)

"""The most that K may be for one request: what its client asks for, clamped by its API key.

The smallest of these that are there: the header `x-specpilot-k-max`, the body's `vllm_xargs.k_max`, the key's `k_max`.
0 switches speculation off for the request. The engine applies it (`engine_adapter.plan.planner`): K of the request
follows its schedule up to there. Pure.
"""

from typing import Any, Final

from specpilot.gateway.wire.body import CEILING_FIELD, XARGS
from specpilot.gateway.wire.errors import InvalidFieldError
from specpilot.gateway.wire.heads import K_MAX_HEADER
from specpilot.policy.types import K_LIMIT

_DIGITS: Final = 4


def ceiling_of(header: bytes | None, body: dict[str, Any], of_key: int | None) -> int | None:
    """Return the ceiling of a request; `None`: there is none. Raises `InvalidFieldError`.

    `header` is what the request's says, `body` as parsed, `of_key` the ceiling of its API key.
    """
    found = of_key
    arguments = body.get(XARGS)
    if type(arguments) is dict and CEILING_FIELD in arguments:
        asked = arguments[CEILING_FIELD]
        found = _least(found, _checked(asked if type(asked) is int else None, f"{XARGS}.{CEILING_FIELD}"))
    if header is not None:
        name = K_MAX_HEADER.decode()
        is_number = header.isdigit() and len(header) <= _DIGITS
        found = _least(found, _checked(int(header) if is_number else None, f"the header {name}", name))
    return found


def _checked(asked: int | None, said: str, param: str | None = None) -> int:
    if asked is None or not 0 <= asked <= K_LIMIT:
        message = f"{said} must be a whole number from 0 to {K_LIMIT}; 0 switches speculation off for this request"
        raise InvalidFieldError(message, param=param or said)
    return asked


def _least(found: int | None, asked: int) -> int:
    return asked if found is None else min(found, asked)

"""The ceiling on K of one request: the client's value, limited by its API key. Pure.

It is the smallest of the present ones among the header `x-specpilot-k-max`, the body's `vllm_xargs.k_max` and the key's
`k_max`. 0 switches speculation off for the request. The engine applies the ceiling (`engine_adapter.plan.planner`): it
limits the request's K to this value.
"""

from typing import Any, Final

from specpilot.gateway.wire.body_fields import CEILING_FIELD, XARGS
from specpilot.gateway.wire.errors import InvalidFieldError
from specpilot.gateway.wire.heads import K_MAX_HEADER
from specpilot.policy.names import K_LIMIT

_DIGITS: Final = 4


def ceiling_of(header: bytes | None, body: dict[str, Any], of_key: int | None) -> int | None:
    """Return the ceiling of a request; `None` when there is none. Raises `InvalidFieldError`.

    `header` is the value of the request's header, `body` the parsed body, `of_key` the ceiling of its API key.
    """
    ceiling = of_key
    arguments = body.get(XARGS)
    if type(arguments) is dict and CEILING_FIELD in arguments:
        stated = arguments[CEILING_FIELD]
        ceiling = _least(ceiling, _checked(stated if type(stated) is int else None, f"{XARGS}.{CEILING_FIELD}"))
    if header is not None:
        name = K_MAX_HEADER.decode()
        is_number = header.isdigit() and len(header) <= _DIGITS
        ceiling = _least(ceiling, _checked(int(header) if is_number else None, f"the header {name}", name))
    return ceiling


def _checked(stated: int | None, place: str, param: str | None = None) -> int:
    if stated is None or not 0 <= stated <= K_LIMIT:
        message = f"{place} must be a whole number from 0 to {K_LIMIT}; 0 switches speculation off for this request"
        raise InvalidFieldError(message, param=param or place)
    return stated


def _least(ceiling: int | None, stated: int) -> int:
    return stated if ceiling is None else min(ceiling, stated)

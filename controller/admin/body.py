"""Reads the JSON object that a caller of the admin API sent, within a size limit, and reports its faults."""

from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request

from specpilot.controller.admin.audited import Write, Writing
from specpilot.controller.admin.problems import ApiError, invalid
from specpilot.policy.codec import decode, from_plain, schema
from specpilot.policy.errors import Fault, InvalidDocumentError

T = TypeVar("T")
LARGEST_BODY_BYTES = 1 << 20
_DISCARDED_BYTES = 64 << 20
"""Bytes of a too large body that are read and dropped: a client that is disconnected while it sends may not read the
reply."""


def body_schema(shape: type[object] | dict[str, Any], *, is_required: bool = True) -> dict[str, Any]:
    """Return the OpenAPI description of a body of this shape: a type, or a schema.

    The routes read their bodies themselves, not through FastAPI, so that every fault is reported in our envelope.
    """
    plain = shape if isinstance(shape, dict) else schema(shape)
    return {"requestBody": {"required": is_required, "content": {"application/json": {"schema": plain}}}}


async def _body_of(request: Request) -> bytes:
    body, size = b"", 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= LARGEST_BODY_BYTES:
            body += chunk
        elif size > _DISCARDED_BYTES:
            break
    if size > LARGEST_BODY_BYTES:
        message = f"the body is larger than {LARGEST_BODY_BYTES} bytes, the limit; send a smaller document"
        raise ApiError(413, "body_too_large", message)
    return body


async def _object_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of `request`; an empty body is an empty object. Raises `ApiError`."""
    body = await _body_of(request)
    try:
        return decode(dict, body or b"{}")
    except InvalidDocumentError as error:
        raise invalid(error.faults, "JSON object") from error


Body = Annotated[dict[str, Any], Depends(_object_of)]
"""The parameter of a handler that takes a document, after that of `Writing`: faults of the call come first."""


def document_from(kind: type[T], plain: dict[str, Any], label: str, now: float | None = None) -> T:
    """Return `plain` as a value of type `kind`; raises `ApiError` with all its faults, under the name `label`.

    `now` (Unix seconds) is for kinds with an expiry.
    """
    try:
        return from_plain(kind, plain, now)
    except InvalidDocumentError as error:
        raise invalid(error.faults, label) from error


def _write_alone(write: Writing, plain: Body) -> Write:
    """Return the parameters of a write that takes no document; a FastAPI dependency.

    Raises `ApiError` for a body with fields, because they would have no effect.
    """
    if plain:
        raise invalid([Fault(name, "is not known; this call takes no document") for name in plain], "call")
    return write


WritingAlone = Annotated[Write, Depends(_write_alone)]
"""The parameter of a handler that writes and takes no document."""

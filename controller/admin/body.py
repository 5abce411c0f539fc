"""Reads the JSON object that a caller of the admin API sent, within a size limit."""

from typing import Any

from fastapi import Request

from specpilot.controller.admin.problems import ApiError, invalid
from specpilot.policy.codec import decode
from specpilot.policy.errors import InvalidDocumentError

LARGEST_BODY_BYTES = 1 << 20


def body_schema(schema: dict[str, Any], *, is_required: bool = True) -> dict[str, Any]:
    """Return what tells the OpenAPI page of a body.

    The routes read their bodies themselves, so that every fault is told in our envelope.
    """
    return {"requestBody": {"required": is_required, "content": {"application/json": {"schema": schema}}}}


async def _body_of(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            raise ApiError(413, "body_too_large", f"the body is larger than {LARGEST_BODY_BYTES} bytes")
    return body


async def object_of(request: Request) -> dict[str, Any]:
    """Return the JSON object in `request`'s body; nothing counts as an empty one. Raises `ApiError`."""
    body = await _body_of(request)
    try:
        return decode(dict, body or b"{}")
    except InvalidDocumentError as error:
        raise invalid(error.faults, "JSON object") from error

"""The admin API's errors, in one envelope: `{"error": {"message", "type", "param", "code"}}`.

Every error is an `ApiError` or is translated into one here, so that all replies have this shape.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specpilot.policy.access import is_id
from specpilot.policy.codec import plain_words
from specpilot.policy.errors import Fault, InvalidDocumentError, StoreUnavailableError, VersionConflictError

RETRY_AFTER_S = 2


class ApiError(Exception):
    """An error reply: status, code for programs, message for people, the fields at fault."""

    def __init__(  # noqa: PLR0913 - the parts of the envelope, most of them optional
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        faults: Sequence[Fault] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.faults = tuple(faults)
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """Return the error as a response."""
        error: dict[str, Any] = {
            "message": str(self),
            "type": "invalid_request_error" if self.status < 500 else "server_error",  # noqa: PLR2004 - HTTP's own line
            "param": self.param,
            "code": self.code,
        }
        if self.faults:
            error["faults"] = [{"field": fault.field, "problem": fault.problem} for fault in self.faults]
        return JSONResponse({"error": error}, status_code=self.status, headers=self.headers)


def invalid(faults: Sequence[Fault], kind: str) -> ApiError:
    """Return the error for a document with faults."""
    message = f"this is no valid {kind}: " + "; ".join(str(fault) for fault in faults)
    return ApiError(422, "invalid_document", message, param=faults[0].field if faults else None, faults=faults)


def unknown_id(kind: str, item_id: str) -> ApiError:
    """Return the error for an id that no `kind` has. What may be a secret in an id's place is not repeated."""
    named = repr(item_id) if is_id(item_id) else "of this id"
    return ApiError(404, f"{kind}_not_found", f"there is no {kind} {named}", param=f"{kind}_id")


def refusal_of(error: Exception) -> ApiError | None:
    """Return `error` translated into an `ApiError`; `None` for an unexpected one."""
    for kind, translate in _TRANSLATIONS.items():
        if isinstance(error, kind):
            return translate(error)
    return None


def _of_http(error: Any) -> ApiError:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return ApiError(error.status_code, code, str(error.detail), headers=error.headers)


def _of_request(error: Any) -> ApiError:
    return invalid([Fault(str(item["loc"][-1]), plain_words(item["msg"])) for item in error.errors()], "request")


def _of_store(error: Any) -> ApiError:
    message = f"{error}. The engines keep their K; try again shortly."
    return ApiError(503, "store_unavailable", message, headers={"Retry-After": str(RETRY_AFTER_S)})


_TRANSLATIONS: dict[type[Exception], Callable[[Any], ApiError]] = {
    ApiError: lambda error: error,
    HTTPException: _of_http,
    RequestValidationError: _of_request,
    StoreUnavailableError: _of_store,
    InvalidDocumentError: lambda error: ApiError(
        500,
        "invalid_stored_document",
        f"Redis holds a document that cannot be read; repair or delete it there: {error}",
    ),
    VersionConflictError: lambda error: ApiError(412, "version_conflict", str(error), param="If-Match"),
    ClientDisconnect: lambda _: ApiError(400, "client_disconnected", "the connection ended before the body did"),
}


def install(app: FastAPI) -> None:
    """Make `app` answer every failure in the envelope."""

    async def answer(_: Request, error: Exception) -> JSONResponse:
        refusal = refusal_of(error)
        assert refusal is not None
        return refusal.response()

    for kind in _TRANSLATIONS:
        app.add_exception_handler(kind, answer)

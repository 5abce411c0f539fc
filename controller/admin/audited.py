"""Writes one audit entry for every write of the admin API, also for one that failed or was rejected.

The route class of `audited` writes the entry around each handler, so that no handler can omit it. A handler adds the
changed fields and the caller's comment to the `Note` of its request. A dry run has no entry, unless it was rejected
for its token or role.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute

from specpilot.controller.admin.access import Caller
from specpilot.controller.admin.problems import ApiError, invalid, refusal_of
from specpilot.policy.access import is_id
from specpilot.policy.audit import AuditEntry, Result, bounded
from specpilot.policy.clock import Clock
from specpilot.policy.codec import encode
from specpilot.policy.errors import Fault, PolicyError
from specpilot.policy.history import COMMENT_LIMIT, Change, Difference, VersionCause
from specpilot.policy.store import Store

AUDIT_LOGGER = "specpilot.audit"
"""The logger of the entries, one line of JSON each."""

NOTICE = "x-specpilot-notice"
"""The header of a reply to a write that counts, with what the caller should know."""

_NOT_LET_IN = (401, 403)
_IDS = ("key_id", "token_id")
_QUERY = ("validate_only", "comment")
_log = logging.getLogger(__name__)
_audit_log = logging.getLogger(AUDIT_LOGGER)


@dataclass(slots=True)
class Note:
    """The handler's part of the audit entry of its call."""

    subject: str
    comment: str = ""
    changes: Sequence[Difference] = ()
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """The parameters of every write besides its body: the caller, the comment, and whether it is a dry run."""

    caller: Caller
    note: Note

    @property
    def is_dry_run(self) -> bool:
        """Whether the call is a dry run, which writes nothing."""
        return self.note.is_dry_run

    def change(self, cause: VersionCause) -> Change:
        """Return the entry for a policy's history."""
        return Change(self.caller.name, cause, self.note.comment)


def write_of(
    request: Request,
    *,
    validate_only: Annotated[bool, Query(description="a dry run: return the effect, and write nothing")] = False,
    comment: Annotated[str, Query(max_length=COMMENT_LIMIT, description="the purpose; goes into the audit")] = "",
) -> Write:
    """Return the parameters of a write; a FastAPI dependency."""
    note = note_of(request)
    note.comment, note.is_dry_run = comment, validate_only
    unknown = [name for name in request.query_params if name not in _QUERY]
    if unknown:  # a misspelt `validate_only` must not write
        raise invalid([Fault(name, f"is not known; give {', '.join(_QUERY)} or nothing") for name in unknown], "query")
    return Write(request.state.caller, note)


Writing = Annotated[Write, Depends(write_of)]
"""The parameter of a handler that writes."""


class AuditTrail:
    """Writes entries to the log, then to Redis. An entry that Redis does not store is in the log."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def tell(self, response: Response) -> None:
        """Add to the reply to a write that it was not announced, if so."""
        fault = self._store.unannounced()
        if fault is not None:
            text = f"written, but not announced; other parts see it when they poll Redis: {fault}"
            response.headers[NOTICE] = text.encode("ascii", "replace").decode()

    def append(self, entry: AuditEntry) -> None:
        """Write `entry`; blocks for the store's time-out at most, and does not raise."""
        _audit_log.info(encode(entry).decode())
        try:
            self._store.append_audit(entry)
        except PolicyError as error:
            _log.error("an audit entry is in the log only: %s", error)

    async def record(self, request: Request, action: str, status: int, refusal: ApiError | None) -> None:
        """Write the entry of a call whose reply has `status`."""
        note = note_of(request)
        caller: Caller | None = getattr(request.state, "caller", None)
        changes, left_out = bounded(note.changes if refusal is None else ())
        entry = AuditEntry(
            at=self._clock.now(),
            who=caller.name if caller else "unknown",
            role=caller.role.value if caller else "",
            source=request.client.host if request.client else "",
            action=action,
            subject=note.subject[:256],
            result=_result(status) if caller else Result.REFUSED,  # no caller: rejected for its token
            status=status,
            code=refusal.code if refusal else "",
            message=str(refusal)[:1000] if refusal else "",
            comment=note.comment,
            changes=changes,
            changes_left_out=left_out,
        )
        await asyncio.to_thread(self.append, entry)


def note_of(request: Request) -> Note:
    """Return the note of a call of an audited route. Its subject is no text in an id's place that may be a secret."""
    if not hasattr(request.state, "note"):
        name, subject = next(iter(request.path_params.items()), ("", ""))
        request.state.note = Note("" if name in _IDS and not is_id(subject) else subject)
    note: Note = request.state.note
    return note


def audited(trail: AuditTrail) -> type[APIRoute]:
    """Return the route class whose writes go into `trail`."""

    class AuditedRoute(APIRoute):
        """A route that adds an audit entry for each write."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the handler with the audit around it."""
            handle = super().get_route_handler()
            if self.methods <= {"GET", "HEAD"}:
                return handle
            action = self.name

            async def call(request: Request) -> Response:
                try:
                    response = await handle(request)
                except Exception as error:
                    refusal = refusal_of(error)
                    status = refusal.status if refusal else 500
                    if not note_of(request).is_dry_run or status in _NOT_LET_IN:
                        await trail.record(request, action, status, refusal or _unforeseen(error))
                    raise
                if not note_of(request).is_dry_run:
                    await trail.record(request, action, response.status_code, None)
                    trail.tell(response)
                return response

            return call

    return AuditedRoute


def _unforeseen(error: Exception) -> ApiError:
    return ApiError(500, "internal_error", f"an unexpected error: {type(error).__name__}")


def _result(status: int) -> Result:
    if status < 400:  # noqa: PLR2004 - HTTP's own line
        return Result.DONE
    return Result.REFUSED if status < 500 else Result.FAILED  # noqa: PLR2004 - HTTP's own line

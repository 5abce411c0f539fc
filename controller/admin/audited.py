"""Writes one audit entry for every write of the admin API, also for one that failed or was rejected.

The route class of `audited` writes the entry around each handler, so that no handler can omit it. It also answers dry
runs, and wakes the loop after each write.

A dry run is rejected like the write, with every fault by its field. Otherwise the reply has the fields that would
change and, if K may change, a forecast: engines of each pool say what they would choose under the new policy. A dry run
has no entry, unless it was rejected for its token or role.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Query, Request, Response
from fastapi.datastructures import DefaultPlaceholder
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from specpilot.controller.admin.access import Caller
from specpilot.controller.admin.asking import Asked
from specpilot.controller.admin.problems import ApiError, invalid, refusal_of
from specpilot.controller.admin.replies import refusals
from specpilot.policy.access import is_id
from specpilot.policy.audit import AuditEntry, Result, bounded
from specpilot.policy.clock import Clock
from specpilot.policy.codec import encode, to_plain
from specpilot.policy.errors import Fault, PolicyError
from specpilot.policy.freeze import EVERYTHING
from specpilot.policy.history import COMMENT_LIMIT, Change, Difference, VersionCause
from specpilot.policy.store import Store

AUDIT_LOGGER = "specpilot.audit"
"""The logger of the entries, one line of JSON each."""

NOTICE = "x-specpilot-notice"
"""The header of a reply to a write that counts, with what the caller should know."""

_NOT_LET_IN = (401, 403)
_READS = {"GET", "HEAD"}
_IDS = ("key_id", "token_id")
_SUBJECTS = {"/admin/freezes": EVERYTHING, "/admin/model-routes": "model-routes"}
"""What a write is about if its path names nothing."""
_QUERY = ("validate_only", "comment")
_log = logging.getLogger(__name__)
_audit_log = logging.getLogger(AUDIT_LOGGER)


Forecast = Callable[[], Awaitable[Sequence[Asked]]]
"""Asks engines what they would choose; raises `StoreUnavailableError`."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The answer to `?validate_only=true`.

    `version` is the version that the document would get, `None` if it has none.
    """

    dry_run: bool
    subject: str
    version: int | None
    changes: tuple[Difference, ...]
    forecast: tuple[Asked, ...] | None = None


class DryRunEnded(Exception):  # noqa: N818 - no error
    """Ends a dry run where its write would begin."""

    def __init__(self, effect: DryRun, forecast: Forecast | None) -> None:
        super().__init__(effect.subject)
        self.effect = effect
        self.forecast = forecast


@dataclass(slots=True)
class Write:
    """A call that writes: its parameters besides the body, and what its audit entry says of it."""

    subject: str
    caller: Caller | None
    comment: str = ""
    is_dry_run: bool = False
    changes: Sequence[Difference] = ()

    @property
    def author(self) -> str:
        """The caller's name."""
        return self.caller.name if self.caller else "unknown"

    def change(self, cause: VersionCause) -> Change:
        """Return the entry for a policy's history."""
        return Change(self.author, cause, self.comment)

    def begin(
        self,
        changes: Sequence[Difference],
        version: int | None = None,
        *,
        subject: str | None = None,
        forecast: Forecast | None = None,
    ) -> None:
        """State the changes that the handler writes after this; a dry run ends here, with a reply about them.

        `version` is the one that the document gets, `subject` what is written if the path does not say that.
        """
        self.subject = self.subject if subject is None else subject
        if self.is_dry_run:
            raise DryRunEnded(DryRun(True, self.subject, version, tuple(changes)), forecast)
        self.changes = changes


def write_of(
    request: Request,
    *,
    validate_only: Annotated[bool, Query(description="a dry run: return the effect, and write nothing")] = False,
    comment: Annotated[str, Query(max_length=COMMENT_LIMIT, description="the purpose; goes into the audit")] = "",
) -> Write:
    """Return the parameters of a write; a FastAPI dependency."""
    write = _stated(request)
    write.comment, write.is_dry_run = comment, validate_only
    unknown = [name for name in request.query_params if name not in _QUERY]
    if unknown:  # a misspelt `validate_only` must not write
        raise invalid([Fault(name, f"is not known; give {', '.join(_QUERY)} or nothing") for name in unknown], "query")
    return write


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
        write = _stated(request)
        changes, left_out = bounded(write.changes if refusal is None else ())
        entry = AuditEntry(
            at=self._clock.now(),
            who=write.author,
            role=write.caller.role.value if write.caller else "",
            source=request.client.host if request.client else "",
            action=action,
            subject=write.subject[:256],
            result=_result(status) if write.caller else Result.REFUSED,  # no caller: rejected for its token
            status=status,
            code=refusal.code if refusal else "",
            message=str(refusal)[:1000] if refusal else "",
            comment=write.comment,
            changes=changes,
            changes_left_out=left_out,
        )
        await asyncio.to_thread(self.append, entry)


def _stated(request: Request) -> Write:
    """Return what a call of an audited route states. Its subject is no text in an id's place that may be a secret."""
    if not hasattr(request.state, "write"):
        name, subject = next(iter(request.path_params.items()), ("", _SUBJECTS.get(request.url.path, "")))
        caller = getattr(request.state, "caller", None)
        request.state.write = Write("" if name in _IDS and not is_id(subject) else subject, caller)
    write: Write = request.state.write
    return write


def audited(trail: AuditTrail, on_change: Callable[[], None]) -> type[APIRoute]:
    """Return the route class whose writes go into `trail`, and call `on_change`."""

    class AuditedRoute(APIRoute):
        """A route that adds an audit entry for each write, and replies to dry runs."""

        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
            """Add to the description of a write what all writes may reply: a dry run, and that its body is too large.

            Options are those of `APIRoute`.
            """
            if not _READS.issuperset(options["methods"]):
                options["responses"] = {**refusals(413), **options["responses"]}
                if options["status_code"] is None:
                    reply = options["response_model"]
                    reply = endpoint.__annotations__["return"] if isinstance(reply, DefaultPlaceholder) else reply
                    options["response_model"] = reply | DryRun
                else:
                    options["responses"][200] = {"model": DryRun}
            super().__init__(path, endpoint, **options)

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """Return the handler with the audit around it."""
            handle = super().get_route_handler()
            if self.methods <= _READS:
                return handle
            action = self.name

            async def call(request: Request) -> Response:
                try:
                    response = await handle(request)
                except DryRunEnded as ended:
                    forecast = None if ended.forecast is None else tuple(await ended.forecast())
                    return JSONResponse(to_plain(replace(ended.effect, forecast=forecast)))
                except Exception as error:
                    refusal = refusal_of(error)
                    status = refusal.status if refusal else 500
                    if not _stated(request).is_dry_run or status in _NOT_LET_IN:
                        await trail.record(request, action, status, refusal or _unforeseen(error))
                    raise
                on_change()
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

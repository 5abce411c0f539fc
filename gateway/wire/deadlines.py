"""Bounds on one request, and its expired time-outs. Pure: `now` and all times are monotonic seconds."""

from dataclasses import dataclass
from typing import Final

STREAM_CONTENT: Final = "stream_content"
BEFORE_CONTENT: Final[tuple[str, ...]] = ("first_byte", "stream_first_byte", STREAM_CONTENT)
"""Time-outs after which another engine may still answer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes and seconds, the settings of the same names."""

    max_body_bytes: int
    max_bodies_bytes: int
    connect_timeout_s: float
    first_byte_timeout_s: float
    stream_first_byte_timeout_s: float
    stream_content_timeout_s: float
    idle_timeout_s: float
    total_timeout_s: float
    request_timeout_s: float
    body_timeout_s: float
    max_connections: int
    keep_alive_s: float
    queue_timeout_s: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """An expired time-out: `name` as in `--<name>-timeout-s`, and its length."""

    name: str
    limit_s: float

    def __str__(self) -> str:
        shown, flag = self.name.replace("_", " "), self.name.replace("_", "-")
        return f"the {shown} time-out of {self.limit_s:g} s is over (--{flag}-timeout-s)"


def overdue(  # noqa: PLR0911, PLR0913 - one return a time-out; a phase, the clock and three times
    bounds: Bounds, phase: str, now: float, *, last_at: float, received_at: float, sent_at: float, is_stream: bool
) -> Overdue | None:
    """Return the expired time-out of a request in `phase`; `None` when there is none.

    `last_at` is the time at which the client or engine last sent something. `received_at` is the time at which the
    request was complete, or began if it is not complete yet. `sent_at` is the time at which it was sent to the engine.
    A stream has bounds of its own, because it needs no complete answer: on each silence before its first content, which
    any byte ends (an engine that prefills may send keep-alives), and on the time to that content. The time-out for
    connecting is enforced where the connection is made.
    """
    if phase == "request":
        if now - received_at > bounds.body_timeout_s:
            return Overdue("body", bounds.body_timeout_s)
        is_over = now - last_at > bounds.request_timeout_s
        return Overdue("request", bounds.request_timeout_s) if is_over else None
    if phase == "queue":
        return Overdue("queue", bounds.queue_timeout_s) if now - received_at > bounds.queue_timeout_s else None
    if now - received_at > bounds.total_timeout_s:
        return Overdue("total", bounds.total_timeout_s)
    if phase == "wait":
        name, limit_s = "first_byte", bounds.first_byte_timeout_s
        if not is_stream:
            return Overdue(name, limit_s) if now - sent_at > limit_s else None
        if now - sent_at > bounds.stream_content_timeout_s:
            return Overdue(STREAM_CONTENT, bounds.stream_content_timeout_s)
        if bounds.stream_first_byte_timeout_s < limit_s:
            name, limit_s = "stream_first_byte", bounds.stream_first_byte_timeout_s
        return Overdue(name, limit_s) if now - max(sent_at, last_at) > limit_s else None
    if phase == "response" and now - last_at > bounds.idle_timeout_s:
        return Overdue("idle", bounds.idle_timeout_s)
    return None

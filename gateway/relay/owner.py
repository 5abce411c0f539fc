"""The interfaces of a request and its client's connection to the modules below them, and of the pages to both."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.wire.errors import GatewayError
from specpilot.gateway.wire.heads import RequestHead


class Connection(Protocol):
    """An open connection of a client. `is_stalled`: the client reads more slowly than the gateway writes."""

    client_host: str | None
    is_stalled: bool
    write: Callable[[bytes], None]

    def reset(self) -> None:
        """Close at once, so that the response does not look complete."""

    def finished(self) -> None:
        """The response of an exchange has ended."""

    def sweep(self, now: float) -> None:
        """Act on each time-out that has expired at `now`, in monotonic seconds."""

    def shutdown(self) -> None:
        """The server ends: close the connection, after the answer under way if there is one."""


class Request(Protocol):
    """A request under way. `keep_alive`: the client's connection may serve another request afterwards."""

    keep_alive: bool

    def header_lines(self) -> bytes:
        """Return the gateway's header lines for the client."""

    def local_reply(self, error: GatewayError) -> None:
        """Answer with `error`. Nothing has been sent to the client before."""

    def fail(self, error: Exception) -> None:
        """Answer with the client's form of `error`, and log a fault of the gateway."""

    def end_with(self, error: GatewayError) -> None:
        """End with `error`, in the best form that is still possible."""

    def engine_ejected(self, engine: Engine) -> None:
        """`engine` was ejected because it does not answer."""

    def body_released(self) -> None:
        """The request's body is no longer held."""

    def finish(self, *, is_reset: bool = False) -> None:
        """The response has ended. `is_reset`: close the client's connection, as the response is not complete."""

    def sweep(self, now: float) -> None:
        """Act on each time-out that has expired at `now`, in monotonic seconds."""


class Pages(Protocol):
    """What the gateway answers itself."""

    def reply(
        self, head: RequestHead, target: bytes, fields: list[tuple[bytes, bytes]], *, keep_alive: bool
    ) -> Coroutine[Any, Any, bytes]:
        """Return the whole response to a request for `target` with the headers `fields`. Raises nothing."""

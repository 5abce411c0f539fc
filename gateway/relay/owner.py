"""The interfaces of a relay to its request, and of both to the client's connection."""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from specpilot.gateway.wire.errors import GatewayError
from specpilot.gateway.wire.heads import RequestHead


class ResponseSink(Protocol):
    """The client's connection."""

    @property
    def client_host(self) -> str | None:
        """The address of the client, or of the proxy in front."""

    @property
    def is_stalled(self) -> bool:
        """Whether the client reads more slowly than the gateway writes."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Sends bytes to the client."""


class ClientSide(ResponseSink, Protocol):
    """The client's connection, for the request that is being answered."""

    def reset(self) -> None:
        """Close the client's connection at once, so that the response does not look complete."""

    def finished(self) -> None:
        """The response has ended."""


class RelayOwner(Protocol):
    """The request of a relay. `keep_alive`: the client's connection may serve another request afterwards."""

    keep_alive: bool

    def header_lines(self) -> bytes:
        """Return the gateway's header lines for the client."""

    def local_reply(self, error: GatewayError) -> None:
        """Answer with `error`. Nothing has been sent to the client before."""

    def fail(self, error: Exception) -> None:
        """Answer with the client's form of `error`, and log a fault of the gateway."""

    def body_released(self) -> None:
        """The request's body is no longer held."""

    def finish(self, *, is_reset: bool = False) -> None:
        """The response has ended. `is_reset`: close the client's connection, as the response is not complete."""


class Pages(Protocol):
    """What the gateway answers itself."""

    def reply(
        self, head: RequestHead, target: bytes, fields: list[tuple[bytes, bytes]], *, keep_alive: bool
    ) -> Coroutine[Any, Any, bytes]:
        """Return the whole response to a request for `target` with the headers `fields`. Raises nothing."""

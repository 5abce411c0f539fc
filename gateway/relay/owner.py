"""What a relay asks of the request that it serves, and of the client's connection."""

from collections.abc import Callable
from typing import Protocol

from specpilot.gateway.wire.errors import GatewayError


class ResponseSink(Protocol):
    """The client's connection, as a relay sees it."""

    @property
    def client_host(self) -> str | None:
        """The address of the client, or of the proxy before it."""

    @property
    def is_stalled(self) -> bool:
        """Whether the client reads more slowly than it is written to."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Sends to the client."""


class RelayOwner(Protocol):
    """Whose request it is. `keep_alive`: the client's connection may serve another request after this one."""

    keep_alive: bool

    def own_lines(self) -> bytes:
        """Return the gateway's header lines for the client."""

    def local_reply(self, error: GatewayError) -> None:
        """Answer with `error`: nothing has been said to the client before."""

    def fail(self, error: Exception) -> None:
        """Answer with what `error` is to a client, and log it if it is a fault of the gateway."""

    def body_released(self) -> None:
        """The request's body is no longer held."""

    def finish(self, *, is_reset: bool = False) -> None:
        """The response is over; `is_reset`: close the client's connection, so that it takes nothing for whole."""

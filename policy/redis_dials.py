"""Connections to Redis that detect a change of the server behind an address.

An address may lead to another server after a fail-over (a balancer, a cloud service). The connections to the old server
stay open, and it refuses every write. Some answers come only from a server that is not the primary, not yet the
primary, or cannot write: `READONLY`, `LOADING`, `MASTERDOWN`, `NOREPLICAS`, `CLUSTERDOWN`, `MISCONF`. Such an answer
closes the connection; each other connection of the same client is closed before its next command. The rejected command
was not executed, so the client's one retry repeats it on a new connection.
"""

import re
from typing import Any, Final

import redis

_NOT_THE_PRIMARY: Final = re.compile(r"(?:^|[ -])(?:READONLY|LOADING|MASTERDOWN|NOREPLICAS|MISCONF)\b")
"""Before Redis 7, an error in a script contains the word within another message."""
_KINDS: Final = (
    redis.ReadOnlyError,
    redis.BusyLoadingError,
    redis.exceptions.MasterDownError,
    redis.exceptions.ClusterDownError,
)


class Dials:
    """Counts the changes of servers of one client. Connections dialled before the last change are not usable."""

    def __init__(self) -> None:
        self.epoch = 0

    def changed(self, epoch: int) -> None:
        """Report that connections dialled in `epoch` do not lead to the primary."""
        if epoch == self.epoch:  # otherwise another connection has reported it already
            self.epoch += 1


class _Redialled:
    """A mixin for each kind of redis-py's connections."""

    def __init__(self, *, dials: Dials, **options: Any) -> None:
        self._dials = dials
        self._epoch = dials.epoch
        super().__init__(**options)
        self.register_connect_callback(self._on_dialled)  # type: ignore[attr-defined]

    def _on_dialled(self, _: Any) -> None:
        self._epoch = self._dials.epoch

    def connect(self) -> None:
        if self._epoch != self._dials.epoch:
            self.disconnect()  # type: ignore[attr-defined]
        super().connect()  # type: ignore[misc]

    def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_response(*arguments, **options)  # type: ignore[misc]
        except redis.RedisError as error:
            if not isinstance(error, _KINDS) and _NOT_THE_PRIMARY.search(str(error)) is None:
                raise
            self._dials.changed(self._epoch)
            self.disconnect()  # type: ignore[attr-defined]
            message = f"the server is not the primary, not yet, or cannot write: {error}"
            raise redis.ConnectionError(message) from error


def watch(pool: Any, dials: Dials) -> None:
    """Assign every connection that `pool` makes from now on to `dials`."""
    kind = pool.connection_class
    pool.connection_class = type(kind.__name__, (_Redialled, kind), {})
    pool.connection_kwargs["dials"] = dials

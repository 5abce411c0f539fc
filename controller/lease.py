"""Whether this controller leads: one does, the others stand by and keep learning.

The lease is renewed at every tick. A tick that finds Redis silent leads no further than the lease it holds would
have lasted: after that somebody else may lead, so nothing is published until the lease is renewed. The fence in each
write makes sure of it in Redis itself.
"""

import logging

from policy.clock import Clock
from policy.store import Store
from policy.types import Lease

TTL_S = 3.0
_log = logging.getLogger(__name__)


class Leadership:
    """The lease of one controller. Not shared between threads at the same time."""

    def __init__(self, store: Store, holder: str, clock: Clock) -> None:
        self._store = store
        self._holder = holder
        self._clock = clock
        self._lease: Lease | None = None
        self._valid_until = float("-inf")

    @property
    def lease(self) -> Lease | None:
        """The lease, while it is certainly ours; `None` in stand-by."""
        return self._lease if self._clock.monotonic() < self._valid_until else None

    def renew(self) -> Lease | None:
        """Ask for the lease; blocks for the store's time-out at most. Raises `StoreUnavailableError`."""
        asked_at = self._clock.monotonic()
        found = self._store.acquire_lease(self._holder, TTL_S)
        if (found is None) != (self._lease is None):
            _log.info("%s: %s", self._holder, "standing by" if found is None else f"leading, fence {found.fence}")
        self._lease = found
        self._valid_until = asked_at + TTL_S if found else float("-inf")
        return found

    def stand_down(self) -> None:
        """Forget the lease: somebody else has led since."""
        if self._lease is not None:
            _log.warning("%s: another controller leads: standing by", self._holder)
        self._lease = None
        self._valid_until = float("-inf")

    def release(self) -> None:
        """Give the lease up so that a stand-by can lead at once."""
        if self._lease is not None:
            lease, self._lease = self._lease, None
            self._valid_until = float("-inf")
            self._store.release_lease(lease)

"""The leader's lease: one controller leads, the others stand by and keep learning.

A thread renews the lease every `RENEW_S`, independent of the event loop and of the length of a tick. When Redis does
not answer, this controller leads until the end of the lease that it holds. After that another controller may lead, so
this one publishes nothing until it has renewed the lease. The fence in each write enforces this in Redis.

While `is_alive` is false, because the control loop hangs, the thread does not renew the lease. The lease expires and a
stand-by takes over.
"""

import logging
import threading
from collections.abc import Callable

from specpilot.policy.clock import Clock
from specpilot.policy.errors import PolicyError, StoreRefusedError, StoreUnavailableError
from specpilot.policy.records import Lease
from specpilot.policy.store import Store

TTL_S = 3.0
"""The duration of a lease. A smaller value shortens the pause after a leader dies; a larger one avoids take-overs from
a leader that stalls."""
RENEW_S = 0.5
_log = logging.getLogger(__name__)


class Leadership:
    """The lease of one controller; its methods may be called from any thread."""

    def __init__(self, store: Store, holder: str, clock: Clock) -> None:
        self._store = store
        self._holder = holder
        self._clock = clock
        self._lock = threading.Lock()
        self._held: tuple[Lease, float] | None = None  # and the steady time until which it is certainly held
        self._is_refused = False  # Redis grants no right to the lease
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def lease(self) -> Lease | None:
        """The lease while this controller certainly holds it; `None` in stand-by."""
        held = self._held
        return held[0] if held is not None and self._clock.monotonic() < held[1] else None

    def renew(self) -> Lease | None:
        """Ask for the lease; blocks for at most the store's time-out. Raises `StoreUnavailableError`."""
        with self._lock:
            asked_at = self._clock.monotonic()
            lease = self._store.acquire_lease(self._holder, TTL_S)
            if (lease is None) != (self._held is None):
                _log.info("%s: %s", self._holder, "standing by" if lease is None else f"leading, fence {lease.fence}")
            self._held = (lease, asked_at + TTL_S) if lease else None
            return lease

    def keep(self, is_alive: Callable[[], bool]) -> None:
        """Begin to renew the lease in a thread, while `is_alive`, until `release`."""

        def renewing() -> None:
            while not self._stopped.is_set():
                if is_alive():
                    try:
                        self.renew()
                        self._is_refused = False
                    except StoreRefusedError as error:
                        if not self._is_refused:
                            _log.error("this controller cannot lead: %s", error)
                        self._is_refused = True
                    except StoreUnavailableError:
                        pass  # the loop logs that Redis does not answer
                    except PolicyError as error:
                        _log.error("the lease cannot be renewed: %s", error)
                self._stopped.wait(RENEW_S)

        self._thread = threading.Thread(target=renewing, name="specpilot-lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Stop renewing and release the lease, so that a stand-by can lead at once."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=TTL_S)
        lease, self._held = self.lease, None
        if lease is not None:
            self._store.release_lease(lease)

"""Keeps the snapshot up to date from Redis, on a thread of its own, so that no request waits for Redis.

The thread follows announcements, and reads everything again after `poll_s` without one. Every `EXCHANGE_S` it publishes
the demand on this gateway and reads the demand on the others. The limits of API keys are divided by these demands.

| failure                   | behaviour                                                                       |
|---------------------------|---------------------------------------------------------------------------------|
| Redis does not answer     | it is tried again; the last snapshot and the last shares stay in force          |
| no announcements arrive   | everything is read every `poll_s` all the same                                  |
| demand cannot be written  | it is logged once; the last shares stay in force, and everything is read        |
| a document cannot be read | it is logged once; the last good documents of its kind stay in force            |
| a kind may not be read    | the same, except for API keys: then nothing counts as read                      |
| an API key cannot be read | it is logged; it counts as a key; its last good version, if any, stays in force |
| a revoked key is back     | it is in force; it is logged, and a metric counts it                            |
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from specpilot.gateway.engines.snapshot import Snapshot, by_hash, follow, without
from specpilot.gateway.limits.rate_limit import Shares, divide
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.clock import Clock
from specpilot.policy.errors import InvalidDocumentError, PolicyError, StoreRefusedError
from specpilot.policy.model_policy import VersionedPolicy
from specpilot.policy.model_routes import VersionedModelRoutes
from specpilot.policy.redis_keys import RIGHTS
from specpilot.policy.store import Store

EXCHANGE_S: Final = 1.0
"""Seconds between two exchanges of demand.

At this interval 1.7 % of a limit that moves between replicas is allowed twice, see `gateway.limits.rate_limit`.
"""

PRESENCE_S: Final = 5.0
"""Seconds after which the share of a silent replica goes to the others. Requests that it allows meanwhile are
additional."""

RETRY_S: Final = 0.5
"""Seconds before Redis is tried again."""

SETTLE_S: Final = 15.0
"""Seconds after Redis has lost documents in which they are kept: time for their writers to write them again."""

LOST_KEYS: Final = 10_000
"""Keys that are remembered after Redis lost them, the latest ones, so that one that comes back is noticed (2 MB)."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Watcher:
    """Reads the shared state; passes each new snapshot to `publish` and each new share to `share`, from its own thread.

    `own_keys` are the keys of the API keys file. `demands` returns the demand on gateway `gateway_id` by key.
    """

    def __init__(  # noqa: PLR0913 - the collaborators of a thread
        self,
        *,
        store: Store,
        own_keys: Sequence[ApiKey],
        first: Snapshot,
        publish: Callable[[Snapshot], None],
        gateway_id: str,
        demands: Callable[[], Mapping[str, float]],
        share: Callable[[Shares], None],
        clock: Clock,
        poll_s: float,
    ) -> None:
        self._store = store
        self._own_keys = own_keys
        self._last = first
        self._publish = publish
        self._gateway_id = gateway_id
        self._demands = demands
        self._share = share
        self._clock = clock
        self._poll_s = poll_s
        self._stopped = threading.Event()
        self._settled_at = 0.0
        self._unseen = Snapshot()
        self._lost_hashes: dict[str, None] = {}  # the oldest first
        self._run_id: str | None = None
        self._is_lost = False
        self._faults: dict[str, str] = {}  # logged last, by kind of document
        self._read_at = self._exchanged_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="snapshot", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publish nothing more. The thread ends with its next answer from Redis, or with the process."""
        self._stopped.set()

    def read(self) -> Snapshot:
        """Read everything once and return the snapshot that follows the last. Raises `StoreUnavailableError`."""
        last = self._last
        policies: Sequence[VersionedPolicy] = tuple(last.policies.values())
        by_id = self._store.api_keys_by_id()
        faulty = {key_id for key_id, item in by_id.items() if isinstance(item, InvalidDocumentError)}
        for key_id, item in by_id.items():
            self._note(f"version of API key {key_id!r}", str(item) if key_id in faulty else "")
        last_good = [key for key in last.keys.values() if key.key_id in faulty]
        good = [item for item in by_id.values() if isinstance(item, ApiKey)]
        snapshot = Snapshot(
            engines=tuple(self._readable("engines", self._store.engines, last.engines)),
            policies={item.policy.model: item for item in self._readable("policies", self._store.policies, policies)},
            keys=by_hash([*last_good, *good, *self._own_keys]),
            model_routes=self._readable(
                "model routes", self._store.model_routes, VersionedModelRoutes(routes=last.model_routes)
            ).routes,
            needs_key=bool(faulty),
            taken_at=self._clock.monotonic(),
        )
        self._settle(last, snapshot, self._store.run_id())
        self._last = self._with_returned(last, follow(last, snapshot, self._unseen))
        return self._last

    def _readable(self, kind: str, read: Callable[[], T], last: T) -> T:
        """Return the documents of a kind; `last` if they cannot be read or may not be."""
        try:
            documents = read()
        except (InvalidDocumentError, StoreRefusedError) as error:
            self._note(kind, str(error))
            return last
        self._note(kind, "")
        return documents

    def _note(self, kind: str, fault: str) -> None:
        """Log a new `fault`, for which the last documents of a kind stay in force; an empty one is the end of it."""
        if fault and self._faults.get(kind) != fault:
            _log.error("keeping the last %s: %s", kind, fault)
        if fault:
            self._faults[kind] = fault
        else:
            self._faults.pop(kind, None)

    def _with_returned(self, last: Snapshot, current: Snapshot) -> Snapshot:
        """Return `current` with the keys that were gone before. Log those that `last` did not name."""
        self._lost_hashes |= dict.fromkeys(last.keys.keys() - current.keys.keys())
        for digest in [*self._lost_hashes][:-LOST_KEYS]:
            del self._lost_hashes[digest]
        returned = frozenset(current.keys[digest].key_id for digest in self._lost_hashes.keys() & current.keys.keys())
        if returned - last.returned_keys:
            names = ", ".join(sorted(returned))
            _log.error("Redis has older data than before; revoke these API keys again if they were revoked: %s", names)
        return replace(current, returned_keys=returned)

    def _settle(self, last: Snapshot, current: Snapshot, run_id: str | None) -> None:
        """Update `_unseen`, the documents to keep although Redis lacks them.

        A server that answers again lacks the records of engines that could not reach it. Another server, or one that
        has started anew, may lack everything.
        """
        now = self._clock.monotonic()
        is_another = run_id != self._run_id and None not in (run_id, self._run_id)
        if is_another or self._is_lost:
            is_same = run_id is not None and run_id == self._run_id
            self._unseen = Snapshot(engines=last.engines) if is_same else last
            self._settled_at = now + SETTLE_S
        self._run_id = run_id or self._run_id
        self._unseen = without(self._unseen, current) if now < self._settled_at else Snapshot()

    def exchange(self) -> Shares | None:
        """Publish the demand on this gateway and return its shares; `None`, and one line is logged, if that fails."""
        usage = GatewayUsage(self._gateway_id, self._demands())
        try:
            shares = divide(self._gateway_id, self._store.exchange_usage(usage, PRESENCE_S))
        except PolicyError as error:
            self._note("shares of the limits", str(error))
            return None
        self._note("shares of the limits", "")
        return shares

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._read_at = self._exchanged_at = float("-inf")
                for changed in self._store.changes(min(self._poll_s, EXCHANGE_S)):
                    if self._stopped.is_set():
                        return
                    self._follow(changed)
            except PolicyError as error:
                if not self._is_lost:
                    self._is_lost = True
                    _log.warning("serving from the last snapshot: %s", error)
            except Exception:  # noqa: BLE001 - this thread must outlive any fault
                if self._stopped.is_set():
                    return
                _log.exception("the snapshot could not be refreshed; serving from the last one")
            self._stopped.wait(RETRY_S)

    def _follow(self, changed: str | None) -> None:
        """Perform the due actions. `changed` is the announced document, `None` after a time without an announcement."""
        now = self._clock.monotonic()
        is_news = changed is not None and changed != RIGHTS  # another program tried its rights
        if is_news or now - self._read_at >= self._poll_s:
            self._publish(self.read())
            self._read_at = now
            if self._is_lost:
                self._is_lost = False
                _log.warning("Redis answers again")
        if changed is None or now - self._exchanged_at >= EXCHANGE_S:
            self._exchanged_at = now
            shares = self.exchange()
            if shares is not None:
                self._share(shares)

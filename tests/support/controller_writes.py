"""Every write of the admin API, and what a call left behind: in Redis, and in the audit."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from specpilot.policy import redis_keys
from specpilot.policy.access import Role
from specpilot.policy.audit import AuditEntry
from specpilot.policy.redis_store import RedisStore

_OF_PROGRAMS = tuple(
    key.encode()
    for key in (
        *(
            redis_keys.LEASE,
            redis_keys.AUDIT,
            redis_keys.SCHEDULES,
            redis_keys.ENGINES,
            redis_keys.engine(""),
            redis_keys.GATEWAYS,
            redis_keys.gateway(""),
        ),
        *(redis_keys.gains("", "").strip(), "specpilot:decisions:", "specpilot:history:"),
    )
)
"""How the keys begin that change by themselves: of the loop, of engines and gateways, and of the audit."""


class Write(NamedTuple):
    """A call that writes: `{key}` and `{token}` in its path are ids. `seen` is whether it takes an ETag."""

    method: str
    path: str
    body: dict[str, Any] | None = None
    needs: Role = Role.OPERATOR
    seen: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path.removeprefix('/admin/')}"


WRITES = [
    Write("PUT", "/admin/policies/there", {"k_max": 4}, seen=True),
    Write("PATCH", "/admin/policies/there", {"k_max": 4}, seen=True),
    Write("DELETE", "/admin/policies/there", seen=True),
    Write("POST", "/admin/policies/there/rollback", {"version": 1}, seen=True),
    Write("PUT", "/admin/canaries/there", {"policy": {"k_max": 4}}, seen=True),
    Write("DELETE", "/admin/canaries/tried"),
    Write("POST", "/admin/canary-promotions/tried"),
    Write("PUT", "/admin/freezes", {"hold": "static"}),
    Write("DELETE", "/admin/freezes"),
    Write("PUT", "/admin/freezes/there", {"hold": "static"}),
    Write("DELETE", "/admin/freezes/there"),
    Write("PUT", "/admin/model-routes", {"routes": {}}, seen=True),
    Write("PATCH", "/admin/model-routes", {"routes": {"chat": None}}, seen=True),
    Write("POST", "/admin/keys", {"k_max": 3}, Role.ADMIN),
    Write("PATCH", "/admin/keys/{key}", {"k_max": 3}, Role.ADMIN),
    Write("POST", "/admin/keys/{key}/rotate", {"grace_s": 60}, Role.ADMIN),
    Write("DELETE", "/admin/keys/{key}", needs=Role.ADMIN),
    Write("POST", "/admin/tokens", {"name": "x", "role": "viewer"}, Role.ADMIN),
    Write("POST", "/admin/tokens/{token}/rotate", {}, Role.ADMIN),
    Write("DELETE", "/admin/tokens/{token}", needs=Role.ADMIN),
]


class Watched:
    """What changed in Redis within a `with`, and what the audit got, in order."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self.entries: Sequence[AuditEntry] = ()
        self.changed: set[bytes] = set()

    def _state(self) -> dict[bytes, Any]:
        """What operators write."""
        redis: Any = self._store._redis
        found = sorted(key for key in redis.scan_iter(count=1000) if not key.startswith(_OF_PROGRAMS))
        # A dump of a large hash would not do: it has the fields in an order that may change.
        return {key: redis.get(key) if redis.type(key) == b"string" else redis.hgetall(key) for key in found}

    def __enter__(self) -> Self:
        newest = self._store.audit(1)
        self._number = newest[0].number if newest else 0
        self._before = self._state()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        after = self._state()
        keys_seen = self._before.keys() | after.keys()
        self.changed = {key for key in keys_seen if self._before.get(key) != after.get(key)}
        self.entries = self._store.audit(100, after=self._number)

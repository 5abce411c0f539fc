"""The shared state of all requests of this process: snapshot, fleet, limits, counts, clock.

It also has the sweep, the one timer that enforces every time-out, closes idle connections, flushes the log and returns
free memory to the system.

Owned by the event loop. Other threads use `offer`.
"""

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from specpilot.gateway.engines.fleet import Engine, Fleet, model_card
from specpilot.gateway.engines.snapshot import Snapshot
from specpilot.gateway.limits.admission import Admission
from specpilot.gateway.limits.rate_limit import Rates, Shares
from specpilot.gateway.relay.owner import Connection, Request
from specpilot.gateway.routing.retry_budget import RetryBudget
from specpilot.gateway.settings import GatewaySettings
from specpilot.gateway.telemetry.metrics import exposition_of
from specpilot.gateway.telemetry.recorder import Recorder
from specpilot.gateway.wire.deadlines import Bounds
from specpilot.gateway.wire.errors import (
    DrainingError,
    GatewayError,
    InternalError,
    InvalidApiKeyError,
    KeysUnknownError,
)
from specpilot.gateway.wire.origins import Origins
from specpilot.policy.access import sha256_of
from specpilot.policy.api_key import ApiKey
from specpilot.policy.clock import Clock
from specpilot.policy.latency_goal import Slo
from specpilot.policy.model_policy import ClassPolicy, MatchRule

SWEEP_S: Final = 0.1
"""Seconds between two sweeps. With a smaller value time-outs are enforced earlier; with a larger one less time is
used."""

RETRY_AFTER_S: Final = 1.0
"""`Retry-After` in seconds when the gateway has no better estimate."""

_SWEEPS_A_MINUTE: Final = 600

_log = logging.getLogger(__name__)


class GatewayContext:
    """The shared state of all requests of this process.

    Without `admission` every request is sent at once; without `origins` no web page may call. If there are
    `public_paths`, other machines may request no other path. `has_named_series`: the metrics may name engines and API
    keys. `trim` returns free memory to the system.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the collaborators of a whole program
        self,
        settings: GatewaySettings,
        fleet: Fleet,
        snapshot: Snapshot,
        recorder: Recorder,
        clock: Clock,
        trim: Callable[[], None],
    ) -> None:
        self.fleet = fleet
        self.snapshot = snapshot
        self.recorder = recorder
        self.metrics = recorder.metrics
        self.monotonic: Callable[[], float] = clock.monotonic
        self.now: Callable[[], float] = clock.now
        # Read once: a setting takes longer to read than a field of a compiled class.
        self.names_responses: bool = settings.name_responses
        self.asks_usage: bool = settings.ask_usage
        self.sends_priority: bool = settings.send_priority
        self.shows_engine: bool = settings.show_engine
        self.passes_keep_alives: bool = settings.pass_keep_alives
        self.decodes_bodies: bool = settings.decode_bodies
        self.public_paths = frozenset(path.encode() for path in settings.public_paths)
        self.has_named_series = settings.show_engine or settings.admin_port is not None
        self.origins = Origins(settings.allowed_origins) if settings.allowed_origins else None
        self.bounds = Bounds(**{item.name: getattr(settings, item.name) for item in fields(Bounds)})
        self.budget = RetryBudget(settings.retry_ratio)
        self.admission: Admission[Engine] | None = None
        if settings.engine_capacity is not None:
            capacity, limit = settings.engine_capacity, settings.queue_limit
            self.admission = Admission(capacity, limit, lambda model: fleet.by_model.get(model, ()))
        self.rates = Rates()
        self.demands: Mapping[str, float] = {}
        self.gateway_id = secrets.token_hex(8)
        self.is_draining = False
        self.is_refusing = False
        self.is_leaving = False
        self.exchanges: set[Request] = set()
        self.connections: set[Connection] = set()
        self.operators: set[Connection] = set()  # connections to the operators' own port
        self.tasks: set[asyncio.Task[None]] = set()
        self.body_bytes = 0  # bytes of all requests whose answer has not begun
        self._terms: dict[str, tuple[frozenset[str], tuple[MatchRule, ...], int]] = {}
        self._id_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sweeps = 0
        self._swept_at = 0.0
        self._is_behind = False
        self._trim = trim
        fleet.apply(snapshot.engines)

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use `loop` from now on, and start to sweep."""
        self._loop = loop
        self._swept_at = self.monotonic()
        loop.call_later(SWEEP_S, self._sweep)

    def offer(self, function: Callable[..., object], *arguments: object) -> None:
        """Call `function` on the loop. From any thread; raises `RuntimeError` when the loop is closed."""
        if self._loop is None:
            raise RuntimeError("the context is not bound to a loop")
        self._loop.call_soon_threadsafe(function, *arguments)

    def adopt(self, snapshot: Snapshot) -> None:
        """Use `snapshot` from now on. On the loop only, or before it runs."""
        self.snapshot = snapshot
        self._terms.clear()
        self.fleet.apply(snapshot.engines)
        self.serve_queue()

    def adopt_shares(self, shares: Shares) -> None:
        """Use `shares` of the keys' limits from now on. On the loop only, or before it runs."""
        self.rates.adopt(shares, self.monotonic())

    def serve_queue(self) -> None:
        """Send waiting requests if there is room."""
        if self.admission is not None:
            self.admission.serve(self.monotonic())

    def end_with(self, error: GatewayError) -> None:
        """End every request with `error`. Waiting requests are first, so that none of them is sent into freed room."""
        waiting = () if self.admission is None else self.admission.waiting()
        for exchange in (*waiting, *self.exchanges):
            exchange.end_with(error)

    def engine_ejected(self, engine: Engine) -> None:
        """Try another engine for the requests that wait for `engine`, which does not answer."""
        for exchange in [*self.exchanges]:
            try:
                exchange.engine_ejected(engine)
            except Exception:  # noqa: BLE001 - a fault of one request must not affect the others
                _log.exception("a request could not be sent to another engine")

    def class_policy(self, model: str, traffic_class: str) -> ClassPolicy:
        """Return the policy of a class of `model`."""
        document = self.snapshot.policies.get(model)
        return ClassPolicy() if document is None else document.policy.of_class(traffic_class)

    def slo(self, model: str, traffic_class: str) -> Slo | None:
        """Return the latency goals of a class of `model`."""
        document = self.snapshot.policies.get(model)
        return None if document is None else document.policy.slo_of(traffic_class)

    def terms(self, model: str) -> tuple[frozenset[str], tuple[MatchRule, ...], int]:
        """Return the classes of `model`, its policy's match rules and version; cached until the next snapshot."""
        terms = self._terms.get(model)
        if terms is None:
            snapshot = self.snapshot
            terms = (snapshot.known_classes(model), snapshot.rules(model), snapshot.policy_version(model))
            if model in self.fleet.by_model:
                self._terms[model] = terms
        return terms

    def cards(self, key: ApiKey | None) -> list[Mapping[str, Any]]:
        """Return the entries of `/v1/models` for a client with `key`: every name that it may ask for."""
        cards = {str(card["id"]): card for card in self.fleet.cards()}
        for name, route in self.snapshot.model_routes.items():
            if not route.models(name).isdisjoint(self.fleet.by_model):
                cards.setdefault(name, model_card(name))
        return [cards[name] for name in sorted(cards) if key is None or key.may_use(name)]

    def key_of(self, secret: bytes | None) -> ApiKey | None:
        """Return the API key with `secret`; `None` when no key is needed and none matches.

        Raises `InvalidApiKeyError` when a key is needed, `KeysUnknownError` when that is not known yet.
        """
        snapshot = self.snapshot
        if secret is not None and snapshot.keys:
            sha256 = sha256_of(secret)
            key = snapshot.keys.get(sha256)
            if key is not None:
                if not key.admits(sha256, self.now()):
                    raise InvalidApiKeyError("the API key has expired; ask your administrator for a new one")
                return key
        if snapshot.is_awaiting_keys:
            raise KeysUnknownError("the API keys could not be read yet; try again", retry_after_s=RETRY_AFTER_S)
        if not snapshot.needs_key:
            return None
        if secret is None:
            raise InvalidApiKeyError("no API key was sent; send the header `Authorization: Bearer <key>`")
        raise InvalidApiKeyError("the API key is not known here; check it, or ask your administrator for one")

    def admit(self, secret: bytes | None) -> ApiKey | None:
        """Return the API key of a request that begins now, as `key_of`. Raises `DrainingError` after the drain."""
        if self.is_refusing:
            raise DrainingError("this gateway is shutting down; try again", retry_after_s=RETRY_AFTER_S)
        return self.key_of(secret)

    def paths_for(self, host: str | None) -> frozenset[bytes]:
        """Return the paths that a client at the address `host` may request; none: every path.

        With `--public-paths`, for a port that faces a platform which expects a few paths, other machines get 404 for
        every other path. Callers on this machine, by a Unix socket (`None`) too, may request all: health checks,
        metrics, operators. Behind a proxy on the same machine every caller is on this machine, so the proxy must limit
        the paths.
        """
        if not self.public_paths or host is None or ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            return frozenset()
        return self.public_paths

    def has_room(self, handshakes: int) -> bool:
        """Whether the limit on connections allows one more TLS handshake in addition to `handshakes` others."""
        has_room = len(self.connections) + handshakes < self.bounds.max_connections
        if not has_room:
            self.metrics.count_refusal("connections")
        return has_room

    def reply_to(self, error: Exception) -> GatewayError:
        """Return the client's form of `error`, and log a fault of the gateway. On the loop only."""
        if isinstance(error, GatewayError):
            return error
        asyncio.get_running_loop().call_exception_handler({"message": "a request failed", "exception": error})
        return InternalError("the gateway failed; its log says why")

    def new_request_id(self) -> bytes:
        """Return a unique identifier."""
        self._id_count += 1
        return b"req-%s-%d" % (self.gateway_id.encode(), self._id_count)

    def spawn(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        """Keep `task` alive until it ends."""
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    @property
    def snapshot_age_s(self) -> float | None:
        """Seconds since Redis was last read; `None` without Redis."""
        taken_at = self.snapshot.taken_at
        return None if taken_at is None else self.monotonic() - taken_at

    async def exposition(self) -> bytes:
        """Return this process's metrics. The text is made on a thread."""
        return await asyncio.to_thread(exposition_of, b"[%s]" % self.tally(), is_named=self.has_named_series)

    def tally(self) -> bytes:
        """Return this process's numbers as they are now (see `GatewayMetrics.tally`), those of other objects too."""
        metrics = self.metrics
        metrics.policy_version = {model: self.snapshot.policy_version(model) for model in self.fleet.by_model}
        metrics.snapshot_age_seconds = self.snapshot_age_s
        metrics.returned_keys = len(self.snapshot.returned_keys)
        metrics.choices = self.fleet.chooser.counts
        metrics.engine_ejected = {
            name: engine.outlier_detection.is_ejected for name, engine in self.fleet.engines.items()
        }
        metrics.log_lines_dropped = self.recorder.log.dropped
        if self.recorder.tracing is not None:
            metrics.spans = dict(self.recorder.tracing.counts)
        return metrics.tally()

    def _sweep(self) -> None:
        assert self._loop is not None
        self._loop.call_later(SWEEP_S, self._sweep)  # first, so that no fault below ends the sweeps
        now = self.monotonic()
        self._is_behind = now - self._swept_at > 2 * SWEEP_S and not self._is_behind
        self._swept_at = now
        if self._is_behind:
            return  # this process was blocked, and timers run before sockets: first read the bytes that came
        self._sweeps += 1
        for item in [*self.exchanges]:
            try:
                item.sweep(now)
            except Exception:  # noqa: BLE001 - a fault of one request must not stop the time-outs of all
                _log.exception("a time-out could not be enforced")
        self.serve_queue()
        if self._sweeps % 10 == 0:
            self.demands = self.rates.demands(now)  # replaced as a whole, because another thread reads it
            for connection in (*self.connections, *self.operators):
                connection.sweep(now)
            self.fleet.sweep(now)
        self.recorder.log.flush()
        if self._sweeps % _SWEEPS_A_MINUTE == 0:
            self._trim()

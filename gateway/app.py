"""Builds the running server from its settings; no other module connects its parts."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from select import PIPE_BUF
from types import FrameType
from typing import IO, Any, cast

import orjson
from pydantic import SecretStr

from specpilot.gateway.engines import dns, tcp_keep_alive
from specpilot.gateway.engines.dns import Lookup, Resolver
from specpilot.gateway.engines.fleet import Fleet
from specpilot.gateway.engines.redis_watch import Watcher
from specpilot.gateway.engines.snapshot import Snapshot, by_hash, keys_of
from specpilot.gateway.engines.upstream import tls_context
from specpilot.gateway.limits.rate_limit import Shares
from specpilot.gateway.pages import Pages
from specpilot.gateway.process.background import Follower, serving
from specpilot.gateway.process.certificates import Certificates, engine_certificates, listener_certificates
from specpilot.gateway.process.heap import trimmer
from specpilot.gateway.process.listening import listen, listen_together
from specpilot.gateway.process.open_files import connections_within, raise_limit
from specpilot.gateway.process.port import Port
from specpilot.gateway.process.server import GatewayServer
from specpilot.gateway.process.start_error import StartError
from specpilot.gateway.process.worker import Worker
from specpilot.gateway.relay.client_connection import ClientConnection
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.routing.chooser import Affinity, Balance, Chooser
from specpilot.gateway.settings import PROGRAM, GatewaySettings
from specpilot.gateway.telemetry.access_log import AccessLog
from specpilot.gateway.telemetry.metrics import GatewayMetrics
from specpilot.gateway.telemetry.recorder import Recorder
from specpilot.gateway.telemetry.scrape import Scrape
from specpilot.gateway.telemetry.tracing import Tracing, is_wanted
from specpilot.policy.api_key import ApiKey
from specpilot.policy.clock import Clock, SystemClock
from specpilot.policy.errors import Fault, InvalidDocumentError, StoreUnavailableError
from specpilot.policy.settings import fail, without_secrets
from specpilot.policy.store import Store
from specpilot.policy.text_files import read_text

HANDSHAKES_ADMIN_MAX = 128
"""TLS handshakes under way on the operators' port. A few Prometheus servers and health checks need no more."""

_log = logging.getLogger("gateway")


def create_context(  # noqa: PLR0913 - the collaborators of a whole program
    settings: GatewaySettings,
    clock: Clock,
    log_stream: IO[bytes] | None,
    own_keys: tuple[ApiKey, ...] = (),
    towards_engines: Certificates | None = None,
    *,
    is_worker: bool = False,
) -> GatewayContext:
    """Return the shared state of all requests. `own_keys` are those of the file, `towards_engines` for connections."""
    fleet = Fleet(
        [url for url in settings.engine if not url.startswith(dns.PREFIX)],
        Chooser(Balance(settings.balance), Affinity(settings.affinity), partial(Random().getrandbits, 64)),  # noqa: S311 - no secret
        settings.engine_keep_alive_s,
        _secret(settings.engine_api_key),
        tls_context if towards_engines is None else lambda: towards_engines.context,
        settings.tcp_keep_alive_s,
    )
    snapshot = Snapshot(
        keys=by_hash(own_keys),
        needs_key=bool(own_keys) or settings.require_api_key,
        is_awaiting_keys=settings.redis_url is not None,
    )
    recorder = Recorder(
        GatewayMetrics(),
        AccessLog(log_stream, PIPE_BUF if is_worker else None),
        _load_tracing(os.environ, "http" if settings.tls_cert_file is None else "https"),
        clock,
    )
    context = GatewayContext(settings, fleet, snapshot, recorder, clock, trimmer())
    if settings.workers > 1:
        context.adopt_shares(Shares(other=1 / settings.workers))  # until the workers find each other in Redis
    return context


def create_server(
    settings: GatewaySettings,
    clock: Clock,
    log_stream: IO[bytes] | None,
    look_up: Lookup = dns.lookup,
    worker: Worker | None = None,
) -> GatewayServer:
    """Return a server ready to run. Raises `StartError`.

    Its sockets listen already, except for one worker of several: the other workers get the connections until it serves.
    """
    own_keys = _own_keys(settings)
    towards_engines = engine_certificates(settings.engine_ca_file, settings.engine_cert_file, settings.engine_key_file)
    context = create_context(settings, clock, log_stream, own_keys, towards_engines, is_worker=worker is not None)
    followers: list[Follower] = [
        Resolver(url, look_up, partial(context.offer, context.fleet.resolve), settings.dns_refresh_s)
        for url in settings.engine
        if url.startswith(dns.PREFIX)
    ]
    watcher = _watcher(settings, own_keys, context, clock, worker)
    if watcher is not None:
        followers.append(watcher)
    ports = _ports(settings, context, clock, worker)
    certificates = [item for item in (towards_engines, *(port.certificates for port in ports)) if item is not None]
    background = serving(context, followers, worker, certificates)
    return GatewayServer(context, ports, background, settings.drain_grace_s, settings.drain_timeout_s, worker)


def _ports(settings: GatewaySettings, context: GatewayContext, clock: Clock, worker: Worker | None) -> list[Port]:
    """Return the clients' port and, if there is one, the operators'."""
    show = Scrape(context.exposition if worker is None else partial(worker.exposition, context), clock.monotonic).read
    pages = partial(Pages, context, _secret(settings.admin_token), _shown(settings), show)
    certificates = listener_certificates(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    ports = [
        Port(
            listen(settings.host, settings.port) if worker is None else worker.listener,
            partial(ClientConnection, context, pages(is_for_operators=settings.admin_port is None)),
            certificates,
            context.has_room,
        )
    ]
    if settings.admin_port is not None:
        bind = listen if worker is None else listen_together
        ports.append(
            Port(
                bind(settings.host, settings.admin_port, "--admin-port"),
                partial(ClientConnection, context, pages(), is_for_operators=True),
                listener_certificates(settings.tls_cert_file, settings.tls_key_file, None),
                lambda handshakes: handshakes < HANDSHAKES_ADMIN_MAX,
            )
        )
    for port in ports:
        tcp_keep_alive.probe(port.listener, settings.tcp_keep_alive_s)
    return ports


def run(settings: GatewaySettings, worker: Worker | None = None) -> None:
    """Serve until a signal. Ends the process with status 2 when it cannot start."""
    settings.open_log(None if worker is None else worker.number)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    is_asked_for = "max_connections" in settings.model_fields_set
    fewer: list[str] = []
    connections = connections_within(raise_limit(), settings.max_connections, fewer.append)
    settings = settings.model_copy(update={"max_connections": connections})
    has_access_log = settings.access_log and settings.log_level in ("debug", "info")
    try:
        log_stream = sys.stderr.buffer if has_access_log else None
        server = create_server(settings, SystemClock(), log_stream, worker=worker)
    except StartError as error:
        fail(PROGRAM, *error.lines)
    for line in fewer:
        _log.log(logging.WARNING if is_asked_for else logging.INFO, "%s", line)
    signal.signal(signal.SIGHUP, _ignore_reload)
    tls_context()  # loads the authorities before the loop runs: an engine that joins later must not block it
    gc.collect()
    gc.freeze()
    server.run()


def _ignore_reload(number: int, frame: FrameType | None) -> None:
    """Log that SIGHUP has no effect. It replaces workers; without a handler it would end this single process."""
    del number, frame
    _log.warning("SIGHUP: one process cannot reload; run with --workers 2 or more, or restart")


def _load_tracing(environment: Mapping[str, str], scheme: str) -> Tracing | None:
    """Return tracing for a gateway whose clients use `scheme`, if `environment` asks for it and it can be loaded."""
    if not is_wanted(environment):
        return None
    try:
        return cast("Tracing", import_module("specpilot.gateway.telemetry.otel").OtelTracing(environment, scheme))
    except ImportError as error:
        _log.warning("nothing is traced: %s; run `pip install 'specpilot[otel]'`, or unset OTEL_EXPORTER_OTLP_*", error)
    except Exception as error:  # noqa: BLE001 - the SDK reads its own variables; a fault there must not stop the start
        _log.warning("nothing is traced, the OTEL_* variables do not work: %s", error)
    return None


def _own_keys(settings: GatewaySettings) -> tuple[ApiKey, ...]:
    if settings.api_keys_file is None:
        return ()
    flag = "--api-keys-file"
    try:
        plain = orjson.loads(read_text(Path(settings.api_keys_file)))
        return keys_of(plain, lambda line: _log.warning("%s: %s", flag, line))
    except OSError as error:
        raise StartError(f"{flag}: cannot read {settings.api_keys_file}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise StartError(f"{flag}: {settings.api_keys_file} is not JSON: {error}; correct it") from error
    except InvalidDocumentError as error:
        raise StartError(*(f"{flag}: {fault}" for fault in error.faults)) from error


def _watcher(
    settings: GatewaySettings,
    own_keys: tuple[ApiKey, ...],
    context: GatewayContext,
    clock: Clock,
    worker: Worker | None,
) -> Watcher | None:
    if settings.redis_url is None:
        return None
    try:
        store = Store(settings.redis_url)
    except InvalidDocumentError as error:
        raise StartError(f"--redis-url: {Fault('', 'not a Redis URL')}; write e.g. redis://127.0.0.1:6379/0") from error
    watcher = Watcher(
        store=store,
        own_keys=own_keys,
        first=context.snapshot,
        publish=partial(context.offer, context.adopt),
        gateway_id=context.gateway_id,
        demands=lambda: context.demands,
        share=partial(context.offer, context.adopt_shares),
        clock=clock,
        poll_s=settings.redis_poll_s,
    )

    def read() -> None:
        store.ping()
        lacking = store.missing_rights() if worker is None or worker.number == 0 else None
        if lacking is not None:
            _log.warning("--redis-url: %s", lacking)
        context.adopt(watcher.read())
        shares = watcher.exchange()
        if shares is not None:
            context.adopt_shares(shares)

    try:
        if worker is None:
            read()
        else:
            worker.read_redis_first(read, clock.monotonic)
    except StoreUnavailableError as error:
        if not settings.engine:
            raise StartError(f"--redis-url: {error}; start Redis, correct the URL, or give --engine") from error
        _log.warning("Redis does not answer yet; until it does, only keys of --api-keys-file pass: %s", error)
    return watcher


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def _shown(settings: GatewaySettings) -> dict[str, Any]:
    shown = settings.model_dump(mode="json")
    if settings.redis_url is not None:
        shown["redis_url"] = without_secrets(settings.redis_url)
    return shown

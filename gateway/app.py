"""The only file that wires the gateway: settings in, a running server out."""

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from select import PIPE_BUF
from typing import IO, Any, cast

import orjson
import uvicorn
from fastapi import FastAPI
from pydantic import SecretStr

from gateway import resolve
from gateway.access_log import AccessLog
from gateway.admission import Admission
from gateway.choice import Chooser
from gateway.discovery import Discovery
from gateway.fleet import Engine, Fleet
from gateway.front import FrontProtocol
from gateway.limits import Limits
from gateway.listening import BACKLOG, listen
from gateway.metrics import GatewayMetrics
from gateway.plane import Plane
from gateway.rate import Shares
from gateway.resolve import Lookup, Resolver
from gateway.routes import create_routes
from gateway.routing import RetryBudget
from gateway.server import GatewayServer
from gateway.settings import PROGRAM, GatewaySettings, StartError
from gateway.snapshot import Snapshot, by_hash, keys_of
from gateway.tracing import load_tracing
from gateway.watch import Watcher
from gateway.worker import Worker
from policy.clock import Clock, SystemClock
from policy.errors import Fault, InvalidDocumentError, StoreUnavailableError
from policy.redis_store import RedisStore
from policy.settings import fail, without_secrets
from policy.types import ApiKey

FIRST_LOOK_S = 1.0

_log = logging.getLogger("gateway")


def create_app(
    settings: GatewaySettings,
    clock: Clock,
    log_stream: IO[bytes] | None,
    look_up: Lookup = resolve.lookup,
    worker: Worker | None = None,
) -> tuple[FastAPI, Plane]:
    """Return the app and the data plane that it shares with the relayed routes. Raises `StartError`."""
    own_keys = _own_keys(settings)
    snapshot = Snapshot(
        keys=by_hash(own_keys),
        needs_key=bool(own_keys) or settings.require_api_key,
        is_awaiting_keys=settings.redis_url is not None,
    )
    fleet = Fleet(
        [url for url in settings.engine if not url.startswith(resolve.PREFIX)],
        Chooser(settings.balance, settings.affinity, partial(Random().getrandbits, 64)),  # noqa: S311 - no secret
        settings.engine_keep_alive_s,
        _secret(settings.engine_api_key),
    )
    plane = Plane(
        fleet=fleet,
        snapshot=snapshot,
        limits=Limits(
            max_body_bytes=settings.max_body_bytes,
            connect_timeout_s=settings.connect_timeout_s,
            first_byte_timeout_s=settings.first_byte_timeout_s,
            idle_timeout_s=settings.idle_timeout_s,
            total_timeout_s=settings.total_timeout_s,
            request_timeout_s=settings.request_timeout_s,
            keep_alive_s=settings.keep_alive_s,
            queue_timeout_s=settings.queue_timeout_s,
        ),
        budget=RetryBudget(settings.retry_ratio),
        admission=_admission(settings, fleet),
        metrics=GatewayMetrics(),
        log=AccessLog(log_stream, None if worker is None else PIPE_BUF),
        clock=clock,
        marks_class=settings.mark_class,
        tracing=load_tracing(os.environ),
    )
    if settings.workers > 1:
        plane.rates.adopt(Shares(other=1 / settings.workers), 0.0)  # until Redis tells the workers of one another
    watcher = _watcher(settings, own_keys, plane, clock, worker)
    exposition = plane.exposition if worker is None else partial(worker.exposition, plane)
    app = create_routes(plane, _secret(settings.admin_token), _shown(settings), exposition)
    followers: list[Watcher | Resolver] = [
        Resolver(url, look_up, plane.offer_engines, settings.dns_refresh_s)
        for url in settings.engine
        if url.startswith(resolve.PREFIX)
    ]
    if watcher is not None:
        followers.append(watcher)
    app.router.lifespan_context = partial(_lifespan, plane, followers, worker)
    return app, plane


def create_server(
    settings: GatewaySettings,
    clock: Clock,
    log_stream: IO[bytes] | None,
    look_up: Lookup = resolve.lookup,
    worker: Worker | None = None,
) -> tuple[GatewayServer, socket.socket]:
    """Return a server ready to run on the returned socket. Raises `StartError`.

    The socket listens already, unless it is that of one worker of several: the others get the connections until then.
    """
    app, plane = create_app(settings, clock, log_stream, look_up, worker)
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(FrontProtocol, plane)),
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=1,
    )
    server = GatewayServer(config, plane, settings.drain_grace_s, settings.drain_timeout_s, worker)
    return server, listen(settings.host, settings.port) if worker is None else worker.listener


def run(settings: GatewaySettings, worker: Worker | None = None) -> None:
    """Serve until a signal; ends the process with status 2 when that cannot even begin."""
    who = "" if worker is None else f" [worker {worker.number}]"
    log_format = f"%(levelname)s %(name)s{who}: %(message)s"
    logging.basicConfig(level=settings.log_level.upper(), stream=sys.stderr, format=log_format)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    has_access_log = settings.access_log and settings.log_level in ("debug", "info")
    try:
        log_stream = sys.stderr.buffer if has_access_log else None
        server, listener = create_server(settings, SystemClock(), log_stream, worker=worker)
    except StartError as error:
        fail(PROGRAM, *error.lines)
    gc.collect()
    gc.freeze()
    server.run(sockets=[listener])  # says where it listens, once it does


@asynccontextmanager
async def _lifespan(
    plane: Plane, followers: Sequence[Watcher | Resolver], worker: Worker | None, app: FastAPI
) -> AsyncIterator[None]:
    del app
    plane.bind(asyncio.get_running_loop())
    discovery = Discovery(plane)
    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_LOOK_S):
            for follower in followers:
                if isinstance(follower, Resolver):
                    plane.fleet.resolve(follower.name, await asyncio.to_thread(follower.look))
            await discovery.once()
    tasks = [plane.spawn(asyncio.get_running_loop().create_task(discovery.run()))]
    if worker is not None:
        tasks.append(plane.spawn(asyncio.get_running_loop().create_task(worker.run(plane))))
    for follower in followers:
        follower.start()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for follower in followers:
            follower.stop()
        if plane.tracing is not None:
            await plane.tracing.close()
        if worker is not None:
            await worker.publish(plane)
            worker.close()
        plane.fleet.close()
        plane.log.close()


def _admission(settings: GatewaySettings, fleet: Fleet) -> Admission[Engine] | None:
    if settings.engine_capacity is None:
        return None
    return Admission(settings.engine_capacity, settings.queue_limit, lambda model: fleet.by_model.get(model, ()))


def _own_keys(settings: GatewaySettings) -> tuple[ApiKey, ...]:
    if settings.api_keys_file is None:
        return ()
    flag = "--api-keys-file"
    try:
        return keys_of(orjson.loads(Path(settings.api_keys_file).read_bytes()))
    except OSError as error:
        raise StartError(f"{flag}: cannot read {settings.api_keys_file}: {error.strerror}; check the path") from error
    except orjson.JSONDecodeError as error:
        raise StartError(f"{flag}: {settings.api_keys_file} is not JSON: {error}; correct it") from error
    except InvalidDocumentError as error:
        raise StartError(*(f"{flag}: {fault}" for fault in error.faults)) from error


def _watcher(
    settings: GatewaySettings, own_keys: tuple[ApiKey, ...], plane: Plane, clock: Clock, worker: Worker | None
) -> Watcher | None:
    if settings.redis_url is None:
        return None
    try:
        store = RedisStore(settings.redis_url)
    except InvalidDocumentError as error:
        raise StartError(f"--redis-url: {Fault('', 'not a Redis URL')}; write e.g. redis://127.0.0.1:6379/0") from error
    watcher = Watcher(
        store=store,
        own_keys=own_keys,
        first=plane.snapshot,
        publish=plane.offer,
        gateway_id=plane.gateway_id,
        demands=lambda: plane.demands,
        share=plane.offer_shares,
        clock=clock,
        poll_s=settings.redis_poll_s,
    )

    def read() -> None:
        store.ping()
        plane.adopt(watcher.read())
        shares = watcher.exchange()
        if shares is not None:
            plane.rates.adopt(shares, clock.monotonic())

    try:
        if worker is None:
            read()
        else:
            worker.insist(read, clock.monotonic)
    except StoreUnavailableError as error:
        if not settings.engine:
            raise StartError(f"--redis-url: {error}; start Redis, correct the URL, or give --engine") from error
        _log.warning("Redis does not answer yet; until then only keys of --api-keys-file pass: %s", error)
    return watcher


def _secret(value: SecretStr | None) -> str | None:
    return None if value is None else value.get_secret_value()


def _shown(settings: GatewaySettings) -> dict[str, Any]:
    shown = settings.model_dump(mode="json")
    if settings.redis_url is not None:
        shown["redis_url"] = without_secrets(settings.redis_url)
    return shown

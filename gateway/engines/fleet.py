"""The engines known to this gateway: their addresses, models and work under way.

Engines come from three sources: the snapshot (engines that registered in Redis), the static list, and the addresses of
DNS names. An engine of the second or third source that also registered is one engine, with its registered id. An engine
with a malformed URL is logged and left out; the others are unaffected. When an engine leaves the fleet, its requests
under way finish.

Data-parallel ranks register one by one and serve at one URL, where vLLM spreads the requests evenly. Here they are one
engine, of as many times the capacity. It drains or is stalled as soon as one rank is, and each rank's `running_limit`
holds for all, because they get equal parts.

Outstanding work is this gateway's own count, exact for the requests that it sent. For an engine that has never answered
the work is unknown, so it ranks last.

Owned by the event loop: no function here may be called from another thread.
"""

import logging
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

from specpilot.gateway.engines.upstream import Address, Pool, tls_context
from specpilot.gateway.routing.chooser import Chooser
from specpilot.gateway.routing.outlier_detection import OutlierDetection
from specpilot.gateway.routing.session import hash_of
from specpilot.gateway.wire.request_facts import RequestFacts
from specpilot.gateway.wire.response_id import tag_in, tag_of
from specpilot.gateway.wire.routes import STORED
from specpilot.policy.records import EngineRecord
from specpilot.policy.settings import without_secrets

_log = logging.getLogger(__name__)


def model_card(name: str) -> dict[str, Any]:
    """Return the entry of `/v1/models` for a name about which no engine says more."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "specpilot"}


class Engine:
    """One engine. `cards` are its entries of `/v1/models`, `None` until its first answer."""

    def __init__(self, engine_id: str, url: str, pool: Pool, address: Address, api_key: str | None) -> None:
        self.engine_id = engine_id
        self.engine_hash = hash_of(engine_id)
        self.response_tag = tag_of(self.engine_hash)
        self.url = url
        self.pool = pool
        self.outlier_detection = OutlierDetection()
        self.ranks = 1
        self.is_draining = False
        self.is_stalled = False  # by its own record its model completes no step
        self.running_limit: int | None = None  # by its own record the most requests that keep its latency goals
        self.registered_model: str | None = None
        self.cards: tuple[Mapping[str, Any], ...] | None = None
        self.outstanding_requests = 0
        self.outstanding_tokens = 0
        self.probed_at: float | None = None
        self.heard_at = 0.0  # monotonic seconds of the last byte of any response
        self.content_at = 0.0  # the same for content of the model: keep-alives do not count
        self.probe_error: str | None = None
        self.refused_models: list[str] = []  # its models with unusable names, as last logged
        self._address = address
        self._authorization = b"" if api_key is None else b"authorization: Bearer " + api_key.encode() + b"\r\n"
        self._heads: dict[tuple[bytes, bytes], bytes] = {}

    @property
    def work_tokens(self) -> float | None:
        """Outstanding work in tokens by rank; `None` when the engine has never answered and has no request."""
        return None if self.cards is None and not self.outstanding_requests else self.outstanding_tokens / self.ranks

    @property
    def models(self) -> frozenset[str]:
        """The names under which the engine serves."""
        named = {str(card["id"]) for card in self.cards or ()}
        if self.registered_model is not None:
            named.add(self.registered_model)
        return frozenset(named)

    def head(self, method: bytes, path: bytes) -> bytes:
        """Return the first lines of a request: request line, host, the engine's own authorization."""
        lines = self._heads.get((method, path))
        if lines is None:
            target = self._address.prefix + path
            host = self._address.host_header
            lines = method + b" " + target + b" HTTP/1.1\r\nhost: " + host + b"\r\n" + self._authorization
            if len(self._heads) < 64:  # noqa: PLR2004 - queries make paths unbounded; the frequent ones come first
                self._heads[method, path] = lines
        return lines


class Fleet:
    """Every engine, and the engines of each model."""

    def __init__(  # noqa: PLR0913, PLR0917 - the properties of all connections to engines
        self,
        urls: Iterable[str],
        chooser: Chooser,
        engine_keep_alive_s: float,
        api_key: str | None,
        tls: Callable[[], ssl.SSLContext] = tls_context,
        tcp_keep_alive_s: int = 0,
    ) -> None:
        """`urls` is the static list. `tls` returns the context of new connections to `https://` engines.

        `tcp_keep_alive_s` is for `gateway.engines.tcp_keep_alive`.
        """
        self._tls = tls
        self._keep_alive_s = engine_keep_alive_s
        self._tcp_keep_alive_s = tcp_keep_alive_s
        self._api_key = api_key
        self._static = tuple(urls)
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._records: tuple[EngineRecord, ...] = ()
        self._left_out: dict[str, str] = {}  # malformed URLs by engine id, so that each is logged once
        self.chooser = chooser
        self.engines: dict[str, Engine] = {}
        self.by_model: dict[str, tuple[Engine, ...]] = {}
        self.longest: dict[str, int] = {}  # by model, the largest `max_model_len` of its engines, in tokens
        self.apply(())

    @property
    def is_serving(self) -> bool:
        """Whether some engine can take a request."""
        return any(self.has_engine(model) for model in self.by_model)

    def apply(self, records: Collection[EngineRecord]) -> None:
        """Replace the engines that registered."""
        self._records = tuple(records)
        self._gather()

    def resolve(self, name: str, urls: tuple[str, ...]) -> None:
        """Replace the engines behind the URL `name` by `urls`."""
        self._resolved[name] = urls
        self._gather()

    def _gather(self) -> None:
        """Build the fleet from its three sources."""
        ranks: dict[str, list[EngineRecord]] = {}
        for record in self._records:
            ranks.setdefault(record.server_id, []).append(record)
        entries = {server_id: (records[0].url.rstrip("/"), records) for server_id, records in ranks.items()}
        registered_urls = {url for url, _ in entries.values()}
        hosts = {url: urlsplit(name).hostname for name, urls in self._resolved.items() for url in urls}
        for url in (*self._static, *hosts):
            if url not in registered_urls:
                entries.setdefault(url.split("://", 1)[1], (url, []))
        for engine_id in [*self.engines]:
            if engine_id not in entries or entries[engine_id][0] != self.engines[engine_id].url:
                self.engines.pop(engine_id).pool.close()
        left_out, self._left_out = self._left_out, {}
        for engine_id, (url, records) in entries.items():
            engine = self.engines.get(engine_id)
            if engine is None:
                try:
                    address = Address(url, None if url in self._static else hosts.get(url), self._tls)
                except ValueError:
                    self._left_out[engine_id] = url
                    if left_out.get(engine_id) != url:
                        line = "engine %s is left out, its URL %r cannot be used: let it register as http://HOST:PORT"
                        _log.error(line, engine_id, without_secrets(url))
                    continue
                pool = Pool(address, self._keep_alive_s, self._tcp_keep_alive_s)
                engine = Engine(engine_id, url, pool, address, self._api_key)
                self.engines[engine_id] = engine
            limits = [record.running_limit for record in records if record.running_limit is not None]
            engine.ranks = max(1, len(records))
            engine.is_draining = any(record.draining for record in records)
            engine.is_stalled = any(record.stalled for record in records)
            engine.running_limit = engine.ranks * min(limits) if limits else None
            engine.registered_model = records[0].model if records else None
        self.index()

    def index(self) -> None:
        """Rebuild the engines by model."""
        by_model: dict[str, list[Engine]] = {}
        for engine in self.engines.values():
            for model in engine.models:
                by_model.setdefault(model, []).append(engine)
        self.by_model = {model: tuple(engines) for model, engines in by_model.items()}
        self.longest = {}
        for engine in self.engines.values():
            for card in engine.cards or ():
                length = card.get("max_model_len")
                if type(length) is int and length > 0:
                    model = str(card["id"])
                    self.longest[model] = max(length, self.longest.get(model, 0))

    def has_engine(self, model: str) -> bool:
        """Whether an engine of `model` takes requests: it neither drains nor is ejected."""
        return any(
            not engine.is_draining and not engine.outlier_detection.is_ejected
            for engine in self.by_model.get(model, ())
        )

    def pick(
        self, facts: RequestFacts, session: str | None, now: float, avoid: Collection[Engine] = ()
    ) -> Engine | None:
        """Return the engine for a request; `None` if there is no usable engine outside `avoid`.

        `session` is the value of the request's session header. A request that continues a stored response, or reads
        one, goes to the engine that made it, even when that engine drains or is in `avoid`: any other engine would
        answer that there is no such response.
        """
        candidates = self.by_model.get(facts.model, ())
        previous = facts.previous_response
        if previous is not None:
            maker = self.maker(previous, self.engines.values() if facts.path in STORED else candidates)
            if maker is not None:
                return maker
        if not avoid and len(candidates) == 1:
            return None if candidates[0].is_draining else candidates[0]
        return self.chooser.choose(candidates, facts, session, now, avoid)

    def maker(self, identifier: str, engines: Collection[Engine]) -> Engine | None:
        """Return the one of `engines` that made the response `identifier`; `None` when it is unknown."""
        if len(self.engines) == 1:
            return next(iter(engines), None)
        tag = tag_in(identifier)
        return next((engine for engine in engines if engine.response_tag == tag), None)

    def cards(self) -> list[Mapping[str, Any]]:
        """Return `/v1/models` over all engines, one entry per model. Engines without an answer count as registered."""
        cards: dict[str, Mapping[str, Any]] = {}
        for engine in self.engines.values():
            for card in engine.cards or ():
                cards.setdefault(str(card["id"]), card)
            name = engine.registered_model
            if name is not None:
                cards.setdefault(name, model_card(name))
        return [cards[name] for name in sorted(cards)]

    def sweep(self, now: float) -> None:
        """Close idle connections that are too old."""
        for engine in self.engines.values():
            engine.pool.sweep(now)

    def close(self) -> None:
        """Close every idle connection."""
        for engine in self.engines.values():
            engine.pool.close()

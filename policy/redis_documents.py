"""Documents in Redis: each is JSON in the field of a hash or in a string, and is read and written as a whole.

A write that depends on what is stored reads it, decides in Python, and is done by one script, completely or not at all,
if every text that was read is still there. Otherwise it reads and decides again. So a version and a leader's fence are
checked without the server knowing what a document is.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from specpilot.policy import redis_keys, redis_scripts
from specpilot.policy.codec import decode, decode_each, encode, name_of
from specpilot.policy.errors import Fault, FencedError, InvalidDocumentError, StoreFullError, StoreUnavailableError
from specpilot.policy.records import Lease
from specpilot.policy.redis_connection import translated

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where a document is: the field of a hash, or without `field` a string."""

    key: str
    field: str = ""


_FENCE = Place(redis_keys.FENCE)

FAULTS_KEPT = 1000
"""Faults in stored documents from which on those of earlier reads are forgotten, and may be logged again."""

WRITE_TRIES = 100
"""Times that a write decides anew because another one was faster. Only the faster ones can use them up."""


class Documents:
    """Reads and writes documents over a connection to Redis."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        """`connect` returns a client of Redis; it is called at the first use, until it returns one.

        `_faults` are those of the documents that could not be read: whether a line of the log has named each.
        """
        self._connect = connect
        self._faults: dict[str, bool] = {}
        self._unannounced: str | None = None

    @cached_property
    def _redis(self) -> Any:
        return self._connect()

    def _run(self, script: str, keys: Sequence[str], *args: Any) -> Any:
        """Run one of `redis_scripts`; the server knows it by its hash from the first run on."""
        return self._redis.register_script(script)(keys=keys, args=args)

    def unannounced(self) -> str | None:
        """Return why the latest write could not be announced; `None` when it was.

        A write counts although it is not announced: other parts see it when they poll.
        """
        return self._unannounced

    def _announce(self, key: str, channel: str = redis_keys.CHANGES) -> None:
        """Announce that `key` was written. A failure does not undo the write, so it is noted and logged once."""
        try:
            with translated():
                self._redis.publish(channel, key)
        except StoreUnavailableError as error:
            if self._unannounced is None:
                _log.warning("writes are not announced, other parts see them when they poll Redis: %s", error)
            self._unannounced = str(error)
        else:
            self._unannounced = None

    def _change(
        self, places: Sequence[Place], decide: Callable[..., Mapping[Place, bytes]], lease: Lease | None = None
    ) -> bool:
        """Write what `decide` makes of the texts at `places`, in its order; an empty text removes a field.

        `decide` gets `None` for a place without a text. Returns whether it returned anything to write. With `lease`,
        raises `FencedError`, and nothing is written, if another controller has led since. Raises
        `StoreUnavailableError` if others were faster `WRITE_TRIES` times.
        """
        fence = [] if lease is None else [(_FENCE, str(lease.fence))]
        for _ in range(WRITE_TRIES):
            texts = self._texts(places)
            writes = decide(*texts)
            if not writes:
                return False
            compared = [*fence, *((place, text or b"") for place, text in zip(places, texts, strict=True))]
            items = [*compared, *writes.items()]
            arguments = [item for place, text in items for item in (place.field, text)]
            differing = self._run(
                redis_scripts.COMPARE_AND_WRITE, [place.key for place, _ in items], len(compared), *arguments
            )
            if not differing:
                return True
            if lease is not None and differing == 1:
                raise FencedError(f"lease {lease.fence} of {lease.holder} was followed by another")
        raise StoreUnavailableError(f"{places[0].key} was changed by others {WRITE_TRIES} times meanwhile; try again")

    def _texts(self, places: Sequence[Place]) -> Sequence[bytes | None]:
        pipe = self._redis.pipeline(transaction=False)
        for place in places:
            pipe.execute_command(*_reading(place))
        texts: Sequence[bytes | None] = pipe.execute()
        return texts

    def _replace(self, place: Place, before: T | None, after: T) -> bool:
        """Write `after` in place of `before` (`None`: no document); `False`, without a write, if another is stored."""

        def decide(stored: bytes | None) -> Mapping[Place, bytes]:
            present = None if stored is None else decode(type(after), stored)
            return {place: encode(after)} if present == before else {}

        return self._change([place], decide)

    def _document(self, kind: type[T], place: Place) -> T | None:
        """Return the document at `place`, `None` without one. Raises `InvalidDocumentError`, which names the place."""
        text = self._redis.hget(*place)
        try:
            return None if text is None else decode(kind, text)
        except InvalidDocumentError as error:
            where = f"{error.kind} in field {place.field} of the hash {place.key}"
            raise InvalidDocumentError(where, error.faults) from error

    def _documents(self, kind: type[T], label: str, key: str) -> list[T]:
        """Return the documents of the hash `key` that can be read, in order of their fields."""
        return [*self._readable(kind, label, self._fields(key)).values()]

    def _fields(self, key: str) -> dict[bytes, bytes]:
        """Return the texts of the hash `key`, in order of their fields."""
        return dict(sorted(self._redis.hgetall(key).items()))

    def _readable(
        self, kind: type[T], label: str, texts: Mapping[bytes, bytes], then: str = "are left out"
    ) -> dict[str, T]:
        """Return by name, in the order of `texts`, the documents that can be read.

        One line is logged for all others, with the consequence `then`: their number, and the fault of one. They may be
        a whole history from another version that is read repeatedly, so another line follows only for one that is new,
        or if the first was in no line.
        """
        documents = decode_each(kind, texts)
        readable = {name: item for name, item in documents.items() if not isinstance(item, InvalidDocumentError)}
        faults = [f"{name}: {item}" for name, item in documents.items() if name not in readable]
        first_unnamed = [fault for fault in faults[:1] if not self._faults.get(fault)]
        to_name = [fault for fault in faults if fault not in self._faults] or first_unnamed
        if to_name:
            before = self._faults if len(self._faults) < FAULTS_KEPT else {}
            self._faults = {**dict.fromkeys(faults, False), **before, to_name[0]: True}
            _log.error("%d of %s cannot be read and %s; %s", len(faults), label, then, to_name[0])
        return readable

    def _present(self, kind: type[T], members: str, key_of: Callable[[str], str]) -> list[T]:
        """Return the documents of the members of the set `members` that have not expired.

        Removes the other members, if it may.
        """
        ids = sorted(self._redis.smembers(members))
        stored = self._redis.mget([key_of(name_of(item)) for item in ids]) if ids else []
        silent = [item for item, text in zip(ids, stored, strict=True) if text is None]
        if silent:
            with suppress(StoreUnavailableError), translated():
                self._redis.srem(members, *silent)
        texts = {item: text for item, text in zip(ids, stored, strict=True) if text is not None}
        return [*self._readable(kind, f"the records of {members}", texts).values()]

    def _renew(self, members: str, member: str, key: str, document: object, ttl_s: float) -> bool:
        """Write the document of a `member` for `ttl_s`; return whether it is a new one.

        A full server keeps the former document instead; raises `StoreFullError` if there is none.
        """
        ttl_ms = int(ttl_s * 1000)
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(key, encode(document), px=ttl_ms)
        pipe.sadd(members, member)
        try:
            with translated():
                return bool(pipe.execute()[1])
        except StoreFullError:
            if not self._redis.pexpire(key, ttl_ms):
                raise
            return False


def version_of(text: bytes | None) -> int:
    """Return the version of a stored document; 0 without one. Raises `InvalidDocumentError`."""
    try:
        return 0 if text is None else int(json.loads(text)["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidDocumentError("document", (Fault("version", "cannot be read"),)) from error


def _reading(place: Place) -> tuple[str, ...]:
    return ("HGET", *place) if place.field else ("GET", place.key)

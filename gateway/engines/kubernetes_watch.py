"""Finds the engines of a Kubernetes service: lists its EndpointSlices, then watches them.

One thread for each `k8s+http://` URL, so that no request waits for the API server. A list has the whole state; a watch
then reports each change.

| event | reaction |
|---|---|
| a watch ends (each does, after `WATCH_S`) | the next continues from the last `resourceVersion`, bookmarks included |
| the connection breaks, or is silent too long | the same, after a pause that doubles up to `PAUSE_LIMIT_S` |
| 410 Gone, as status or as event | a new list, which replaces all slices, so missed deletions take effect |
| the API server does not answer, rejects, or sends invalid data | the last engines stay; one log line has the remedy |
| the list is empty | there are no engines: unlike a resolver, the API server is authoritative |

The token is read for each request, because the kubelet replaces it about once an hour. The certificates are read as
often.
"""

import http.client
import json
import logging
import ssl
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from specpilot.gateway.engines.endpoint_slices import Endpoints, endpoints, service_of
from specpilot.policy.clean_text import secret, stripped
from specpilot.policy.errors import InvalidDocumentError
from specpilot.policy.text_files import read_text

WATCH_S: Final = 60
"""Seconds after which the API server ends a watch, and so the longest time in which a dead connection is not
detected."""

LIST_TIMEOUT_S: Final = 10.0
"""Seconds in which the API server must list a service: a hung one delays changes by this time."""

PAUSE_S: Final = 0.5
"""Seconds before a broken watch is opened again, the first time."""

PAUSE_LIMIT_S: Final = 15.0
"""Seconds of the longest such pause. With a larger value a failing API server gets fewer requests; with a smaller one
new engines are found sooner."""

LINE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the longest event that is read. A slice has at most 1,000 endpoints of some hundred bytes each."""

SILENCE_S = WATCH_S + 10.0

_GONE = 410
_OK = 200
_log = logging.getLogger(__name__)


class Cluster(NamedTuple):
    """The URL of the API server, and the folder of the pod's service account with `token`, `ca.crt` and `namespace`."""

    api: str
    credentials: Path


class _ExpiredError(Exception):
    """The watch's last version is too old: list again."""


class _WatchError(Exception):
    """The API server did not answer as requested. The text has the reason and the remedy."""


Publish = Callable[[str, tuple[str, ...], frozenset[str]], None]
"""Receives the URL that is followed, the engines' URLs, and those that drain."""


class EndpointWatch:
    """Follows the service of `name`, a URL of the form `k8s+http://service.namespace:port`.

    Passes its engines to `publish` from its own thread. A `publish` that raises `RuntimeError` (the loop is closed)
    ends the thread.
    """

    def __init__(self, name: str, cluster: Cluster, publish: Publish, rng: Random) -> None:
        self.name = name
        self._service = service_of(name)
        self._cluster = cluster
        self._publish = publish
        self._rng = rng
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._last = Endpoints()  # of the last slices that could be read
        self._version: str | None = None
        self._complaint: str | None = None
        self._listing = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"endpoints {self._service.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Publish nothing more. The thread ends with its next event, or with the process."""
        self._stopped.set()

    def list_once(self) -> Endpoints:
        """List once and return the engines; without a readable answer, those of the last good one."""
        try:
            with self._listing:
                self._list()
            self._endpoints()
            self._say(None)
        except (OSError, http.client.HTTPException, _WatchError, _ExpiredError) as error:
            self._say(str(error) or type(error).__name__)
        return self._last

    def _run(self) -> None:
        with self._listing:  # wait for the first list: a late list would overwrite newer events of the watch
            pause_s = PAUSE_S
        published: Endpoints | None = None
        while not self._stopped.is_set():
            try:
                with closing(self._changes()) as changes:
                    for is_watching in changes:
                        self._say(None)
                        pause_s = PAUSE_S if is_watching else pause_s
                        engines = self._endpoints()
                        if engines != published and not self._stopped.is_set():
                            self._publish(self.name, *engines)
                            published = engines
                            _log.info("%s is %s", self.name, _words(engines))
            except _ExpiredError:
                self._version = None
            except RuntimeError:
                return
            except (OSError, http.client.HTTPException, _WatchError) as error:
                self._say(str(error) or type(error).__name__)
            except Exception:  # noqa: BLE001 - this thread must outlive any fault
                _log.exception("%s: the watch failed; listing again", self.name)
                self._version = None
            self._stopped.wait(pause_s * (0.5 + self._rng.random()))
            pause_s = min(PAUSE_LIMIT_S, pause_s * 2)

    def _endpoints(self) -> Endpoints:
        try:
            self._last = endpoints(self._service, self._slices.values())
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            self._version = None  # more events would not repair the slices: list again
            raise _WatchError(f"the API server's answer is not a list of EndpointSlices ({error!r})") from error
        return self._last

    def _say(self, complaint: str | None) -> None:
        if complaint == self._complaint:
            return
        self._complaint = complaint
        if complaint is None:
            _log.warning("%s is followed again", self.name)
        else:
            _log.warning("%s cannot be followed, keeping its %d slices: %s", self.name, len(self._slices), complaint)

    def _changes(self) -> Generator[bool]:
        """List if there is no version, then watch.

        Yields `False` after the list, `True` after the watch opens and after each of its events.
        """
        if self._version is None:
            self._list()
            yield False
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(WATCH_S)}
        with self._get({**query, "resourceVersion": str(self._version)}, SILENCE_S) as response:
            yield True
            while not self._stopped.is_set() and (line := response.readline(LINE_BYTES)):
                self._apply(line)
                yield True

    def _apply(self, line: bytes) -> None:
        """Apply one event of the watch."""
        try:
            event = json.loads(line)
            kind, document = event["type"], event["object"]
            meta = document.get("metadata") or {}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _WatchError(f"an event of the watch is incomplete or malformed ({error!r})") from error
        if kind == "ERROR":
            if document.get("code") == _GONE:
                raise _ExpiredError
            raise _WatchError(f"the watch broke off: {document.get('message') or document}")
        self._version = meta.get("resourceVersion") or self._version
        if kind == "DELETED":
            self._slices.pop(str(meta.get("name")), None)
        elif kind in {"ADDED", "MODIFIED"}:
            self._slices[str(meta.get("name"))] = document

    def _list(self) -> None:
        with self._get({}, LIST_TIMEOUT_S) as response:
            text = response.read()
        try:
            document = json.loads(text)
            slices = {str(item["metadata"]["name"]): item for item in document["items"] or ()}
            version = str(document["metadata"]["resourceVersion"])
        except (ValueError, KeyError, TypeError) as error:
            raise _WatchError(f"the API server's answer is not a list of EndpointSlices ({error!r})") from error
        self._slices, self._version = slices, version

    @contextmanager
    def _get(self, query: Mapping[str, str], timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        """Request the service's slices. Raises `OSError`, `HTTPException`, `_ExpiredError` and `_WatchError`."""
        folder, parts = self._cluster.credentials, urlsplit(self._cluster.api)
        namespace = self._service.namespace or stripped(read_text(folder / "namespace"))
        parameters = {"labelSelector": f"kubernetes.io/service-name={self._service.name}", **query}
        path = f"{parts.path.rstrip('/')}/apis/discovery.k8s.io/v1/namespaces/{quote(namespace)}/endpointslices"
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            trusted = ssl.create_default_context(cafile=str(folder / "ca.crt"))
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=timeout_s, context=trusted
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            token = secret(str(folder / "token"), read_text(folder / "token"))
        except InvalidDocumentError as error:
            raise _WatchError(str(error)) from error
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        with closing(connection):
            connection.request("GET", f"{path}?{urlencode(parameters)}", headers=headers)
            with connection.getresponse() as response:
                if response.status == _OK:
                    yield response
                    return
                message = _message(response.read(LINE_BYTES))
        if response.status == _GONE:
            raise _ExpiredError
        remedy = {
            401: "; the account's token is not accepted",
            403: f"; give the gateway's service account `list` and `watch` of `endpointslices` in {namespace}",
        }.get(response.status, "")
        raise _WatchError(f"the API server answers {response.status}: {message}{remedy}")


def _message(body: bytes) -> str:
    """Return the message of a `Status` document, or the beginning of any other body."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _words(engines: Endpoints) -> str:
    shown = [f"{url} (draining)" if url in engines.draining else url for url in engines.urls]
    return ", ".join(shown) or "no engine"

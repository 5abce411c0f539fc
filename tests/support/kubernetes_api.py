"""A stand-in for a cluster's API server: EndpointSlices by list and watch, as the API conventions have them.

Every write gets the next `resourceVersion` and goes to a log. A list states everything and the latest version; a watch
sends what came after the version that it is given, one JSON object a line, chunked, until `timeoutSeconds` are over or
`end` is called.
Versions that were compacted away are 410: as a status, or, with `gone_as_event`, as the watch's first event.
"""

import json
import ssl
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

PATH = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
LABEL = "kubernetes.io/service-name"
BOOKMARK_S = 0.05
POLL_S = 0.02


def endpoint(address: str, *, ready: bool | None = True, terminating: bool = False) -> dict[str, Any]:
    conditions = {"serving": bool(ready), "terminating": terminating}
    return {"addresses": [address], "conditions": conditions if ready is None else {"ready": ready, **conditions}}


def endpoint_slice(
    name: str,
    endpoints: Sequence[dict[str, Any]],
    ports: Sequence[int] = (8000,),
    family: str = "IPv4",
    of: str = "vllm",
) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "models", "labels": {LABEL: of}},
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports],
    }


class KubernetesApi:
    """Listens on a free port of the loopback. `credentials` is the folder that a pod's account would have."""

    def __init__(self, credentials: Path, certificates: Path | None = None) -> None:
        """With `certificates`, a folder with `server.pem`, `server.key` and `ca.pem`, it speaks TLS."""
        self.credentials = credentials
        credentials.mkdir(parents=True, exist_ok=True)
        (credentials / "namespace").write_text("models\n")
        self.set_token("first")
        self.version = 100
        self.oldest = 100
        self.items: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[int, dict[str, Any]]] = []
        self.requests: list[dict[str, str]] = []  # the query of each
        self.tokens: list[str] = []
        self.refusal: int | None = None
        self.gone_as_event = False
        self.cuts = 0
        self.ends = 0
        self.bookmarked = 0
        self.lock = threading.RLock()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                api.answer(self)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            (credentials / "ca.crt").write_bytes((certificates / "ca.pem").read_bytes())
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self.is_closed = False
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def set_token(self, token: str) -> None:
        self.token = token
        (self.credentials / "token").write_text(token + "\n")

    def put(self, item: dict[str, Any]) -> None:
        """Create or replace a slice."""
        with self.lock:
            name = item["metadata"]["name"]
            kind = "MODIFIED" if name in self.items else "ADDED"
            self.items[name] = self._written(kind, item)

    def delete(self, name: str) -> None:
        with self.lock:
            self._written("DELETED", self.items.pop(name))

    def _written(self, kind: str, item: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        written = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self.version)}}
        self.log.append((self.version, {"type": kind, "object": written}))
        return written

    def compact(self) -> None:
        """Forget every version but the latest."""
        with self.lock:
            self.oldest = self.version
            self.log.clear()

    def cut(self) -> None:
        """Cut every watch within an event."""
        self.cuts += 1

    def end(self) -> None:
        """End every watch, as when its time is over."""
        self.ends += 1

    @property
    def watches(self) -> list[dict[str, str]]:
        return [query for query in self.requests if "watch" in query]

    def close(self) -> None:
        self.is_closed = True
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.requests.append(query)
        self.tokens.append(handler.headers.get("Authorization", ""))
        if self.refusal is not None:
            self._status(handler, self.refusal, "as the test wants")
        elif self.tokens[-1] != f"Bearer {self.token}":
            self._status(handler, 401, "Unauthorized")
        elif parts.path != PATH:
            self._status(handler, 403, f"cannot list endpointslices at {parts.path}")
        elif "watch" not in query:
            with self.lock:
                found = {"items": self._selected(query), "metadata": {"resourceVersion": str(self.version)}}
            self._send(handler, 200, {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", **found})
        elif int(query["resourceVersion"]) < self.oldest and not self.gone_as_event:
            self._status(handler, 410, "too old resource version")
        else:
            self._watch(handler, query)

    def _selected(self, query: dict[str, str]) -> list[dict[str, Any]]:
        label, _, value = query.get("labelSelector", "").partition("=")
        return [item for item in self.items.values() if item["metadata"]["labels"].get(label) == value]

    def _status(self, handler: BaseHTTPRequestHandler, code: int, message: str) -> None:
        self._send(handler, code, {"kind": "Status", "status": "Failure", "message": message, "code": code})

    def _send(self, handler: BaseHTTPRequestHandler, code: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        handler.send_response(code)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def _watch(self, handler: BaseHTTPRequestHandler, query: dict[str, str]) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.flush()
        _, _, of = query["labelSelector"].partition("=")
        sent, cuts, ends = int(query["resourceVersion"]), self.cuts, self.ends
        ends_at = time.monotonic() + float(query["timeoutSeconds"])
        bookmark_at = time.monotonic() + BOOKMARK_S
        try:
            while time.monotonic() < ends_at and ends == self.ends and not self.is_closed:
                if sent < self.oldest:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    self._event(handler, {"type": "ERROR", "object": gone})
                    break
                with self.lock:
                    fresh = [(at, event) for at, event in self.log if at > sent]
                for at, event in fresh:
                    if event["object"]["metadata"]["labels"][LABEL] == of:
                        self._event(handler, event)
                    sent = at
                if cuts != self.cuts:
                    handler.wfile.write(b'40\r\n{"type": "MODIFIED", "obj')
                    handler.wfile.flush()
                    handler.close_connection = True
                    return
                if time.monotonic() > bookmark_at and query.get("allowWatchBookmarks") == "true":
                    bookmark_at = time.monotonic() + BOOKMARK_S
                    meta = {"resourceVersion": str(max(sent, self.version)), "annotations": {}}
                    self._event(handler, {"type": "BOOKMARK", "object": {"kind": "EndpointSlice", "metadata": meta}})
                    sent = self.bookmarked = int(cast("str", meta["resourceVersion"]))
                time.sleep(POLL_S)
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass  # the gateway has gone

    def _event(self, handler: BaseHTTPRequestHandler, event: dict[str, Any]) -> None:
        line = json.dumps(event).encode() + b"\n"
        half = len(line) // 2  # a chunk is no line
        for part in (line[:half], line[half:]):
            handler.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            handler.wfile.flush()
